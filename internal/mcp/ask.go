package mcp

// What a server may ask of the agent whose request it works on: as a request, up to
// 2025-11-25, or in a result of kind ResultInput (SPEC §4.1).
const (
	MethodElicit = "elicitation/create"
	MethodSample = "sampling/createMessage"
	MethodRoots  = "roots/list"

	// ResultInput is the resultType of a result that only asks.
	ResultInput = "input_required"
	// KeyRefused holds, in an answer, the JSON-RPC error with which an agent
	// refused it: {code, message}. It never leaves longcall.
	KeyRefused = "dev.longcall/refused"
)

// askCapability is the client capability that a method needs; empty if no server
// may ask that.
func askCapability(method string) string {
	switch method {
	case MethodElicit:
		return "elicitation"
	case MethodSample:
		return "sampling"
	case MethodRoots:
		return "roots"
	}
	return ""
}

// Askable says whether an agent that declared caps, an object of client
// capabilities, can be asked this: of elicitation the mode has to be declared,
// where none means form, and of sampling the use of tools (SPEC §4.1).
func Askable(caps []byte, method string, params []byte) bool {
	name := askCapability(method)
	if name == "" || len(caps) == 0 {
		return false
	}
	declared := Value(caps, name)
	if len(declared) == 0 || declared[0] != '{' {
		return false
	}
	has := func(sub string) bool { v := Value(declared, sub); return len(v) > 0 && v[0] == '{' }
	switch method {
	case MethodElicit:
		switch ElicitMode(params) {
		case "form":
			return has("form") || !has("url")
		case "url":
			return has("url")
		}
		return false
	case MethodSample:
		return has("tools") || Value(params, "tools") == nil && Value(params, "toolChoice") == nil
	}
	return true
}

// ElicitMode is the mode of an elicitation by its params; no mode is "form".
func ElicitMode(params []byte) string {
	mode := Value(params, "mode")
	if mode == nil {
		return "form"
	}
	s, _ := String(mode)
	return s
}

// Value is a member of a raw object; nil if it is no object, or has none.
func Value(obj []byte, name string) []byte {
	members, err := Members(obj)
	if err != nil {
		return nil
	}
	for _, m := range members {
		if m.Name == name {
			return m.Value
		}
	}
	return nil
}

// BadAnswer says what is wrong with the answer to a request of a method; empty if
// nothing is. It looks at what decides, not at all.
func BadAnswer(method string, answer []byte) string {
	if len(answer) == 0 || answer[0] != '{' {
		return "it must be an object"
	}
	if Value(answer, KeyRefused) != nil {
		return ""
	}
	switch method {
	case MethodElicit:
		action, _ := String(Value(answer, "action"))
		content := Value(answer, "content")
		switch {
		case action != "accept" && action != "decline" && action != "cancel":
			return `action must be "accept", "decline" or "cancel"`
		case content != nil && content[0] != '{' && string(content) != "null":
			return "content must be an object"
		}
	case MethodSample:
		role, _ := String(Value(answer, "role"))
		content := Value(answer, "content")
		if role != "assistant" && role != "user" || content == nil || content[0] != '{' && content[0] != '[' {
			return "it must have role and content"
		}
	case MethodRoots:
		if roots := Value(answer, "roots"); roots == nil || roots[0] != '[' {
			return "roots must be an array"
		}
	}
	return ""
}
