package shell

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const sweepEvery = time.Hour

// finished is called when nothing of a process can change any more.
func (m *Manager) finished(p *Process) {
	if m.ctx.Err() != nil {
		return
	}
	p.finish()
	if _, err := os.Stat(filepath.Join(p.dir, exitFile)); errors.Is(err, fs.ErrNotExist) {
		// The shim could not store it: the next manager would call it Lost.
		p.mu.Lock()
		s := p.snap
		p.mu.Unlock()
		if err := store(p.dir, exitFile, s, true); err != nil {
			m.log.Error("the end of a process cannot be stored", "process_id", p.id, "error", err)
		}
	}
	m.mu.Lock()
	m.kept += outputSize(p.dir)
	full := m.kept > m.opts.SpoolTotal
	m.mu.Unlock()
	if full {
		select {
		case m.swept <- struct{}{}:
		default:
		}
	}
}

// sweepLoop removes what was kept long enough, now, every hour, and when there
// is too much of it.
func (m *Manager) sweepLoop() {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		m.sweep(time.Now())
		select {
		case <-t.C:
		case <-m.swept:
		case <-m.ctx.Done():
			return
		}
	}
}

// sweep removes processes that ended before Keep, and then the output, never
// the record, of those that ended first until what is kept is within
// SpoolTotal. Nothing of a process that may still run is touched (SHELL §6).
func (m *Manager) sweep(now time.Time) {
	type ended struct {
		id   string
		at   time.Time
		size int64
	}
	names, err := os.ReadDir(m.opts.Dir)
	if err != nil {
		m.log.Error("the process folders cannot be read", "error", err)
		return
	}
	var list []ended
	total := int64(0)
	for _, e := range names {
		id, dir := e.Name(), filepath.Join(m.opts.Dir, e.Name())
		if m.ctx.Err() != nil {
			return
		}
		if !e.IsDir() || !validID(id) {
			continue
		}
		m.mu.Lock()
		p := m.procs[id]
		m.mu.Unlock()
		if p != nil && !p.over() {
			continue
		}
		lock, _ := lockFolder(dir)
		if lock == nil {
			continue
		}
		lock.Close()
		info, err := os.Stat(filepath.Join(dir, exitFile))
		if err != nil { // nothing came of it
			info, err = os.Stat(filepath.Join(dir, lockFile))
		}
		if err != nil {
			continue
		}
		if now.Sub(info.ModTime()) > m.opts.Keep {
			m.mu.Lock()
			delete(m.procs, id)
			m.mu.Unlock()
			os.RemoveAll(dir)
			continue
		}
		size := outputSize(dir)
		list = append(list, ended{id, info.ModTime(), size})
		total += size
	}
	slices.SortFunc(list, func(a, b ended) int { return a.at.Compare(b.at) })
	for _, e := range list {
		if total <= m.opts.SpoolTotal {
			break
		}
		removeOutput(filepath.Join(m.opts.Dir, e.id))
		total -= e.size
	}
	m.mu.Lock()
	m.kept = total
	m.mu.Unlock()
}

// outputFiles are spool's.
func outputFiles(dir string) []os.DirEntry {
	names, _ := os.ReadDir(dir)
	return slices.DeleteFunc(names, func(e os.DirEntry) bool { return !strings.HasPrefix(e.Name(), "out.") })
}

func outputSize(dir string) (n int64) {
	for _, e := range outputFiles(dir) {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}

func removeOutput(dir string) {
	for _, e := range outputFiles(dir) {
		os.Remove(filepath.Join(dir, e.Name()))
	}
}
