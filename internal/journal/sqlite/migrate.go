package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the driver that goose uses
)

//go:embed migrations/*.sql
var migrations embed.FS

// schema is the version that this code reads and writes: the number of the
// last file in migrations, which sets it as PRAGMA user_version.
const schema = 3

// checkSchema gives the version of a database, 0 for an empty one, and fails
// if it is newer than this code.
func checkSchema(path string, flags int32) (int64, error) {
	c, err := openConn(path, flags)
	if err != nil {
		return 0, explain("open", path, err)
	}
	defer c.close()
	if err := c.exec("PRAGMA busy_timeout = 2000"); err != nil {
		return 0, explain("open", path, err)
	}
	version, err := c.queryInt("PRAGMA user_version")
	if err != nil {
		return 0, explain("open", path, err)
	}
	if version > schema {
		return version, fmt.Errorf("open journal %s: %w (schema %d, this one knows %d): install that version or newer, or choose another state folder", path, ErrNewer, version, schema)
	}
	return version, nil
}

// migrate brings the database to the current schema.
func migrate(ctx context.Context, path string) error {
	version, err := checkSchema(path, openWriter)
	if err != nil || version == schema {
		return err
	}
	// auto_vacuum must be set before the first table is made.
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.ToSlash(path)}).EscapedPath()+"?_pragma=busy_timeout(2000)&_pragma=page_size(4096)&_pragma=auto_vacuum(2)&_pragma=journal_mode(wal)")
	if err != nil {
		return explain("open", path, err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return explain("migrate", path, err)
	}
	if _, err := p.Up(ctx); err != nil {
		return explain("migrate", path, err)
	}
	return nil
}
