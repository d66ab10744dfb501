package downstream

import (
	"context"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
)

const (
	// taskPause is the shortest time between two notifications about one task,
	// but for its end.
	taskPause = 500 * time.Millisecond
	// sweepPause is the shortest time between two looks at all tasks of a stream.
	sweepPause = 100 * time.Millisecond
)

// watch follows tasks for one stream, which selects on wake and timer, and calls
// soon and sweep. It costs no goroutine, and an idle one no time.
type watch struct {
	modern bool
	wake   chan struct{} // something has happened to one of the tasks
	timer  *time.Timer   // it is time to sweep
	swept  time.Time

	mu    sync.Mutex
	tasks []*watched
	known map[call.ID]bool
}

// watched is one of the tasks, and what was told of it last.
type watched struct {
	call *call.Call
	stop func() // no more wakes
	told taskWords
	last time.Time // when
	late bool      // it may have to be told how the task stands now
}

func newWatch(modern bool) *watch {
	w := &watch{modern: modern, wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour), known: map[call.ID]bool{}}
	w.timer.Stop()
	return w
}

// stop lets go of all tasks.
func (w *watch) stop() {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		t.stop()
	}
	w.tasks = nil
}

// add follows a task: every change from now on is told, and first how it stands,
// if it does not just work. It returns false for one that is there already.
func (w *watch) add(ctx context.Context, c *call.Call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[c.ID()] {
		return false
	}
	w.known[c.ID()] = true
	t := &watched{call: c, stop: c.Notify(w.wake), late: true}
	v := viewTask(ctx, c, w.modern)
	t.told = v.words()
	w.tasks = append(w.tasks, t)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

// soon sets the timer after a wake.
func (w *watch) soon() {
	w.timer.Reset(max(0, time.Until(w.swept.Add(sweepPause))))
}

// sweep tells what has changed. It sets the timer if there is more to tell later.
func (w *watch) sweep(ctx context.Context, tell func(v *taskView)) {
	w.mu.Lock()
	w.swept = time.Now()
	var news []taskView
	var next time.Duration
	later := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	left := w.tasks[:0]
	for _, t := range w.tasks {
		v := viewTask(ctx, t.call, w.modern)
		words := v.words()
		switch {
		case words == t.told && !(t.late && v.status != taskWorking):
			t.late = false
		case v.over() || time.Since(t.last) >= taskPause:
			t.told, t.last, t.late = words, time.Now(), false
			news = append(news, v)
		default:
			later(max(time.Until(t.last.Add(taskPause)), time.Millisecond))
		}
		if v.over() {
			t.stop()
			continue
		}
		if v.elsewhere {
			later(call.LookEvery) // nobody wakes us
		}
		left = append(left, t)
	}
	clear(w.tasks[len(left):])
	w.tasks = left
	w.mu.Unlock()
	if next > 0 {
		w.timer.Reset(max(next, sweepPause))
	}
	for i := range news { // without the lock: a reader may be slow
		tell(&news[i])
	}
}
