package app

import (
	"context"

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
		out[i] = downstream.StoredSession{
			Hash: v.Hash, Principal: v.Principal, Server: v.Server, Version: v.Version, Client: v.Client, Used: v.Used, Data: v.Data,
		}
	}
	return out, nil
}

func (s sessions) PutSession(v downstream.StoredSession) {
	s.Journal.PutSession(sqlite.Session{
		Hash: v.Hash, Principal: v.Principal, Server: v.Server, Version: v.Version, Client: v.Client,
		Created: v.Used, Used: v.Used, Data: v.Data,
	})
}
