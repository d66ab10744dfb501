//go:build unix

package hosts_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/longcall/longcall/test/hosts"
)

// TestModel checks the scripted model without a host: in each API it asks for
// the tool, awaits the call that a result says is still running, and then says
// what the tool gave.
func TestModel(t *testing.T) {
	type o = map[string]any
	const (
		result = "it has finished"
		call   = "c_abcdefghijklmnopqrstuvwxyz"
		later  = "Still running after 3 s: slow (call " + call + ")."
	)
	for name, c := range map[string]struct {
		path  string
		first o
		then  func(results ...string) o
		ask   string
	}{
		"anthropic": {
			"/v1/messages",
			o{"stream": true, "tools": []o{{"name": "mcp__slow__slow"}, {"name": "mcp__slow__await_call"}}},
			func(results ...string) o {
				var all []o
				for _, r := range results {
					all = append(all, o{"role": "user", "content": []o{{"type": "tool_result", "content": r}}})
				}
				return o{"messages": all}
			},
			`"tool_use"`,
		},
		"responses": {
			"/v1/responses",
			o{"tools": []o{{"type": "namespace", "name": "mcp__slow", "tools": []o{{"name": "slow"}, {"name": "await_call"}}}}},
			func(results ...string) o {
				var all []o
				for _, r := range results {
					all = append(all, o{"type": "function_call_output", "output": r})
				}
				return o{"input": all}
			},
			`"function_call"`,
		},
		"chat": {
			"/v1/chat/completions",
			o{"stream": true, "tools": []o{{"function": o{"name": "slow_slow"}}, {"function": o{"name": "slow_await_call"}}}},
			func(results ...string) o {
				var all []o
				for _, r := range results {
					all = append(all, o{"role": "tool", "content": r})
				}
				return o{"messages": all}
			},
			`"tool_calls"`,
		},
		"gemini": {
			"/v1beta/models/m:streamGenerateContent",
			o{"tools": []o{{"functionDeclarations": []o{{"name": "mcp_slow_slow"}, {"name": "mcp_slow_await_call"}}}}},
			func(results ...string) o {
				var all []o
				for _, r := range results {
					all = append(all, o{"parts": []o{{"functionResponse": o{"response": o{"output": r}}}}})
				}
				return o{"contents": all}
			},
			`"functionCall"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := hosts.NewModel(t)
			if got := post(t, m.URL+c.path, c.first); !strings.Contains(got, c.ask) {
				t.Errorf("it does not ask for the tool: %s", got)
			}
			say := func(results ...string) string {
				body := c.then(results...)
				body["tools"] = c.first["tools"]
				return post(t, m.URL+c.path, body)
			}
			if got := say(later); !strings.Contains(got, c.ask) || !strings.Contains(got, "await_call") || !strings.Contains(got, call) {
				t.Errorf("it does not await the call: %s", got)
			}
			if got := say(later, result); !strings.Contains(got, "The tool said: ") {
				t.Errorf("it does not say what the tool gave: %s", got)
			}
			if r := m.Results(); len(r) != 2 || !strings.Contains(r[1], result) {
				t.Errorf("it was given %q", r)
			}
			post(t, m.URL+"/elsewhere", o{})
			if u := m.Unknown(); len(u) != 1 {
				t.Errorf("it did not know %q", u)
			}
		})
	}
}

func post(t *testing.T, url string, body any) string {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
