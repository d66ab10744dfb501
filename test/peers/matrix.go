package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Step is one thing that a client does, on the connection of its plan.
type Step struct {
	Do     string          `json:"do"` // progress, elicit, sample, subscribe, cancel, change, call
	Tool   string          `json:"tool,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	URI    string          `json:"uri,omitempty"`     // of subscribe
	What   string          `json:"what,omitempty"`    // of change: prompts, tools or resources
	WaitMS int             `json:"wait_ms,omitempty"` // how long for what the server says of itself; 5000 if 0
}

// Did is what came of a step, as the client tells it.
type Did struct {
	Do       string
	Text     string
	IsError  bool
	Error    string // what the SDK said to its caller
	Cannot   string // why the SDK cannot do such a step
	Progress []float64
	Asked    []string
	Updated  string
	Changed  bool
	Names    []string
}

// Feature is a column of the matrix.
type Feature string

// The features, in the order of a plan.
const (
	ToolProgress Feature = "tool with progress"
	Elicitation  Feature = "elicitation"
	Sampling     Feature = "sampling"
	Subscription Feature = "resource subscription"
	Cancel       Feature = "cancel"
	ListChange   Feature = "list change"
)

// Features are all of them.
var Features = []Feature{ToolProgress, Elicitation, Sampling, Subscription, Cancel, ListChange}

// Trial is how a server shows a feature to a client.
type Trial struct {
	Feature Feature
	Step    Step
	// Want says what is wrong with what came of the step; nil if nothing is.
	Want func(Did) error
}

// Trials are what the server can be asked for, by a client that no other has the key
// of. A feature that is neither among them nor Apart the server does not have.
func (s Server) Trials(key string) []Trial {
	switch {
	case s.Ours:
		return ours(key)
	case s.Name == "everything":
		return everythingTrials(key)
	}
	return oldEverythingTrials(s.Name == "everything-path-b")
}

// ours are the trials of the servers on an SDK.
func ours(key string) []Trial {
	text := textArgs(key)
	uri := "note:///" + key
	return []Trial{
		{ToolProgress, Step{Do: "progress", Tool: "slow", Args: json.RawMessage(`{"duration_ms":300,"steps":3}`)}, stepsOf("slow finished 3 steps", 3)},
		{Elicitation, Step{Do: "elicit", Tool: "elicit", Args: text}, answered("accept Ada", key)},
		{Sampling, Step{Do: "sample", Tool: "sample", Args: text}, answered("sampled 42", key)},
		{Subscription, Step{Do: "subscribe", URI: uri, Tool: "touch", Args: textArgs(uri)}, updated(uri)},
		{Cancel, Step{Do: "cancel", Tool: "wait", Args: text}, cancelled},
		{ListChange, Step{Do: "change", What: "prompts", Tool: "grow", Args: text}, grown(key)},
	}
}

// Waited is a step that asks one of our servers what became of the wait of a key, and
// any other for an echo: what a client says of its cancel has to leave before it ends.
func (s Server) Waited(key string) Step {
	if s.Ours {
		return Step{Do: "call", Tool: "waited", Args: textArgs(key)}
	}
	return Step{Do: "call", Tool: "echo", Args: json.RawMessage(`{"message":"still here"}`)}
}

// everythingTrials are those of the reference server.
func everythingTrials(key string) []Trial {
	uri := "demo://resource/dynamic/text/1"
	return []Trial{
		{ToolProgress, Step{Do: "progress", Tool: "trigger-long-running-operation", Args: json.RawMessage(`{"duration":1,"steps":3}`)}, stepsOf("Long running operation completed. Duration: 1 seconds, Steps: 3.", 3)},
		{Elicitation, Step{Do: "elicit", Tool: "trigger-elicitation-request", Args: json.RawMessage(`{}`)}, answered("- Name: Ada\n", "Please provide inputs for the following fields:")},
		{Sampling, Step{Do: "sample", Tool: "trigger-sampling-request", Args: json.RawMessage(`{"prompt":"A number?","maxTokens":10}`)}, answered(`"text": "42"`, "A number?")},
		{Subscription, Step{Do: "subscribe", URI: uri, Tool: "toggle-subscriber-updates", Args: json.RawMessage(`{}`)}, updated(uri)},
		{Cancel, Step{Do: "cancel", Tool: "trigger-long-running-operation", Args: json.RawMessage(`{"duration":120,"steps":400}`)}, cancelled},
		{ListChange, Step{Do: "change", What: "resources", Tool: "gzip-file-as-resource", Args: json.RawMessage(fmt.Sprintf(`{"name":%q,"data":"data:text/plain,longcall"}`, key))}, grown(key)},
	}
}

// Apart is a trial of a server that takes long, or upsets what follows; it is done
// alone. The reference server in 2025 says every 5 s or 10 s that a resource was
// updated, and asks the client's model when it is subscribed to.
func (s Server) Apart() (Trial, bool) {
	if s.Ours || s.Name == "everything" {
		return Trial{}, false
	}
	uri := "test://static/resource/1"
	return Trial{Subscription, Step{Do: "subscribe", URI: uri, WaitMS: 12000}, updated(uri)}, true
}

// oldEverythingTrials are those of the reference server in 2025, whose lists do not
// change, and which has no question for a user before that came to be.
func oldEverythingTrials(elicits bool) []Trial {
	all := []Trial{
		{ToolProgress, Step{Do: "progress", Tool: "longRunningOperation", Args: json.RawMessage(`{"duration":1,"steps":3}`)}, stepsOf("Long running operation completed. Duration: 1 seconds, Steps: 3.", 3)},
		{Elicitation, Step{Do: "elicit", Tool: "startElicitation", Args: json.RawMessage(`{}`)}, answered(`"name": "Ada"`, "What are your favorite things?")},
		{Sampling, Step{Do: "sample", Tool: "sampleLLM", Args: json.RawMessage(`{"prompt":"A number?","maxTokens":10}`)}, answered("LLM sampling result: 42", "A number?")},
		{Cancel, Step{Do: "cancel", Tool: "longRunningOperation", Args: json.RawMessage(`{"duration":120,"steps":400}`)}, cancelled},
	}
	if !elicits {
		all = slices.Delete(all, 1, 2)
	}
	return all
}

func textArgs(text string) json.RawMessage {
	b, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		panic(err)
	}
	return b
}

// went says what is wrong with a call that should have given a result.
func went(d Did) error {
	switch {
	case d.Error != "":
		return fmt.Errorf("it failed: %s", d.Error)
	case d.IsError:
		return fmt.Errorf("the tool says: %s", d.Text)
	}
	return nil
}

func stepsOf(text string, n int) func(Did) error {
	return func(d Did) error {
		var want []float64
		for i := range n {
			want = append(want, float64(i+1))
		}
		if err := went(d); err != nil {
			return err
		}
		// longcall's own, which says that a tool that is silent for 10 s still runs, stays below.
		got := slices.DeleteFunc(slices.Clone(d.Progress), func(v float64) bool { return v < 0.001 })
		if d.Text != text || !slices.Equal(got, want) {
			return fmt.Errorf("the result is %q, after %v", d.Text, d.Progress)
		}
		return nil
	}
}

func answered(text, question string) func(Did) error {
	return func(d Did) error {
		if err := went(d); err != nil {
			return err
		}
		if !strings.Contains(d.Text, text) || len(d.Asked) != 1 || !strings.Contains(d.Asked[0], question) {
			return fmt.Errorf("the result is %q, after the questions %q", d.Text, d.Asked)
		}
		return nil
	}
}

func updated(uri string) func(Did) error {
	return func(d Did) error {
		if err := went(d); err != nil {
			return err
		}
		if d.Updated != uri {
			return fmt.Errorf("updated: %q", d.Updated)
		}
		return nil
	}
}

func cancelled(d Did) error {
	if d.Error == "" {
		return fmt.Errorf("the SDK gave its caller %q", d.Text)
	}
	return nil
}

func grown(name string) func(Did) error {
	return func(d Did) error {
		if err := went(d); err != nil {
			return err
		}
		if !d.Changed || !slices.ContainsFunc(d.Names, func(n string) bool { return strings.Contains(n, name) }) {
			return fmt.Errorf("changed: %v, and the list is %q", d.Changed, d.Names)
		}
		return nil
	}
}
