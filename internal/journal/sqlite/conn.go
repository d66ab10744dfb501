package sqlite

import (
	"fmt"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	lib "modernc.org/sqlite/lib"
)

// conn is a connection to SQLite without database/sql and its driver between:
// on the path of every call, those two cost more than SQLite itself does. A
// conn and its statements are used by one goroutine at a time.
type conn struct {
	tls *libc.TLS
	db  uintptr
	// arena is C memory that holds the texts and blobs of the statement about
	// to run; SQLite reads them there and keeps nothing (SQLITE_STATIC).
	arena     uintptr
	arenaSize int
	arenaUsed int
	spare     []uintptr // values too large for the arena, freed after the run
	stmts     []*stmt
}

const arenaSize = 16 << 10

// mem turns an address of C memory into a pointer. That memory is not Go's:
// the collector neither moves nor frees it.
func mem(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// open flags: the caller sees to it that no two goroutines share a conn, so
// SQLite's own mutexes are not needed.
const (
	openWriter   = lib.SQLITE_OPEN_READWRITE | lib.SQLITE_OPEN_NOMUTEX | lib.SQLITE_OPEN_EXRESCODE
	openReadOnly = lib.SQLITE_OPEN_READONLY | lib.SQLITE_OPEN_NOMUTEX | lib.SQLITE_OPEN_EXRESCODE
)

func openConn(path string, flags int32) (*conn, error) {
	c := &conn{tls: libc.NewTLS()}
	name, err := libc.CString(path)
	if err != nil {
		c.tls.Close()
		return nil, err
	}
	defer libc.Xfree(c.tls, name)
	c.arenaSize = arenaSize
	if c.arena = libc.Xmalloc(c.tls, arenaSize); c.arena == 0 {
		c.tls.Close()
		return nil, &dbError{code: lib.SQLITE_NOMEM, text: "out of memory"}
	}
	rc := lib.Xsqlite3_open_v2(c.tls, name, c.arena, flags, 0)
	c.db = *(*uintptr)(mem(c.arena))
	if rc != lib.SQLITE_OK {
		err := c.failure(rc)
		c.close()
		return nil, err
	}
	return c, nil
}

// close frees the connection. Its statements must not be in use.
func (c *conn) close() {
	for _, s := range c.stmts {
		lib.Xsqlite3_finalize(c.tls, s.p)
	}
	c.stmts = nil
	if c.db != 0 {
		lib.Xsqlite3_close_v2(c.tls, c.db)
		c.db = 0
	}
	c.freeArena()
	libc.Xfree(c.tls, c.arena)
	c.tls.Close()
}

// dbError is what SQLite said.
type dbError struct {
	code int32 // extended result code
	text string
}

func (e *dbError) Error() string { return fmt.Sprintf("%s (SQLite %d)", e.text, e.code) }

func (c *conn) failure(rc int32) error {
	text := libc.GoString(lib.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 {
		if now := lib.Xsqlite3_extended_errcode(c.tls, c.db); now&0xff == rc&0xff {
			text = libc.GoString(lib.Xsqlite3_errmsg(c.tls, c.db))
		}
	}
	return &dbError{code: rc, text: text}
}

// exec runs statements whose rows, if any, nobody needs.
func (c *conn) exec(sql string) error {
	p, err := libc.CString(sql)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, p)
	if rc := lib.Xsqlite3_exec(c.tls, c.db, p, 0, 0, 0); rc != lib.SQLITE_OK {
		return c.failure(rc)
	}
	return nil
}

// queryInt runs a statement that gives one number.
func (c *conn) queryInt(sql string) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	defer c.drop(s)
	ok, err := s.step()
	if err != nil || !ok {
		return 0, err
	}
	return s.colInt(0), nil
}

// drop frees the statement that was prepared last.
func (c *conn) drop(s *stmt) {
	lib.Xsqlite3_finalize(c.tls, s.p)
	c.stmts = c.stmts[:len(c.stmts)-1]
}

// checkpoint moves pages from the WAL into the database. It gives the frames
// in the WAL and how many of them are in the database now.
func (c *conn) checkpoint(mode int32) (frames, moved int, err error) {
	rc := lib.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0, mode, c.arena, c.arena+4)
	frames, moved = int(*(*int32)(mem(c.arena))), int(*(*int32)(mem(c.arena + 4)))
	if rc != lib.SQLITE_OK {
		return frames, moved, c.failure(rc)
	}
	return frames, moved, nil
}

// onCommit has SQLite note after each commit how many frames the WAL has, as an
// int32 at that address of C memory.
func (c *conn) onCommit(frames uintptr) {
	hook := func(_ *libc.TLS, frames, _, _ uintptr, n int32) int32 {
		*(*int32)(mem(frames)) = n
		return lib.SQLITE_OK
	}
	lib.Xsqlite3_wal_hook(c.tls, c.db, *(*uintptr)(unsafe.Pointer(&struct {
		f func(*libc.TLS, uintptr, uintptr, uintptr, int32) int32
	}{hook})), frames)
}

func (c *conn) changes() int { return int(lib.Xsqlite3_changes(c.tls, c.db)) }

func (c *conn) inTransaction() bool { return lib.Xsqlite3_get_autocommit(c.tls, c.db) == 0 }

// hold copies a value to where SQLite can read it until the statement has run.
func (c *conn) hold(v unsafe.Pointer, n int) uintptr {
	var p uintptr
	if c.arenaUsed+n <= c.arenaSize {
		p = c.arena + uintptr(c.arenaUsed)
		c.arenaUsed += n
	} else {
		if p = libc.Xmalloc(c.tls, types.Size_t(n)); p == 0 {
			return 0
		}
		c.spare = append(c.spare, p)
	}
	copy(unsafe.Slice((*byte)(mem(p)), n), unsafe.Slice((*byte)(v), n))
	return p
}

func (c *conn) freeArena() {
	for _, p := range c.spare {
		libc.Xfree(c.tls, p)
	}
	c.spare = c.spare[:0]
	c.arenaUsed = 0
}

// stmt is a prepared statement. Parameters count from 1, columns from 0.
type stmt struct {
	c *conn
	p uintptr
}

func (c *conn) prepare(sql string) (*stmt, error) {
	text, err := libc.CString(sql)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, text)
	if rc := lib.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, lib.SQLITE_PREPARE_PERSISTENT, c.arena, 0); rc != lib.SQLITE_OK {
		return nil, c.failure(rc)
	}
	s := &stmt{c: c, p: *(*uintptr)(mem(c.arena))}
	c.stmts = append(c.stmts, s)
	return s, nil
}

// prepared is where a statement goes, and its text.
type prepared struct {
	s   **stmt
	sql string
}

func (c *conn) prepareAll(list []prepared) error {
	for _, p := range list {
		s, err := c.prepare(p.sql)
		if err != nil {
			return err
		}
		*p.s = s
	}
	return nil
}

func (s *stmt) int(i int32, v int64) { lib.Xsqlite3_bind_int64(s.c.tls, s.p, i, v) }

func (s *stmt) null(i int32) { lib.Xsqlite3_bind_null(s.c.tls, s.p, i) }

// text binds a string; the empty one as NULL.
func (s *stmt) text(i int32, v string) {
	if v == "" {
		s.null(i)
		return
	}
	lib.Xsqlite3_bind_text(s.c.tls, s.p, i, s.c.hold(unsafe.Pointer(unsafe.StringData(v)), len(v)), int32(len(v)), 0)
}

// bytesAsText binds UTF-8 in bytes; empty as NULL.
func (s *stmt) bytesAsText(i int32, v []byte) {
	if len(v) == 0 {
		s.null(i)
		return
	}
	lib.Xsqlite3_bind_text(s.c.tls, s.p, i, s.c.hold(unsafe.Pointer(unsafe.SliceData(v)), len(v)), int32(len(v)), 0)
}

// blob binds bytes; nil as NULL.
func (s *stmt) blob(i int32, v []byte) {
	switch {
	case v == nil:
		s.null(i)
	case len(v) == 0:
		lib.Xsqlite3_bind_zeroblob(s.c.tls, s.p, i, 0)
	default:
		lib.Xsqlite3_bind_blob(s.c.tls, s.p, i, s.c.hold(unsafe.Pointer(unsafe.SliceData(v)), len(v)), int32(len(v)), 0)
	}
}

// run executes a statement that gives no rows.
func (s *stmt) run() error {
	err := s.again()
	s.c.freeArena()
	return err
}

// again executes a statement that gives no rows, and keeps what is bound to it
// until freeArena.
func (s *stmt) again() error {
	rc := lib.Xsqlite3_step(s.c.tls, s.p)
	var err error
	if rc != lib.SQLITE_DONE && rc != lib.SQLITE_ROW {
		err = s.c.failure(rc)
	}
	lib.Xsqlite3_reset(s.c.tls, s.p)
	return err
}

// step moves to the next row; false after the last, when the statement is
// reset already.
func (s *stmt) step() (bool, error) {
	switch rc := lib.Xsqlite3_step(s.c.tls, s.p); rc {
	case lib.SQLITE_ROW:
		return true, nil
	case lib.SQLITE_DONE:
		s.reset()
		return false, nil
	default:
		err := s.c.failure(rc)
		s.reset()
		return false, err
	}
}

func (s *stmt) reset() {
	lib.Xsqlite3_reset(s.c.tls, s.p)
	s.c.freeArena()
}

func (s *stmt) colInt(i int32) int64 { return lib.Xsqlite3_column_int64(s.c.tls, s.p, i) }

func (s *stmt) colNull(i int32) bool {
	return lib.Xsqlite3_column_type(s.c.tls, s.p, i) == lib.SQLITE_NULL
}

func (s *stmt) colText(i int32) string {
	p := lib.Xsqlite3_column_text(s.c.tls, s.p, i)
	n := lib.Xsqlite3_column_bytes(s.c.tls, s.p, i)
	if p == 0 || n == 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(mem(p)), n))
}

func (s *stmt) colBlob(i int32) []byte {
	if s.colNull(i) {
		return nil
	}
	p := lib.Xsqlite3_column_blob(s.c.tls, s.p, i)
	n := lib.Xsqlite3_column_bytes(s.c.tls, s.p, i)
	b := make([]byte, n)
	if p != 0 {
		copy(b, unsafe.Slice((*byte)(mem(p)), n))
	}
	return b
}
