package auth

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const (
	tokenA = "lc_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	tokenB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestCheck(t *testing.T) {
	a := New(map[string]string{Local: tokenA, "ci": tokenB, "empty": ""})
	tests := []struct {
		header string
		who    string
		status int
		code   string
	}{
		{"Bearer " + tokenA, Local, 0, ""},
		{"bearer " + tokenB, "ci", 0, ""},
		{"BEARER   " + tokenB + " ", "ci", 0, ""},
		{"", "", 401, ""},
		{"  ", "", 401, ""},
		{"Bearer", "", 400, "invalid_request"},
		{"Bearer ", "", 400, "invalid_request"},
		{"Bearer  ", "", 400, "invalid_request"},
		{"Bearer\t" + tokenA, "", 401, ""},
		{tokenA, "", 401, ""},
		{"Basic YTpi", "", 401, ""},
		{"Bearer " + tokenA + " x", "", 400, "invalid_request"},
		{"Bearer " + tokenA + ", Bearer " + tokenB, "", 400, "invalid_request"},
		{"Bearer " + tokenA + "\x00", "", 400, "invalid_request"},
		{"Bearer é" + tokenA, "", 400, "invalid_request"},
		{"Bearer " + strings.Repeat("x", maxHeader+1), "", 400, "invalid_request"},
		{"Bearer " + tokenA[:len(tokenA)-1], "", 401, "invalid_token"},
		{"Bearer " + tokenA + "a", "", 401, "invalid_token"},
		{"Bearer " + strings.ToUpper(tokenA), "", 401, "invalid_token"},
		{"Bearer empty", "", 401, "invalid_token"},
	}
	for _, tt := range tests {
		who, err := a.Check(tt.header)
		if tt.status == 0 {
			if err != nil || who.Name != tt.who {
				t.Errorf("%q: %v, %v", tt.header, who, err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Status != tt.status || e.Code != tt.code || who.Name != "" {
			t.Errorf("%.60q: %v, %#v", tt.header, who, err)
			continue
		}
		if !strings.Contains(e.Text, "Authorization: Bearer TOKEN") || strings.Contains(e.Text, "\n") {
			t.Errorf("%.60q: the text does not say what to do: %s", tt.header, e.Text)
		}
		if strings.Contains(e.Text, tokenA) || !strings.HasPrefix(e.Challenge(), `Bearer realm="longcall"`) || strings.Contains(e.Challenge(), "error=") != (e.Code != "") {
			t.Errorf("%.60q: %s, %s", tt.header, e.Text, e.Challenge())
		}
	}
}

func TestNoTokens(t *testing.T) {
	if who, err := New(nil).Check("Bearer "); err == nil {
		t.Errorf("no tokens let %v in", who)
	}
	if who, err := New(map[string]string{"x": ""}).Check(""); err == nil {
		t.Errorf("an empty token lets %v in", who)
	}
}

func TestNone(t *testing.T) {
	a := None()
	for _, h := range []http.Header{nil, {"Authorization": {"nonsense"}}, {"Authorization": {"a", "b"}}} {
		if who, err := a.CheckHeader(h); err != nil || who.Name != Local {
			t.Errorf("%v: %v, %v", h, who, err)
		}
	}
	if !a.Open() || New(nil).Open() {
		t.Error("Open is wrong")
	}
}

func TestCheckHeader(t *testing.T) {
	a := New(map[string]string{Local: tokenA})
	if who, err := a.CheckHeader(http.Header{"Authorization": {"Bearer " + tokenA}}); err != nil || who.Name != Local {
		t.Errorf("%v, %v", who, err)
	}
	var e *Error
	if _, err := a.CheckHeader(http.Header{"Authorization": {"Bearer " + tokenA, "Bearer " + tokenA}}); !errors.As(err, &e) || e.Status != 400 {
		t.Errorf("two headers: %v", err)
	}
	if _, err := a.CheckHeader(http.Header{}); !errors.As(err, &e) || e.Status != 401 {
		t.Errorf("no header: %v", err)
	}
}

// TestSet: a reload changes who is known while requests are checked.
func TestSet(t *testing.T) {
	a := New(map[string]string{"old": tokenA})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				if who, err := a.Check("Bearer " + tokenA); err == nil && who.Name != "old" && who.Name != "new" {
					t.Errorf("who is %v", who)
				}
			}
		})
	}
	for range 100 {
		a.Set(map[string]string{"new": tokenA})
		a.Set(nil)
	}
	wg.Wait()
	a.Set(map[string]string{"new": tokenA})
	if who, err := a.Check("Bearer " + tokenA); err != nil || who.Name != "new" {
		t.Errorf("%v, %v", who, err)
	}
}

func TestLoadOrCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "longcall serve") {
		t.Errorf("Load of nothing: %v", err)
	}
	token, created, err := LoadOrCreate(dir)
	if err != nil || !created {
		t.Fatalf("%v, %v", created, err)
	}
	if !regexp.MustCompile(`^lc_[A-Za-z0-9_-]{43}$`).MatchString(token) {
		t.Errorf("token of the wrong form (%d bytes)", len(token))
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, tokenFile): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	again, created, err := LoadOrCreate(dir)
	if err != nil || created || again != token {
		t.Errorf("second time: %v, %v, same %v", created, err, again == token)
	}
	if client, err := Load(dir); err != nil || client != token {
		t.Errorf("Load: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestOneToken: of two processes that start at once, one makes the token.
func TestOneToken(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var wg sync.WaitGroup
	tokens, made := map[string]bool{}, 0
	for range 8 {
		wg.Go(func() {
			token, created, err := LoadOrCreate(dir)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if tokens[token] = true; created {
				made++
			}
		})
	}
	wg.Wait()
	if len(tokens) != 1 || made != 1 {
		t.Errorf("%d tokens, made %d times", len(tokens), made)
	}
}

func TestBadTokenFile(t *testing.T) {
	tests := []struct {
		name, text string
		mode       fs.FileMode
		want       string
	}{
		{"group", tokenA, 0o640, "chmod 600"},
		{"world", tokenA, 0o604, "chmod 600"},
		{"writable", tokenA, 0o620, "chmod 600"},
		{"empty", "", 0o600, "remove it"},
		{"short", "hunter2", 0o600, "remove it"},
		{"two", tokenA + "\n" + tokenB, 0o600, "remove it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, tokenFile)
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			token, created, err := LoadOrCreate(dir)
			if err == nil || token != "" || created || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, %v", created, err)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error shows too much: %v", err)
			}
		})
	}
	t.Run("folder", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, tokenFile), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, _, err := LoadOrCreate(dir); err == nil || !strings.Contains(err.Error(), "plain file") {
			t.Error(err)
		}
	})
	t.Run("state is a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := LoadOrCreate(path); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Error(err)
		}
		if _, _, err := LoadOrCreate(filepath.Join(path, "sub")); err == nil {
			t.Error("a folder was made in a file")
		}
	})
	t.Run("unwritable", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root may write everywhere")
		}
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if _, _, err := LoadOrCreate(dir); err == nil || !strings.Contains(err.Error(), "state:") {
			t.Error(err)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	a := New(map[string]string{Local: tokenA, "ci": tokenB})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Check("Bearer " + tokenA); err != nil {
			b.Fatal(err)
		}
	}
}
