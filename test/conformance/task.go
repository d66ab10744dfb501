//go:build unix

package conformance

import (
	"net/http"
	"sync"
	"time"
)

const (
	pollEvery = 100 * time.Millisecond
	keep      = time.Hour
)

// task is one run of a tool, which a client polls.
type task struct {
	id   string
	born time.Time

	mu        sync.Mutex
	changed   time.Time
	status    string
	result    object
	failure   *fault
	asked     map[string]object // what waits for an answer, by key
	answers   map[string]object
	answered  chan struct{} // has a token after each answer
	cancelled chan struct{} // closed by a cancel
}

func newTask(id string) *task {
	now := time.Now()
	return &task{
		id: id, born: now, changed: now, status: "working",
		asked: map[string]object{}, answers: map[string]object{}, answered: make(chan struct{}, 1), cancelled: make(chan struct{}),
	}
}

func (t *task) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.terminal()
}

// terminal is ended; t.mu is held.
func (t *task) terminal() bool {
	return t.status == "completed" || t.status == "failed" || t.status == "cancelled"
}

// set changes the status, unless the task has ended.
func (t *task) set(status string, change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.terminal() {
		return
	}
	t.status, t.changed = status, time.Now()
	if change != nil {
		change()
	}
}

func (t *task) complete(result object) { t.set("completed", func() { t.result = result }) }

func (t *task) fail(f *fault) { t.set("failed", func() { t.failure = f }) }

// envelope is what every message about the task says; t.mu is held.
func (t *task) envelope() object {
	return object{
		"taskId": t.id, "status": t.status, "createdAt": stamp(t.born), "lastUpdatedAt": stamp(t.changed),
		"ttlMs": keep.Milliseconds(), "pollIntervalMs": pollEvery.Milliseconds(),
	}
}

// created is the answer to the call that made the task.
func (t *task) created() object {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.envelope()
	o["resultType"] = "task"
	return o
}

// get is the answer to tasks/get.
func (t *task) get() object {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.envelope()
	switch {
	case t.failure != nil:
		o["error"] = t.failure
	case t.result != nil:
		o["result"] = t.result
	case len(t.asked) > 0:
		asked := object{}
		for key, ask := range t.asked {
			asked[key] = ask
		}
		o["inputRequests"] = asked
	}
	return o
}

// outcome is what the tool gave, as a plain call gets it.
func (t *task) outcome() (object, *fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.result == nil && t.failure == nil {
		return nil, &fault{status: http.StatusOK, Code: codeInternal, Message: "the server stops"}
	}
	return t.result, t.failure
}

// cancel ends the task as cancelled, if it runs.
func (t *task) cancel() {
	t.set("cancelled", func() {
		t.asked = nil
		close(t.cancelled)
	})
}

// answer takes the answers to what is asked; it ignores others.
func (t *task) answer(responses map[string]object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, response := range responses {
		if t.asked[key] == nil {
			continue
		}
		delete(t.asked, key)
		t.answers[key], t.changed = response, time.Now()
	}
	if t.status == "input_required" && len(t.asked) == 0 {
		t.status = "working"
		t.answered <- struct{}{} // has room: it is asked once
	}
}

// ask asks for input and waits for all of it; false says that the task was
// cancelled, or its server has ended.
func (t *task) ask(requests map[string]object, stop <-chan struct{}) bool {
	t.set("input_required", func() { t.asked = requests })
	select {
	case <-t.answered:
		return true
	case <-t.cancelled:
	case <-stop:
	}
	return false
}

// wait works for a while; false is as of ask.
func (t *task) wait(d time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.cancelled:
	case <-stop:
	}
	return false
}
