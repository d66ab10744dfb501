package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// deliveryLag is how long after a call's end its deliveries are on record, at most.
const deliveryLag = 2 * time.Second

// had says whether a reader's attachment ended so.
func had(list []call.Delivery, how call.How) bool {
	return slices.ContainsFunc(list, func(d call.Delivery) bool { return d.How == how })
}

// owed says whether the call ran, has ended, and nobody got the end: it is kept
// for who asks again. What was denied or cancelled is owed to nobody, and nor is
// what never left: to ask again is to call again.
func owed(r *call.Record, list []call.Delivery) bool {
	switch r.End.Outcome {
	case call.Completed, call.Failed, call.TimedOut, call.Interrupted:
	default:
		return false
	}
	return !r.Dispatched.IsZero() && time.Since(r.Ended) > deliveryLag && !had(list, call.Delivered) && !had(list, call.Replayed)
}

// howWords is how an attachment ended, for people.
func howWords(h call.How) string {
	if h == call.HandedOff {
		return "handed off"
	}
	return clean(string(h))
}

// kindWords is what an attachment was, for people.
func kindWords(kind string) string {
	switch kind {
	case "resume":
		return "a resumed stream"
	case "task":
		return "a task"
	case "await":
		return "await_call"
	}
	return clean(kind)
}

// deliveryWords says what became of a call's readers: that one got the end, if
// one did, that it is owed, if it has ended without, else how the last one left.
func deliveryWords(r *call.Record, list []call.Delivery) string {
	var words []string
	got := slices.IndexFunc(list, func(d call.Delivery) bool { return d.How == call.Delivered })
	if got < 0 {
		got = slices.IndexFunc(list, func(d call.Delivery) bool { return d.How == call.Replayed })
	}
	switch {
	case got >= 0:
		words = append(words, howWords(list[got].How))
		if list[got].Kind == "resume" {
			words = append(words, "resumed")
		}
	case owed(r, list):
		words = append(words, "owed")
	case len(list) == 0:
		return "-"
	default:
		words = append(words, howWords(list[len(list)-1].How))
	}
	if handed := howWords(call.HandedOff); had(list, call.HandedOff) && words[0] != handed {
		words = append(words, handed)
	}
	s := strings.Join(words, ", ")
	if len(list) > 1 {
		s += fmt.Sprintf(" (%d readers)", len(list))
	}
	return s
}

// deliveries are the readers that a call has had.
func (t *timeline) deliveries(list []call.Delivery) {
	w := t.sys.Out
	fmt.Fprintln(w)
	label := "deliveries"
	line := func(s string) {
		fmt.Fprintf(w, "  %-10s  %s\n", label, s)
		label = ""
	}
	ended := !t.rec.Ended.IsZero() && time.Since(t.rec.Ended) > deliveryLag
	switch {
	case owed(t.rec, list):
		line("owed: nobody took the result; who asks for this call, or makes an equal one in time, gets it")
	case len(list) == 0 && ended:
		line("nobody took the result")
	case len(list) == 0:
		line("none yet")
	}
	for _, d := range list {
		s := fmt.Sprintf("%s  by %s, attached %s, first byte after %s, %d events, %s", howWords(d.How), kindWords(d.Kind),
			duration(d.Ended.Sub(d.Attached)), duration(d.FirstByte), d.Events, size(d.Bytes))
		if d.Dropped > 0 {
			s += fmt.Sprintf(", %d events left out", d.Dropped)
		}
		switch d.How {
		case call.HandedOff:
			s += "; the agent was told to ask later"
		case call.Told:
			s += "; that it has ended, on the result of another call, but not with what"
		case call.Asked:
			s += "; the agent was told what the tool asks, and comes back with the answer"
		case call.Replayed:
			s += "; it had asked for an equal call"
		}
		line(s)
	}
}

// shownBody is what may be shown of an event's body. Where a call can be found
// again is between longcall and the tool server, and so is what the tool asked a
// person: of that, the keys are shown.
func shownBody(e *call.Event) []byte {
	switch e.Kind {
	case call.KindAddress:
		return nil
	case call.KindAsk:
		keys, err := json.Marshal(askKeys(e.Body))
		if err != nil {
			return nil // strings always encode
		}
		return keys
	}
	return e.Body
}

// askKeys are the keys of input requests, sorted; never nil.
func askKeys(body []byte) []string {
	var v map[string]json.RawMessage
	_ = json.Unmarshal(body, &v) // of what cannot be read nothing is shown
	return append([]string{}, slices.Sorted(maps.Keys(v))...)
}

// keysText is an event of the kinds ask and answer in one line.
func keysText(e *call.Event) string {
	var keys []string
	if e.Kind == call.KindAsk {
		keys = askKeys(e.Body)
	} else {
		_ = json.Unmarshal(e.Body, &keys)
	}
	slices.Sort(keys)
	names := clean(strings.Join(keys, ", "))
	if e.Kind == call.KindAsk {
		return "the tool waits for input: " + names
	}
	return "input came: " + names
}
