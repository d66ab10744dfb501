//go:build unix

package conformance

import (
	"fmt"
	"slices"
	"time"
)

// tool is one of the suite's tools.
type tool struct {
	about    string
	sync     bool // never a task
	required bool // always a task: a client without the extension is refused
	// before may answer a call without starting anything: it asks for input.
	before func(*request) object
	run    func(t *task, r *request, stop <-chan struct{})
}

var tools = map[string]tool{
	"greet": {
		about: "Says hello to somebody.", sync: true,
		run: func(t *task, r *request, _ <-chan struct{}) {
			t.complete(words(false, "Hello, "+str(r.Params.Arguments, "name")+"!"))
		},
	},
	"slow_compute": {
		about: "Takes some seconds.",
		run: func(t *task, r *request, stop <-chan struct{}) {
			seconds := number(r.Params.Arguments, "seconds")
			if t.wait(time.Duration(seconds*float64(time.Second)), stop) {
				t.complete(words(false, fmt.Sprintf("computed for %v s", seconds), str(r.Params.Arguments, "label")))
			}
		},
	},
	"failing_job": {
		about: "Fails after a second.", required: true,
		run: func(t *task, _ *request, stop <-chan struct{}) {
			if t.wait(time.Second, stop) {
				t.complete(words(true, "the job has failed"))
			}
		},
	},
	"protocol_error_job": {
		about: "Ends with a protocol error.",
		run: func(t *task, _ *request, stop <-chan struct{}) {
			if t.wait(pollEvery, stop) {
				t.fail(&fault{status: 200, Code: codeInternal, Message: "the job has broken"})
			}
		},
	},
	"confirm_delete": {
		about: "Deletes nothing, after it has asked.", required: true,
		run: func(t *task, r *request, stop <-chan struct{}) {
			if t.ask(map[string]object{"confirmation-1": elicit("Really?", "confirm", "boolean")}, stop) {
				t.complete(words(false, "deleted", str(r.Params.Arguments, "filename")))
			}
		},
	},
	"multi_input": {
		about: "Asks for two things at once.", required: true,
		run: func(t *task, _ *request, stop <-chan struct{}) {
			asks := map[string]object{"first-1": elicit("Who?", "name", "string"), "second-2": elicit("And who?", "name", "string")}
			if t.ask(asks, stop) {
				t.complete(words(false, "got both"))
			}
		},
	},
	"test_tool_with_task": {
		about: "Asks for a name, and then becomes a task.", required: true,
		before: func(r *request) object {
			if r.Params.InputResponses[nameKey] != nil && r.Params.RequestState == nameState {
				return nil
			}
			return object{
				"resultType": "input_required", "requestState": nameState,
				"inputRequests": object{nameKey: elicit("What is your name?", "name", "string")},
			}
		},
		run: func(t *task, r *request, stop <-chan struct{}) {
			content, _ := r.Params.InputResponses[nameKey]["content"].(object)
			if t.wait(3*pollEvery, stop) {
				t.complete(words(false, "Hello, "+str(content, "name")+"!"))
			}
		},
	},
}

const (
	nameKey   = "user_name"
	nameState = "asked-for-a-name"
)

// elicit is a request for one value of the user.
func elicit(message, name, kind string) object {
	return object{"method": "elicitation/create", "params": object{
		"mode": "form", "message": message,
		"requestedSchema": object{"type": "object", "properties": object{name: object{"type": kind}}, "required": []string{name}},
	}}
}

// list is the tools as tools/list gives them, always in the same order.
func list() []object {
	var names []string
	for name := range tools {
		names = append(names, name)
	}
	slices.Sort(names)
	var all []object
	for _, name := range names {
		t := tools[name]
		o := object{"name": name, "description": t.about, "inputSchema": object{"type": "object"}}
		if t.required {
			o["execution"] = object{"taskSupport": "required"}
		}
		all = append(all, o)
	}
	return all
}
