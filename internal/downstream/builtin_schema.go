package downstream

import "strings"

// What a list says of our tools after their names. Descriptions say when to use a
// tool, in few words: every model reads them in every conversation. Schemas are
// flat, without unions and nulls, because hosts translate them for models that
// know neither. Lines that begin with + are there only if there is a shell.
var ownSources = map[string]string{
	toolAwait: `,
"title":"Wait for a call",
"description":"Waits for calls that still run and gives you their results as soon as they end.
+ With until it also waits for what a command prints.
 Use it when a result said that a call is still running, and you need its result now: never sleep, poll or call that tool again instead. If the time is over first, it says so (waited_out); that is no error: call it again, or go on with other work. Results stay: they can be read again, also hours later.",
"inputSchema":{"type":"object","properties":{
"ids":{"type":"array","items":{"type":"string"},"minItems":1,"maxItems":16,"description":"Ids of calls, such as c_k3v…"},
+"until":{"type":"string","enum":["exit","output","pattern"],"default":"exit","description":"What to wait for. output (anything new after cursor) and pattern are for commands of the shell; their end counts too."},
+"pattern":{"type":"string","maxLength":1024,"description":"With until pattern: a regular expression (RE2) that the output of the command has to match."},
+"cursor":{"type":"integer","minimum":0,"description":"Place in the output of one command, next_cursor of an earlier result: what comes after it is waited for and shown."},
"mode":{"type":"string","enum":["any","all"],"default":"any","description":"Return when any or when all of them have ended."},
"wait_ms":{"type":"integer","minimum":0,"maximum":600000,"description":"Longest wait in milliseconds; above 45000 only for a request with a progress token. Leave it out: the default suits your client."},
"attempt":{"type":"integer","minimum":1,"maximum":10000,"description":"How often you have waited for these calls, this one included. It changes nothing; some clients stop a model that makes the very same call again and again."}
},"required":["ids"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{
"calls":{"type":"array","items":{"type":"object","properties":{
"call_id":{"type":"string"},
"tool":{"type":"string"},
"state":{"type":"string","enum":[STATES]},
"started_at":{"type":"string","format":"date-time"},
"ended_at":{"type":"string","format":"date-time"},
"wall_ms":{"type":"integer"},
"progress":{"type":"string","description":"The last progress message of a running call."},
"result":{"type":"object","description":"The tool's own structured content."},
"text":{"type":"string","description":"What the tool said, if it has no structured content; or why there is no result of it."}
},"required":["call_id","tool","state","started_at","wall_ms"]}},
"waited_out":{"type":"boolean","description":"The time was over before the wait."},
"unknown":{"type":"array","items":{"type":"string"},"description":"Ids that are no calls of yours."},
"next":{"type":"string","description":"What to do next."}
},"required":["calls","waited_out"]},
"annotations":{"title":"Wait for a call","readOnlyHint":true,"openWorldHint":false}}`,

	toolCancel: `,
"title":"Cancel a call",
"description":"Stops a call that still runs, when its result is not needed any more.
+ Of a command, all its processes are stopped.
 What it has done by then may stay done. Use list_calls if you do not know its id.",
"inputSchema":{"type":"object","properties":{
"id":{"type":"string","description":"Id of the call, such as c_k3v…"},
"reason":{"type":"string","maxLength":200,"description":"Why, in a few words, for the record."}
+,"signal":{"type":"string","maxLength":16,"default":"TERM","description":"For a command: the first signal to all its processes, such as INT."},
+"grace_ms":{"type":"integer","minimum":0,"maximum":60000,"description":"For a command: how long its processes have before they are killed."}
},"required":["id"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{
"call_id":{"type":"string"},
"tool":{"type":"string"},
"state":{"type":"string","enum":[STATES]},
"cancelled":{"type":"boolean","description":"The call has ended because it was cancelled."},
+"result":{"type":"object","description":"Of a command: how it ended, and what it printed last."},
"started_at":{"type":"string","format":"date-time"},
"ended_at":{"type":"string","format":"date-time"},
"wall_ms":{"type":"integer"},
"next":{"type":"string","description":"What happened, and what to do next."}
},"required":["call_id","tool","state","cancelled","started_at","wall_ms","next"]},
"annotations":{"title":"Cancel a call","readOnlyHint":false,"destructiveHint":true,"idempotentHint":true,"openWorldHint":false}}`,

	toolList: `,
"title":"List your calls",
"description":"Lists your tool calls, newest first, with those first that have ended while nobody read the result. Use it when you have lost an id, or to see what still runs. It shows neither arguments nor results; await_call gives a result.",
"inputSchema":{"type":"object","properties":{
"state":{"type":"string","enum":["all","running","ended","unread"],"default":"all","description":"Which calls; unread are ended ones whose result nobody got."},
"limit":{"type":"integer","minimum":1,"maximum":100,"default":20}
},"additionalProperties":false},
"outputSchema":{"type":"object","properties":{
"calls":{"type":"array","items":{"type":"object","properties":{
"call_id":{"type":"string"},
"tool":{"type":"string"},
"state":{"type":"string","enum":[STATES]},
"unread":{"type":"boolean"},
"started_at":{"type":"string","format":"date-time"},
"ended_at":{"type":"string","format":"date-time"},
"wall_ms":{"type":"integer"},
"progress":{"type":"string","description":"The last progress message of a running call."}
+,"label":{"type":"string","description":"Of a command: your label."},
+"command_state":{"type":"string","description":"Of a command: running, exited, signaled, timed_out, stopped, start_failed or lost."},
+"exit_code":{"type":"integer","description":"Of a command that has exited."}
},"required":["call_id","tool","state","unread","started_at","wall_ms"]}},
"more":{"type":"boolean","description":"There are more such calls than shown."},
"next":{"type":"string","description":"What to do next."}
},"required":["calls","more"]},
"annotations":{"title":"List your calls","readOnlyHint":true,"openWorldHint":false}}`,
}

const states = `"running","completed","tool_error","failed","cancelled","timed_out","denied","interrupted"`

// ownSchemas are the entries without a shell, shellSchemas those with one.
var ownSchemas, shellSchemas = entries(false), entries(true)

// entries makes one line of each.
func entries(shell bool) map[string][]byte {
	all := make(map[string][]byte, len(ownSources))
	for tool, source := range ownSources {
		var b []byte
		for line := range strings.SplitSeq(strings.ReplaceAll(source, "STATES", states), "\n") {
			line, only := strings.CutPrefix(line, "+")
			if !only || shell {
				b = append(b, line...)
			}
		}
		all[tool] = b
	}
	return all
}

// ownSchema is the entry of a tool of ours.
func (x *exchange) ownSchema(tool string) []byte {
	if x.h.opt.Shell != nil {
		return shellSchemas[tool]
	}
	return ownSchemas[tool]
}
