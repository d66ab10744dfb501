package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
)

// golden runs fn on every file of an archive and compares with the .out behind it.
func golden(t *testing.T, archive string, fn func(name string, data []byte) string) {
	t.Helper()
	path := filepath.Join("testdata", archive)
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	out := &txtar.Archive{Comment: a.Comment}
	for _, f := range a.Files {
		if strings.HasSuffix(f.Name, ".out") {
			want[strings.TrimSuffix(f.Name, ".out")] = string(f.Data)
		}
	}
	for _, f := range a.Files {
		if strings.HasSuffix(f.Name, ".out") {
			continue
		}
		got := fn(f.Name, f.Data)
		out.Files = append(out.Files, f, txtar.File{Name: f.Name + ".out", Data: []byte(got)})
		if !*update && got != want[f.Name] {
			t.Errorf("%s:\ngot\n%swant\n%s", f.Name, got, want[f.Name])
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestErrors: every error is one line with file, line, column and a hint, all
// errors of a file are told at once, and no credential is in them.
func TestErrors(t *testing.T) {
	golden(t, "errors.txtar", func(name string, data []byte) string {
		_, err := Parse(data, name, env())
		if err == nil {
			t.Errorf("%s: no error", name)
			return ""
		}
		errs, ok := err.(Errors)
		if !ok || len(errs) == 0 {
			t.Fatalf("%s: %T", name, err)
		}
		for _, e := range errs {
			if e.File != name || e.Line < 1 || e.Col < 1 || e.Hint == "" || strings.Contains(e.Error(), "\n") {
				t.Errorf("%s: incomplete: %#v", name, e)
			}
			if lines := bytes.Split(data, []byte("\n")); e.Line > len(lines) || e.Col > utf8.RuneCount(lines[e.Line-1])+1 {
				t.Errorf("%s: there is no such place: %s", name, e)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: a credential shows: %s", name, err)
		}
		return err.Error() + "\n"
	})
}

func TestWarnings(t *testing.T) {
	golden(t, "warnings.txtar", func(name string, data []byte) string {
		c, err := Parse(data, name, env())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var b strings.Builder
		for _, w := range c.Warnings {
			b.WriteString(w.Error() + "\n")
		}
		return b.String()
	})
}

func TestLoad(t *testing.T) {
	c, err := Load("", env())
	if err != nil || c.Listen != "127.0.0.1:8722" || c.State != "/home/ann/.local/state/longcall" {
		t.Errorf("no file: %+v, %v", c, err)
	}
	if _, err = Load("", env("HOME", "")); err == nil || !strings.Contains(err.Error(), "HOME") {
		t.Errorf("no home: %v", err)
	}
	path := filepath.Join(t.TempDir(), "c.yaml")
	if _, err = Load(path, env()); err == nil || strings.Count(err.Error(), path) != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("no such file: %v", err)
	}
	if _, err = Load(filepath.Dir(path), env()); err == nil {
		t.Error("a folder was read")
	}
	for _, data := range [][]byte{{0xff, 0xfe, 'a'}, []byte("a: \"\xff\"")} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err = Load(path, env()); err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%q: %v", data, err)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(maxFile + 1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err = Load(path, env()); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("huge file: %v", err)
	}
}

// TestAliasBomb: what aliases multiply is bounded.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("cors: {origins: &a0 [x,x,x,x,x,x,x,x,x,x]}\nmcpServers:\n")
	b.WriteString("  s0: &s {command: x, tools: &t {")
	for i := range 1000 {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strings.Repeat("t", 1+i%7) + string(rune('a'+i%26)) + "_" + strings.Repeat("z", i/26) + ": {limits: {idle: 1m}}")
	}
	b.WriteString("}}\n")
	for i := range 1000 {
		b.WriteString("  s" + strings.Repeat("a", 1+i%20) + strings.Repeat("b", 1+i/50%20) + strings.Repeat("c", i/1000) + "-" + string(rune('a'+i%26)) + ": *s\n")
	}
	_, err := Parse([]byte(b.String()), "bomb.yaml", env())
	if err == nil {
		t.Fatal("taken")
	}
	if n := len(err.(Errors)); n > 2000 {
		t.Errorf("%d errors", n)
	}
}

// FuzzParse: no input may crash or print more than one line for an error.
func FuzzParse(f *testing.F) {
	for _, archive := range []string{"errors.txtar", "warnings.txtar"} {
		a, err := txtar.ParseFile(filepath.Join("testdata", archive))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			f.Add(file.Data, strings.HasSuffix(file.Name, ".json"))
		}
	}
	f.Add([]byte(Defaults()), false)
	f.Fuzz(func(t *testing.T, data []byte, json bool) {
		name := "c.yaml"
		if json {
			name = "c.json"
		}
		c, err := Parse(data, name, env("TOKEN", "x"))
		if err == nil {
			for _, w := range c.Warnings {
				if strings.ContainsAny(w.Error(), "\n\r") {
					t.Errorf("warning of several lines: %q", w.Error())
				}
			}
			for name, s := range c.Servers {
				if !serverName.MatchString(name) || !s.Disabled && (s.URL == "") == (s.Command == "") {
					t.Errorf("server %q: %+v", name, s)
				}
			}
			return
		}
		errs, ok := err.(Errors)
		if !ok || len(errs) == 0 {
			t.Fatalf("%T %v", err, err)
		}
		if n := len(strings.Split(err.Error(), "\n")); n != len(errs) {
			t.Errorf("%d errors in %d lines", len(errs), n)
		}
	})
}
