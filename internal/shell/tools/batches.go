package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// batches keeps batches on disk, so that they outlive the process: one small file
// each, readable by the user alone, because commands may hold secrets.
type batches struct{ dir string }

// openBatches makes the folder, and removes what is older than keep; 0 keeps all.
func openBatches(dir string, keep time.Duration) (*batches, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the folder of batches: %w", err)
	}
	b := &batches{dir: dir}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder of batches: %w", err)
	}
	for _, e := range list {
		if info, err := e.Info(); err == nil && keep > 0 && time.Since(info.ModTime()) > keep {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the next start tries again
		}
	}
	return b, nil
}

func (b *batches) file(id call.ID) string { return filepath.Join(b.dir, string(id)+".json") }

// store keeps a batch as it is now. It survives a crash of the process.
func (b *batches) store(id call.ID, v *batch) error {
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
