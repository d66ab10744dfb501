package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	lib "modernc.org/sqlite/lib"

	"github.com/longcall/longcall/internal/call"
)

// ErrNewer says that the database was written by a newer longcall.
var ErrNewer = errors.New("the journal was written by a newer longcall")

// singleError concerns one op, and no other of its batch.
type singleError struct{ err error }

func (e *singleError) Error() string { return e.err.Error() }
func (e *singleError) Unwrap() error { return e.err }

// single says whether an error concerns one op only: SQLite has undone its
// statement, and the transaction goes on.
func single(err error) bool {
	var db *dbError
	if errors.As(err, &db) {
		switch db.code & 0xff {
		case lib.SQLITE_CONSTRAINT, lib.SQLITE_TOOBIG, lib.SQLITE_MISMATCH:
			return true
		}
		return false
	}
	var one *singleError
	return errors.As(err, &one) || errors.Is(err, call.ErrNotRunning)
}

// passing says whether an error may be gone at the next try, without anything
// in the database being wrong.
func passing(err error) bool {
	var db *dbError
	if !errors.As(err, &db) {
		return true // a file of the blobs folder
	}
	switch db.code & 0xff {
	case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_READONLY, lib.SQLITE_BUSY, lib.SQLITE_LOCKED,
		lib.SQLITE_NOMEM, lib.SQLITE_CANTOPEN, lib.SQLITE_PROTOCOL, lib.SQLITE_INTERRUPT:
		return true
	}
	return false
}

// explain says which journal, and what to do about it.
func (j *Journal) explain(what string, err error) error { return explain(what, j.path, err) }

func explain(what, path string, err error) error {
	if err == nil || errors.Is(err, call.ErrFull) || errors.Is(err, errClosed) {
		return err
	}
	hint := ""
	var db *dbError
	if errors.As(err, &db) {
		switch db.code & 0xff {
		case lib.SQLITE_FULL:
			hint = "the disk is full: free some space, or lower the journal's size limit"
		case lib.SQLITE_READONLY:
			hint = "it is read-only: make the file and its folder writable for this user"
		case lib.SQLITE_CANTOPEN:
			hint = "it cannot be opened: check that its folder exists and that this user may write there"
		case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
			hint = "it is damaged: stop longcall, move the file with its -wal and -shm away, and start again; a new one is made"
		case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
			hint = "another program holds it: close what has it open"
		case lib.SQLITE_IOERR:
			hint = "the disk fails: check it and the system's log"
		}
	} else if errors.Is(err, syscall.ENOSPC) {
		hint = "the disk is full: free some space, or lower the journal's size limit"
	}
	if hint != "" {
		return fmt.Errorf("%s journal %s: %w; %s", what, path, err, hint)
	}
	return fmt.Errorf("%s journal %s: %w", what, path, err)
}
