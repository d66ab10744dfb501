package mcp

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// progressMessage is what the data path carries most: about 250 bytes.
const progressMessage = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p_4mzq2tv7","progress":41.5,"total":100,"message":"compiled internal/downstream/http.go, 41 of 100 packages, about twelve seconds to go, no errors so far"}}`

// resultMessage is a tools/call result with one text of about size bytes.
func resultMessage(size int, line string) []byte {
	text := Quote(strings.Repeat(line, size/len(line)))
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":%s}],"isError":false}}`, text)
}

func BenchmarkParse(b *testing.B) {
	call := `{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"build","arguments":{"target":"all","jobs":4},"_meta":{"progressToken":1}}}`
	deep := `{"jsonrpc":"2.0","id":1,"result":{"content":[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"row","n":12345},`, 26000), ",") + `]}}`
	for _, c := range []struct {
		name string
		raw  []byte
	}{
		{"progress", []byte(progressMessage)},
		{"call", []byte(call)},
		{"1MiB-plain", resultMessage(1<<20, "the quick brown fox jumps over the lazy dog. ")},
		{"1MiB-lines", resultMessage(1<<20, "internal/mcp/parse.go:17: all \"good\" & <well>\n")},
		{"1MiB-umlauts", resultMessage(1<<20, "Größe é€🙂 ")},
		{"1MiB-objects", []byte(deep)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(c.raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// loop gives one stream over and over.
type loop struct {
	data []byte
	at   int
	max  int // bytes per read
}

func (l *loop) Read(p []byte) (int, error) {
	if l.at == len(l.data) {
		l.at = 0
	}
	n := copy(p[:min(len(p), l.max)], l.data[l.at:])
	l.at += n
	return n, nil
}

func BenchmarkSSEReader(b *testing.B) {
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"progress", []byte(progressMessage)},
		{"1MiB", resultMessage(1<<20, "the quick brown fox jumps over the lazy dog.\n")},
	} {
		b.Run(c.name, func(b *testing.B) {
			event := AppendSSE(nil, "", "message", c.data)
			r := NewSSEReader(&loop{data: event, max: 32 << 10}, 16<<20)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				if e, err := r.Next(); err != nil || len(e.Data) != len(c.data) {
					b.Fatal(len(e.Data), err)
				}
			}
		})
	}
}

func BenchmarkLineReader(b *testing.B) {
	line := []byte(progressMessage + "\n")
	r := NewLineReader(&loop{data: line, max: 32 << 10}, 16<<20)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if l, err := r.Next(); err != nil || len(l) != len(line)-1 {
			b.Fatal(len(l), err)
		}
	}
}

func BenchmarkAppendSSE(b *testing.B) {
	m, err := Parse([]byte(progressMessage))
	if err != nil {
		b.Fatal(err)
	}
	body, hole := m.WithHole(m.ProgressToken)
	token := []byte(`"client-7"`)
	large := resultMessage(1<<20, "the quick brown fox jumps over the lazy dog.\n")
	b.Run("progress", func(b *testing.B) {
		var dst []byte
		b.ReportAllocs()
		for b.Loop() {
			dst = AppendSSE(dst[:0], "", "", body[:hole], token, body[hole+1:])
		}
	})
	b.Run("1MiB", func(b *testing.B) {
		var dst []byte
		b.SetBytes(int64(len(large)))
		b.ReportAllocs()
		for b.Loop() {
			dst = AppendSSE(dst[:0], "", "", large)
		}
	})
}

func BenchmarkWithHole(b *testing.B) {
	m, err := Parse([]byte(progressMessage))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.WithHole(m.ProgressToken)
	}
}

// copyBaseline is what moving the bytes alone costs.
func BenchmarkCopy1MiB(b *testing.B) {
	large := resultMessage(1<<20, "the quick brown fox jumps over the lazy dog.\n")
	b.SetBytes(int64(len(large)))
	for b.Loop() {
		if n, _ := io.Copy(io.Discard, bytes.NewReader(bytes.Clone(large))); n == 0 {
			b.Fatal()
		}
	}
}
