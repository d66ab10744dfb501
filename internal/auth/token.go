package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	tokenFile = "token"
	// minToken is the least length of a token that somebody wrote by hand.
	minToken = 22
)

// LoadOrCreate reads the token of the state folder, or makes the folder and a
// token of 256 random bits, readable by this user alone. Two processes that
// start at once get the same token. A file that others may read is refused:
// its token must be taken for known.
func LoadOrCreate(stateDir string) (token string, created bool, err error) {
	path := filepath.Join(stateDir, tokenFile)
	token, err = load(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, false, err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return "", false, fmt.Errorf("make the state folder %s: %w; make its parent writable, or set state: in the config", stateDir, cause(err))
	}
	created, err = create(path, fresh())
	if err != nil {
		return "", false, fmt.Errorf("write the token file %s: %w; make the state folder writable, or set state: in the config", path, cause(err))
	}
	token, err = load(path)
	return token, created, err
}

// Load reads the token of the state folder, for a client on the same machine.
func Load(stateDir string) (string, error) {
	path := filepath.Join(stateDir, tokenFile)
	token, err := load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no token file %s: start longcall serve once, or name its state folder", path)
	}
	return token, err
}

func fresh() string {
	var b [32]byte
	rand.Read(b[:])
	return "lc_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// create writes the whole file under another name and then links it, so that
// nobody ever reads half a token, and the first of two wins.
func create(path, token string) (bool, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*") // has mode 0600
	if err != nil {
		return false, err
	}
	defer os.Remove(f.Name())
	_, err = io.WriteString(f, token+"\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return false, err
	}
	switch err := os.Link(f.Name(), path); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrExist):
		return false, nil
	}
	// Some file systems have no links. Rename would replace another's token, so
	// the last one wins, which both then read.
	return true, os.Rename(f.Name(), path)
}

func load(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("read the token file %s: %w; it must belong to the user who runs longcall", path, cause(err))
	}
	if err != nil {
		return "", fmt.Errorf("read the token file %s: %w; make its folder usable, or set state: in the config", path, cause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the token file %s: %w", path, cause(err))
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("the token file %s is not a plain file: remove it, and a new one is made", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("the token file %s may be read by others (mode %04o): run chmod 600 %[1]s, or remove it for a new token if others may have read it", path, mode)
	}
	data, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read the token file %s: %w", path, cause(err))
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
		return "", fmt.Errorf("the token file %s does not hold one token of %d or more characters: remove it, and a new one is made", path, minToken)
	}
	return token, nil
}

// cause is a file error without the path, which the message has already.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
