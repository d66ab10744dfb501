package sqlite

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Outcomes and deliveries are stored as numbers: their place in these lists.
// Only append.
var (
	outcomes = []call.Outcome{call.Running, call.Completed, call.Failed, call.Cancelled, call.TimedOut, call.Denied, call.Interrupted}
	hows     = []call.How{"", call.Delivered, call.AbortedDownstream, call.HandedOff, call.Replayed, call.Slow, call.ShutDown, call.Asked, call.Told}
)

func number[T comparable](list []T, v T) (int64, error) {
	for i, x := range list {
		if x == v {
			return int64(i), nil
		}
	}
	return 0, fmt.Errorf("%v is no word that the journal knows", v)
}

func word[T any](list []T, n int64) T {
	if n < 0 || n >= int64(len(list)) {
		var none T
		return none
	}
	return list[n]
}

// stamp is a time as microseconds; 0 for the zero time.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func unstamp(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

// appendLimits writes limits as JSON, without those that are not set.
// Durations are microseconds.
func appendLimits(b []byte, l call.Limits) []byte {
	if l == (call.Limits{}) {
		return b
	}
	start := len(b)
	add := func(name string, v int64) {
		if v == 0 {
			return
		}
		c := byte(',')
		if len(b) == start {
			c = '{'
		}
		b = append(append(append(b, c, '"'), name...), '"', ':')
		b = strconv.AppendInt(b, v, 10)
	}
	add("connect", l.Connect.Microseconds())
	add("first_byte", l.FirstByte.Microseconds())
	add("idle", l.Idle.Microseconds())
	add("total", l.Total.Microseconds())
	add("answer", l.Answer.Microseconds())
	add("message", l.Message)
	add("call", l.Call)
	add("per_server", int64(l.PerServer))
	add("per_principal", int64(l.PerPrincipal))
	if len(b) == start {
		return b
	}
	return append(b, '}')
}

func parseLimits(s string) (l call.Limits, err error) {
	if s == "" {
		return l, nil
	}
	var v struct {
		Connect      int64 `json:"connect"`
		FirstByte    int64 `json:"first_byte"`
		Idle         int64 `json:"idle"`
		Total        int64 `json:"total"`
		Answer       int64 `json:"answer"`
		Message      int64 `json:"message"`
		Call         int64 `json:"call"`
		PerServer    int   `json:"per_server"`
		PerPrincipal int   `json:"per_principal"`
	}
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return l, fmt.Errorf("read limits: %w", err)
	}
	return call.Limits{
		Connect:   time.Duration(v.Connect) * time.Microsecond,
		FirstByte: time.Duration(v.FirstByte) * time.Microsecond,
		Idle:      time.Duration(v.Idle) * time.Microsecond,
		Total:     time.Duration(v.Total) * time.Microsecond,
		Answer:    time.Duration(v.Answer) * time.Microsecond,
		Message:   v.Message, Call: v.Call, PerServer: v.PerServer, PerPrincipal: v.PerPrincipal,
	}, nil
}
