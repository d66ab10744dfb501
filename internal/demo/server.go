package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// ServerName is the demo's tool server in longcall's config, and ToolName the
// tool that both agents call.
const (
	ServerName = "demo"
	ToolName   = "build_index"
)

const files = 48_213 // that the tool pretends to index

// toolServer is a tool server as there are many: it works for a while, says
// little meanwhile, and does not notice that nobody listens any more. It
// serves the stateless revision and the ones with sessions.
type toolServer struct {
	takes time.Duration
	// tell hears what happens to the work that was asked for under an agent's
	// name. It must not block.
	tell func(client, what string)

	ln     net.Listener
	server *http.Server
	ctx    context.Context // of the work; done at close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newToolServer(ctx context.Context, takes time.Duration, tell func(client, what string)) (*toolServer, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the demo's tool server: %w", err)
	}
	s := &toolServer{takes: takes, tell: tell, ln: ln}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.wg.Go(func() { _ = s.server.Serve(ln) })
	return s, nil
}

func (s *toolServer) addr() string { return s.ln.Addr().String() }

// close ends everything and waits for it.
func (s *toolServer) close() {
	s.cancel()
	_ = s.server.Close()
	s.wg.Wait()
}

func (s *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m, err := mcp.Parse(raw)
	if err != nil || m.Kind != mcp.Request {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	id := m.ID.Of(m.Raw)
	modern := m.MetaVersion.Ok()
	reply := func(result string) {
		if modern {
			result = `{"resultType":"complete",` + result[1:]
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.ResultResponse(id, []byte(result)))
	}
	const info = `{"name":"demo","version":"1.0.0"}`
	switch m.Method {
	case mcp.MethodDiscover:
		reply(`{"supportedVersions":["` + mcp.LatestModern + `"],"capabilities":{"tools":{}},"serverInfo":` + info + `,"ttlMs":60000,"cacheScope":"public"}`)
	case mcp.MethodInitialize:
		w.Header().Set(mcp.HeaderSession, "demo-session")
		reply(`{"protocolVersion":"` + mcp.LatestLegacy + `","capabilities":{"tools":{}},"serverInfo":` + info + `}`)
	case mcp.MethodPing:
		reply(`{}`)
	case mcp.MethodToolsList:
		list := `{"tools":[{"name":"` + ToolName + `","description":"Index a large tree of files.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}}]`
		if modern {
			list += `,"ttlMs":60000,"cacheScope":"public"`
		}
		reply(list + `}`)
	case mcp.MethodToolsCall:
		s.call(w, r, &m)
	default:
		w.Header().Set("Content-Type", "application/json")
		if modern {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write(mcp.ErrorResponse(id, mcp.CodeMethodNotFound, "method not found", nil))
	}
}

// call answers with a stream that is silent for most of the time. The work
// goes on when the stream breaks: few tools notice.
func (s *toolServer) call(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
	client := r.Header.Get(headerSide)
	if client == "" {
		client = sideLongcall // longcall passes no headers of agents on
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	send := func(msg []byte) {
		if r.Context().Err() != nil {
			return
		}
		_, _ = w.Write(mcp.AppendSSE(nil, "", "message", msg))
		_ = rc.Flush()
	}
	s.tell(client, "working")
	token := m.MetaToken.Of(m.Raw)
	begin := time.Now()
	for _, percent := range []int{40, 80, 100} {
		t := time.NewTimer(time.Until(begin.Add(s.takes * time.Duration(percent) / 100)))
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
			return
		}
		if percent == 100 {
			break
		}
		text := fmt.Sprintf("%d of %d files", files*percent/100, files)
		s.tell(client, text)
		if token != nil {
			params := fmt.Sprintf(`{"progressToken":%s,"progress":%d,"total":100,"message":%s}`, token, percent, mcp.Quote(text))
			send([]byte(`{"jsonrpc":"2.0","method":"` + mcp.MethodProgress + `","params":` + params + `}`))
		}
	}
	result := map[string]any{"content": []map[string]string{{"type": "text", "text": fmt.Sprintf("Indexed %d files.", files)}}}
	if m.MetaVersion.Ok() {
		result["resultType"] = "complete"
	}
	b, err := json.Marshal(result)
	if err != nil {
		return // a map of strings always encodes
	}
	if r.Context().Err() != nil {
		s.tell(client, "finished: nobody is there for the result")
	} else {
		s.tell(client, "finished")
	}
	send(mcp.ResultResponse(m.ID.Of(m.Raw), b))
}
