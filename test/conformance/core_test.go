package conformance_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/longcall/longcall/test/conformance"
	"github.com/longcall/longcall/test/peers"
)

// server is one that the suite runs against.
type server struct {
	name   string
	start  func(t *testing.T) (legacy, modern string) // URLs; empty for an era that it does not speak
	passes map[string]int                             // by revision, how many scenarios pass directly
	// lost are the scenarios that an agent of one era cannot pass with this server in
	// the other, by the agent's revision, each with its reason. One that passes must
	// not be here.
	lost map[string]map[string]string
	// unsure are those whose outcome through longcall is one of chance, and why.
	unsure map[string]string
}

const asksBySession = "its tool asks by a request, which its stateless mode does not have: it fails there for every client"

var servers = []server{
	{
		name: "go",
		start: func(t *testing.T) (legacy, modern string) {
			return conformance.StartEverything(t, false), conformance.StartEverything(t, true)
		},
		passes: map[string]int{conformance.Legacy: 32, conformance.Modern: 40},
		lost: map[string]map[string]string{
			conformance.Legacy: {
				"tools-call-sampling":          asksBySession,
				"tools-call-elicitation":       asksBySession,
				"elicitation-sep1034-defaults": asksBySession,
				"elicitation-sep1330-enums":    asksBySession,
			},
			conformance.Modern: {
				"input-required-result-basic-elicitation":   "wants the key user_name: a request of a session has no key, so it gets one of ours",
				"input-required-result-ignore-extra-params": "answers the key user_name in its first request: a session server is asked first, and its request has no key",
				"input-required-result-multi-round":         "with sessions the SDK asks one round only, and ends the call with the second question in its result",
			},
		},
	},
	{
		name: "everything",
		start: func(t *testing.T) (legacy, modern string) {
			return peers.Find("everything").Start(t, peers.Legacy), ""
		},
		passes: map[string]int{conformance.Legacy: 11},
		unsure: map[string]string{
			"tools-list": "the server adds a tool to a session 350 ms after it began: of two lists within that time the suite warns that it cannot compare them",
		},
	},
}

// TestCore runs the suite's scenarios of both revisions against servers that nobody
// here wrote, directly and through longcall in all four quadrants: what passes
// directly passes through longcall, and what does not cross the eras has a reason.
func TestCore(t *testing.T) {
	dir := conformance.Install(t)
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			legacy, modern := s.start(t)
			config := fmt.Sprintf("attach: never\nmcpServers:\n  legacy: {url: %q, era: legacy}\n", legacy)
			if modern != "" {
				config += fmt.Sprintf("  modern: {url: %q, era: modern}\n", modern)
			}
			gw := peers.StartLongcall(t, config)
			direct := map[string]map[string]conformance.Outcome{}
			for revision, url := range map[string]string{conformance.Legacy: legacy, conformance.Modern: modern} {
				if url == "" {
					continue
				}
				direct[revision] = conformance.Core(t, dir, url, revision)
				if n := passed(direct[revision]); n != s.passes[revision] {
					t.Errorf("%d of %d scenarios of %s pass directly, not %d: %v", n, len(direct[revision]), revision, s.passes[revision], failing(direct[revision]))
				}
			}
			if modern == "" {
				direct[conformance.Modern] = direct[conformance.Legacy] // those that both have
			}
			for _, revision := range []string{conformance.Legacy, conformance.Modern} {
				for era, own := range map[string]string{"legacy": conformance.Legacy, "modern": conformance.Modern} {
					if era == "modern" && modern == "" {
						continue
					}
					lost := s.lost[revision]
					if revision == own {
						lost = nil
					}
					t.Run(revision+"-to-"+era, func(t *testing.T) {
						t.Parallel()
						compare(t, direct[revision], conformance.Core(t, dir, gw.URL(era), revision), lost, s.unsure)
					})
				}
			}
		})
	}
}

// compare holds what passes directly against what passes through longcall.
func compare(t *testing.T, direct, through map[string]conformance.Outcome, lost, unsure map[string]string) {
	t.Helper()
	missing := 0
	for name, o := range direct {
		got, run := through[name]
		reason, listed := lost[name]
		switch {
		case !o.Passed() || !run:
		case got.Passed() && listed:
			t.Errorf("%s passes: take it off the list (%s)", name, reason)
		case listed:
			missing++
			t.Logf("%s is lost: %s", name, reason)
		case !got.Passed() && unsure[name] != "":
			t.Logf("%s does not pass: %s", name, unsure[name])
		case !got.Passed():
			t.Errorf("%s passes directly, and not through longcall:\n%s", name, strings.Join(got.Failures(), "\n"))
		}
	}
	if missing != len(lost) {
		t.Errorf("%d of the %d that are listed as lost were run", missing, len(lost))
	}
	t.Logf("of %d scenarios %d pass, %d lost with a reason; not: %v", len(through), passed(through), missing, failing(through))
}

// failing are the names of the scenarios that did not pass.
func failing(all map[string]conformance.Outcome) (names []string) {
	for name, o := range all {
		if !o.Passed() {
			names = append(names, name)
		}
	}
	return names
}
