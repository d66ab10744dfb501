package upstream

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// eraServer is a server without a network, of the legacy era until it is upgraded.
type eraServer struct {
	modern bool
	asked  []string
}

func (s *eraServer) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m, err := mcp.Parse(body)
	if err != nil {
		return nil, err
	}
	s.asked = append(s.asked, m.Method)
	answer := map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(m.ID.Of(m.Raw))}
	switch {
	case m.Method == mcp.MethodInitialize:
		answer["result"] = map[string]any{"protocolVersion": mcp.V20251125, "capabilities": map[string]any{}}
	case m.Method == mcp.MethodDiscover && s.modern:
		answer["result"] = map[string]any{"supportedVersions": []string{mcp.V20260728}, "capabilities": map[string]any{}}
	default:
		answer["error"] = map[string]any{"code": mcp.CodeMethodNotFound, "message": "no"}
	}
	b, err := json.Marshal(answer)
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(b)))}, err
}

// R-70, SPEC §5.4: a legacy verdict holds for a day from when the server was asked,
// however often it is used, so that an upgrade is seen; a modern one has no age.
func TestVerdictAge_R70(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &eraServer{}
		c := newHTTP(Server{Name: "up", URL: "http://127.0.0.1:1", Era: "auto"}, Hooks{Log: slog.New(slog.DiscardHandler)})
		c.client = &http.Client{Transport: up}
		probes := func(after time.Duration) (n int, modern bool) {
			t.Helper()
			time.Sleep(after)
			up.asked = nil
			s, err := c.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.stream != nil {
				s.stream.stop()
			}
			for _, m := range up.asked {
				if m == mcp.MethodDiscover {
					n++
				}
			}
			return n, s.isModern
		}
		if n, modern := probes(0); n != 1 || modern {
			t.Errorf("first: %d probes, modern %v", n, modern)
		}
		up.modern = true
		for range 4 { // each use is within a day of the last
			if n, modern := probes(5 * time.Hour); n != 0 || modern {
				t.Errorf("within the day: %d probes, modern %v", n, modern)
			}
		}
		if n, modern := probes(5 * time.Hour); n != 1 || !modern {
			t.Errorf("after a day: %d probes, modern %v", n, modern)
		}
		if n, modern := probes(1000 * time.Hour); n != 0 || !modern {
			t.Errorf("a modern verdict was dated: %d probes, modern %v", n, modern)
		}
		c.close(t.Context())
	})
}
