package app

import (
	"context"
	"encoding/json"

	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/journal/sqlite"
)

// sessions shows the journal's sessions to the agents' side.
type sessions struct{ *sqlite.Journal }

func (s sessions) Sessions(ctx context.Context) ([]downstream.StoredSession, error) {
	list, err := s.Journal.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]downstream.StoredSession, len(list))
	for i, v := range list {
		out[i] = downstream.StoredSession{Hash: v.Hash, Principal: v.Principal, Server: v.Server, Version: v.Version, Client: v.Client, Used: v.Used}
		out[i].Level, out[i].Resources, out[i].Data = readSession(v.Data)
	}
	return out, nil
}

func (s sessions) PutSession(v downstream.StoredSession) {
	s.Journal.PutSession(sqlite.Session{
		Hash: v.Hash, Principal: v.Principal, Server: v.Server, Version: v.Version, Client: v.Client,
		Created: v.Used, Used: v.Used, Data: writeSession(v.Level, v.Resources, v.Data),
	})
}

// sessionData is what the journal has of a session beside its columns. Before there
// was anything but the client's capabilities, it had those alone.
type sessionData struct {
	Version      int             `json:"longcall"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	Level        string          `json:"level,omitempty"`
	Resources    []string        `json:"resources,omitempty"`
}

func writeSession(level string, resources []string, caps []byte) []byte {
	if level == "" && resources == nil {
		return caps
	}
	b, err := json.Marshal(sessionData{1, caps, level, resources})
	if err != nil { // the capabilities are no JSON
		return nil
	}
	return b
}

func readSession(data []byte) (level string, resources []string, caps []byte) {
	var d sessionData
	if json.Unmarshal(data, &d) != nil || d.Version == 0 {
		return "", nil, data
	}
	return d.Level, d.Resources, d.Capabilities
}
