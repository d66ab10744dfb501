package upstream

import (
	"sync"

	"github.com/longcall/longcall/internal/mcp"
)

// taskBoard is where calls that follow a task wait for word of the server about
// it (notifications/tasks/status). Word is optional and may be lost: it only
// brings the next question forward. The zero value is ready.
type taskBoard struct {
	mu      sync.Mutex
	waiting map[string]chan struct{} // by task id
}

// enter waits for word about a task, until leave.
func (b *taskBoard) enter(id string) (told <-chan struct{}, leave func()) {
	ch := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = map[string]chan struct{}{}
	}
	b.waiting[id] = ch
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.waiting[id] == ch {
			delete(b.waiting, id)
		}
	}
}

// word takes a notification about a task.
func (b *taskBoard) word(m *mcp.Message) {
	id, ok := mcp.String(mcp.Value(m.Params.Of(m.Raw), "taskId"))
	if !ok {
		return
	}
	b.mu.Lock()
	ch := b.waiting[id]
	b.mu.Unlock()
	if ch == nil {
		return
	}
	select {
	case ch <- struct{}{}:
	default:
	}
}
