package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// batches keeps batches on disk, so that they outlive the process: one small file
// each, readable by the user alone, because commands may hold secrets.
type batches struct {
	dir  string
	keep time.Duration // after the last change; 0 keeps all

	mu     sync.Mutex
	pruned time.Time
}

// pruneEvery is how often old batches are looked for, at most.
const pruneEvery = time.Hour

// openBatches makes the folder, and removes what is too old.
func openBatches(dir string, keep time.Duration) (*batches, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the folder of batches: %w", err)
	}
	b := &batches{dir: dir, keep: keep}
	b.prune()
	return b, nil
}

// prune removes what is too old, unless it did so not long ago. What cannot be
// removed is tried again.
func (b *batches) prune() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keep <= 0 || time.Since(b.pruned) < pruneEvery {
		return
	}
	b.pruned = time.Now()
	list, err := os.ReadDir(b.dir)
	if err != nil {
		return
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > b.keep {
			_ = os.Remove(filepath.Join(b.dir, e.Name()))
		}
	}
}

func (b *batches) file(id call.ID) string { return filepath.Join(b.dir, string(id)+".json") }

// store keeps a batch as it is now. It survives a crash of the process.
func (b *batches) store(id call.ID, v *batch) error {
	b.prune()
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := b.file(id) + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, b.file(id))
}

// load reads a batch.
func (b *batches) load(id call.ID) (*batch, error) {
	if id.Bytes() == nil {
		return nil, os.ErrNotExist
	}
	data, err := os.ReadFile(b.file(id))
	if err != nil {
		return nil, err
	}
	v := &batch{}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("read a batch: %w", err)
	}
	return v, nil
}
