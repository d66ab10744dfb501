package policy

import "testing"

func TestHandOff(t *testing.T) {
	r := &Rules{HandOff: HandOffOff, Servers: map[string]Server{"s": {
		Overrides: Overrides{HandOff: HandOffTask}, Tools: map[string]Tool{"auto": {Overrides: Overrides{HandOff: HandOffAuto}}},
	}}}
	for _, c := range []struct {
		server, tool string
		may, only    bool
	}{
		{"other", "t", false, false}, {"s", "t", true, true}, {"s", "auto", true, false},
	} {
		if d := r.Admit("p", c.server, c.tool, true); d.HandOff != c.may || d.TaskOnly != c.only {
			t.Errorf("%s %s: HandOff %v, TaskOnly %v", c.server, c.tool, d.HandOff, d.TaskOnly)
		}
	}
}
