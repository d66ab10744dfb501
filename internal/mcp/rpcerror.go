package mcp

import "fmt"

// RPCError is a JSON-RPC error that a server answered with.
type RPCError struct {
	Code int
	Text string
	Data []byte // raw JSON; nil if it has none
}

func (e *RPCError) Error() string { return fmt.Sprintf("tool server error %d: %s", e.Code, e.Text) }

// RPC is the error of a response; nil if it is none.
func (m *Message) RPC() *RPCError {
	raw := m.Error.Of(m.Raw)
	if raw == nil {
		return nil
	}
	e := &RPCError{Code: m.Code, Text: m.ErrText}
	if members, err := Members(raw); err == nil {
		for _, x := range members {
			if x.Name == "data" {
				e.Data = append([]byte(nil), x.Value...)
			}
		}
	}
	return e
}
