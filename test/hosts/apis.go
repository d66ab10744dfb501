//go:build unix

package hosts

import (
	"net/http"
	"strings"
	"time"
)

// plainName is the name of a tool in the APIs that put it at the top.
func plainName(t object) string { return str(t, "name") }

func (m *Model) anthropic(w http.ResponseWriter, b object) {
	var results []string
	for _, msg := range list(b, "messages") {
		for _, c := range list(msg, "content") {
			if str(c, "type") == "tool_result" {
				results = append(results, text(c["content"]))
			}
		}
	}
	next := m.next(list(b, "tools"), plainName, results)
	block, stop := object{"type": "text", "text": next.say}, "end_turn"
	if next.tool != nil {
		block, stop = object{"type": "tool_use", "id": id("toolu_"), "name": next.tool["name"], "input": next.args}, "tool_use"
	}
	usage := object{"input_tokens": 10, "output_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	msg := object{
		"id": id("msg_"), "type": "message", "role": "assistant", "model": b["model"], "content": []object{block},
		"stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
	if b["stream"] != true {
		reply(w, msg)
		return
	}
	send := sse(w)
	msg["content"], msg["stop_reason"] = []object{}, nil
	send("message_start", object{"type": "message_start", "message": msg})
	start, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": next.say}
	if next.tool != nil {
		start, delta = object{"type": "tool_use", "id": block["id"], "name": block["name"], "input": object{}}, object{"type": "input_json_delta", "partial_json": encode(next.args)}
	}
	send("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": start})
	send("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta})
	send("content_block_stop", object{"type": "content_block_stop", "index": 0})
	send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 10}})
	send("message_stop", object{"type": "message_stop"})
}

func (m *Model) responses(w http.ResponseWriter, b object) {
	var results []string
	for _, i := range list(b, "input") {
		if strings.HasSuffix(str(i, "type"), "call_output") {
			results = append(results, text(i["output"]))
		}
	}
	var tools []object
	for _, t := range list(b, "tools") {
		if str(t, "type") != "namespace" {
			tools = append(tools, t)
			continue
		}
		for _, inner := range list(t, "tools") {
			tools = append(tools, object{"name": inner["name"], "namespace": t["name"]})
		}
	}
	next := m.next(tools, plainName, results)
	item := object{
		"type": "message", "id": id("msg_"), "role": "assistant", "status": "completed",
		"content": []object{{"type": "output_text", "text": next.say, "annotations": []any{}}},
	}
	if next.tool != nil {
		item = object{
			"type": "function_call", "id": id("fc_"), "call_id": id("call_"), "name": next.tool["name"],
			"arguments": encode(next.args), "status": "completed",
		}
		if ns := next.tool["namespace"]; ns != nil {
			item["namespace"] = ns
		}
	}
	response := func(status string, output []object) object {
		return object{
			"id": id("resp_"), "object": "response", "created_at": time.Now().Unix(), "model": b["model"], "status": status, "output": output,
			"usage": object{
				"input_tokens": 10, "input_tokens_details": object{"cached_tokens": 0},
				"output_tokens": 10, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 20,
			},
		}
	}
	send := sse(w)
	send("response.created", object{"type": "response.created", "response": response("in_progress", []object{})})
	send("response.output_item.added", object{"type": "response.output_item.added", "output_index": 0, "item": item})
	send("response.output_item.done", object{"type": "response.output_item.done", "output_index": 0, "item": item})
	send("response.completed", object{"type": "response.completed", "response": response("completed", []object{item})})
}

func (m *Model) chat(w http.ResponseWriter, b object) {
	var results []string
	for _, msg := range list(b, "messages") {
		if str(msg, "role") == "tool" {
			results = append(results, text(msg["content"]))
		}
	}
	name := func(t object) string {
		f, _ := t["function"].(object)
		return str(f, "name")
	}
	next := m.next(list(b, "tools"), name, results)
	message, finish := object{"role": "assistant", "content": next.say}, "stop"
	if next.tool != nil {
		call := object{
			"index": 0, "id": id("call_"), "type": "function",
			"function": object{"name": name(next.tool), "arguments": encode(next.args)},
		}
		message, finish = object{"role": "assistant", "content": nil, "tool_calls": []object{call}}, "tool_calls"
	}
	usage := object{"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
	answer := func(kind string, choices []object) object {
		return object{"id": id("chatcmpl-"), "created": time.Now().Unix(), "model": b["model"], "object": kind, "choices": choices}
	}
	if b["stream"] != true {
		o := answer("chat.completion", []object{{"index": 0, "message": message, "finish_reason": finish}})
		o["usage"] = usage
		reply(w, o)
		return
	}
	send := sse(w)
	const chunk = "chat.completion.chunk"
	send("", answer(chunk, []object{{"index": 0, "delta": message, "finish_reason": nil}}))
	send("", answer(chunk, []object{{"index": 0, "delta": object{}, "finish_reason": finish}}))
	last := answer(chunk, []object{})
	last["usage"] = usage
	send("", last)
	send("", "[DONE]")
}

func (m *Model) gemini(w http.ResponseWriter, b object, stream bool) {
	var results []string
	for _, c := range list(b, "contents") {
		for _, p := range list(c, "parts") {
			if f, ok := p["functionResponse"].(object); ok {
				results = append(results, text(f["response"]))
			}
		}
	}
	var tools []object
	for _, t := range list(b, "tools") {
		tools = append(tools, list(t, "functionDeclarations")...)
	}
	generation, _ := b["generationConfig"].(object)
	part := object{}
	switch {
	case generation["responseSchema"] != nil || generation["responseJsonSchema"] != nil:
		part["text"] = "{}" // the host asks the model about itself, not for the user
	default:
		next := m.next(tools, plainName, results)
		if part["text"] = next.say; next.tool != nil {
			part = object{"functionCall": object{"name": next.tool["name"], "args": next.args}}
		}
	}
	answer := object{
		"candidates":    []object{{"content": object{"role": "model", "parts": []object{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": object{"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}, "modelVersion": "scripted",
	}
	if stream {
		sse(w)("", answer)
		return
	}
	reply(w, answer)
}
