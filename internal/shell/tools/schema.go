package tools

import (
	"path/filepath"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// The tools by their own names (SHELL §4). Exec and Parallel are calls, the others
// are answered in their own short time.
const (
	Server   = "shell" // whose calls they are
	Exec     = "exec_command"
	Parallel = "run_commands_parallel"
	Read     = "read_output"
	Write    = "write_stdin"
)

// descriptions are what a list says of the tools. Descriptions say when to use a tool,
// in few words: every model reads them in every conversation. Schemas are flat,
// without unions and nulls, because hosts translate them for models that know
// neither. ROOTS stands for the allowed folders.
var descriptions = map[string]string{
	Exec: `,
"title":"Run a command",
"description":"Runs a command with INTERPRETER in a folder. It comes back when the command ends, at the latest after yield_ms: then the command goes on in the background by itself and the result says so. Do not run it again then, do not sleep, do not poll: go on with other work, and call await_call when you need its end. Commands survive a lost connection and a restart. The same command in the same folder that still runs is joined, never started twice. A non-zero exit is no error of this tool: read exit_code. stdin is empty and there is no terminal unless you ask for one: pass flags such as --yes.",
"inputSchema":{"type":"object","properties":{
"command":{"type":"string","minLength":1,"description":"The command, at most 32 KiB. Pipes, && and redirection work. Do not add & or nohup: long commands go to the background by themselves."},
"cwd":{"type":"string","description":"Folder to run in, inside of ROOTS. Default: the first of these; relative paths start there."},
"yield_ms":{"type":"integer","minimum":0,"maximum":12000,"default":3000,"description":"How long to wait for the end; 0 starts it in the background at once."},
"kind":{"type":"string","enum":["job","service"],"default":"job","description":"service: it is not expected to end, such as a dev server."},
"ready_pattern":{"type":"string","maxLength":1024,"description":"RE2 pattern: come back as soon as the output matches, such as listening on"},
"tty":{"type":"boolean","default":false,"description":"Give it a terminal, for programs that insist on one."},
"stdin":{"type":"string","enum":["none","pipe"],"default":"none","description":"pipe: write_stdin can write to it."},
"cols":{"type":"integer","minimum":1,"maximum":1000,"default":120,"description":"Of the terminal."},
"rows":{"type":"integer","minimum":1,"maximum":1000,"default":40},
"timeout_s":{"type":"integer","minimum":1,"maximum":604800,"description":"Stop it after so many seconds. Leave it out unless it could hang."},
"env":{"type":"object","additionalProperties":{"type":"string"},"description":"Variables for it; only names that the operator allows. Others go inside of the command: NAME=value make."},
"if_running":{"type":"string","enum":["join","new","error"],"default":"join","description":"What to do if the same command runs in the same folder."},
"idempotency_key":{"type":"string","minLength":1,"maxLength":256,"description":"Same key, same call: sending it again never runs the command again."},
"max_output_bytes":{"type":"integer","minimum":1,"maximum":262144,"default":30000,"description":"How much output to show; all of it is kept."},
"label":{"type":"string","maxLength":80,"description":"A name for it in lists."}
},"required":["command"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{RESULT},"required":["call_id","state","next"]},
"annotations":{"title":"Run a command","readOnlyHint":false,"destructiveHint":true,"idempotentHint":false,"openWorldHint":true}}`,

	Parallel: `,
"title":"Run several commands",
"description":"Runs up to 8 shell commands, all at once (parallel) or one after the other (sequence: it stops at the first that does not exit 0, and does not start the rest). Each is a command of its own, as with exec_command: it has an id, goes on in the background after yield_ms, and is joined if the same one runs. state is running until all have ended; then succeeded (all exited 0), failed (none did), partial, or unknown (an outcome was lost).",
"inputSchema":{"type":"object","properties":{
"commands":{"type":"array","minItems":1,"maxItems":8,"items":{"type":"object","properties":{
"command":{"type":"string","minLength":1,"description":"The command, at most 32 KiB."},
"cwd":{"type":"string","description":"Folder for this one."},
"timeout_s":{"type":"integer","minimum":1,"maximum":604800},
"label":{"type":"string","maxLength":80}
},"required":["command"],"additionalProperties":false}},
"cwd":{"type":"string","description":"Folder for those that name none, inside of ROOTS. Default: the first of these."},
"mode":{"type":"string","enum":["parallel","sequence"],"default":"parallel"},
"yield_ms":{"type":"integer","minimum":0,"maximum":12000,"default":3000,"description":"How long to wait for all to end; 0 starts them in the background."},
"env":{"type":"object","additionalProperties":{"type":"string"},"description":"Variables for all; only names that the operator allows."},
"if_running":{"type":"string","enum":["join","new","error"],"default":"join","description":"What to do if one of them runs in the same folder; error: if the same batch runs."},
"idempotency_key":{"type":"string","minLength":1,"maxLength":256,"description":"Same key, same call: sending it again never runs them again."},
"max_output_bytes":{"type":"integer","minimum":1,"maximum":262144,"default":30000,"description":"How much output to show of all together; all of it is kept."},
"label":{"type":"string","maxLength":80,"description":"A name for the batch in lists."}
},"required":["commands"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{
"call_id":{"type":"string"},
"state":{"type":"string","enum":["running","succeeded","failed","partial","unknown"]},
"outcome":{"type":"string","enum":[OUTCOMES],"description":"Of the batch as a call; absent while it runs."},
"mode":{"type":"string","enum":["parallel","sequence"]},
"started_at":{"type":"string","format":"date-time"},
"ended_at":{"type":"string","format":"date-time"},
"wall_ms":{"type":"integer"},
"commands":{"type":"array","items":{"type":"object","properties":{
"index":{"type":"integer","description":"From 1, in your order."},
"label":{"type":"string"},
RESULT
},"required":["index","state"]}},
"joined":{"type":"boolean","description":"The same batch ran already; nothing was started."},
"replayed":{"type":"boolean","description":"The result of an earlier run that nobody had got."},
"next":{"type":"string","description":"What to do next."}
},"required":["call_id","state","commands","next"]},
"annotations":{"title":"Run several commands","readOnlyHint":false,"destructiveHint":true,"idempotentHint":false,"openWorldHint":true}}`,

	Read: `,
"title":"Read a command's output",
"description":"Shows output of a command, also while it runs and for days after its end. Reading never takes anything away. Without a cursor: the beginning and the end. With one: what follows, page by page; next_cursor goes on. With grep: only lines that match. It does not wait: for new output, call await_call.",
"inputSchema":{"type":"object","properties":{
"id":{"type":"string","description":"call_id of the command."},
"cursor":{"type":"integer","description":"First byte to show, from 0; below 0 counts from the end."},
"max_bytes":{"type":"integer","minimum":1,"maximum":262144,"default":30000},
"grep":{"type":"string","maxLength":1024,"description":"RE2 pattern: show only lines that match, each with its cursor."},
"context":{"type":"integer","minimum":0,"maximum":50,"default":0,"description":"Lines to show around each match."},
"raw":{"type":"boolean","default":false,"description":"As it was written, with escape codes, every repeated line and long lines whole."}
},"required":["id"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{RESULT},"required":["call_id","state","next"]},
"annotations":{"title":"Read a command's output","readOnlyHint":true,"openWorldHint":false}}`,

	Write: `,
"title":"Write to a command",
"description":"Types into a running command that was started with stdin pipe or tty: first text, then keys, then eof. It waits wait_ms and shows what the command printed since. End lines with \\n, or send the key enter. With none of these it only changes the size of the terminal.",
"inputSchema":{"type":"object","properties":{
"id":{"type":"string","description":"call_id of the command."},
"text":{"type":"string","description":"What to write, at most 64 KiB."},
"keys":{"type":"array","maxItems":64,"items":{"type":"string"},"description":"Keys: KEYS. Without a terminal, ctrl-c interrupts and ctrl-d closes stdin."},
"eof":{"type":"boolean","default":false,"description":"Close stdin."},
"cols":{"type":"integer","minimum":1,"maximum":1000,"description":"New width of the terminal, with rows."},
"rows":{"type":"integer","minimum":1,"maximum":1000},
"wait_ms":{"type":"integer","minimum":0,"maximum":12000,"default":250,"description":"How long to wait for what it prints."},
"idempotency_key":{"type":"string","minLength":1,"maxLength":256,"description":"Same key: it is typed once, however often you send it."}
},"required":["id"],"additionalProperties":false},
"outputSchema":{"type":"object","properties":{RESULT},"required":["call_id","state","next"]},
"annotations":{"title":"Write to a command","readOnlyHint":false,"destructiveHint":true,"idempotentHint":false,"openWorldHint":true}}`,
}

// resultProperties describe a command as results show it (SHELL §4). What does not
// apply is absent, never null.
var resultProperties = strings.ReplaceAll(`
"call_id":{"type":"string","description":"Id of the command, for await_call, read_output, write_stdin and cancel_call."},
"state":{"type":"string","enum":["starting","running","exited","signaled","timed_out","stopped","start_failed","lost","waiting","not_started"],"description":"lost: the outcome is unknown."},
"outcome":{"type":"string","enum":[OUTCOMES],"description":"Absent while it runs. completed: it ended by itself, see exit_code."},
"exit_code":{"type":"integer"},
"signal":{"type":"string"},
"started_at":{"type":"string","format":"date-time"},
"ended_at":{"type":"string","format":"date-time"},
"wall_ms":{"type":"integer"},
"output":{"type":"string","description":"stdout and stderr in order, without escape codes; a marker says what was left out."},
"from_cursor":{"type":"integer","description":"Byte at which output begins."},
"next_cursor":{"type":"integer","description":"Byte to go on from."},
"total_bytes":{"type":"integer","description":"Printed so far."},
"omitted_bytes":{"type":"integer","description":"Left out of output here."},
"evicted_bytes":{"type":"integer","description":"Not kept any more."},
"joined":{"type":"boolean","description":"The same command ran already; nothing was started."},
"replayed":{"type":"boolean","description":"The result of an earlier run that nobody had got."},
"descendants":{"type":"integer","description":"Processes that it started and that still run."},
"waiting_for_input":{"type":"boolean","description":"It seems to wait for input."},
"next":{"type":"string","description":"What to do next."}`, "\n", "")

const outcomes = `"completed","failed","cancelled","timed_out","denied","interrupted"`

// toolOrder is the order of a list: by name, always the same.
var toolOrder = []string{Exec, Read, Parallel, Write}

// entries are the tools as a list shows them.
func (s *Settings) entries() []mcp.Entry {
	inside := func(text string) string { // of a JSON string
		quoted := string(mcp.Quote(text))
		return quoted[1 : len(quoted)-1]
	}
	fill := strings.NewReplacer(
		"RESULT", strings.ReplaceAll(resultProperties, "OUTCOMES", outcomes), "OUTCOMES", outcomes,
		"INTERPRETER", inside(filepath.Base(s.Shell[0])), "ROOTS", inside(s.rootNames()), "KEYS", keyNames,
		"\n", "")
	list := make([]mcp.Entry, 0, len(toolOrder))
	for _, name := range toolOrder {
		list = append(list, mcp.Entry{Name: name, Raw: []byte(`{"name":"` + name + `"` + fill.Replace(descriptions[name]))})
	}
	return list
}
