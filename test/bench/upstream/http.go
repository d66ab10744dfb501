package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

type server struct {
	era string

	mu       sync.Mutex
	sessions map[string]*session
	logs     sync.Map // call id to *eventLog, for calls with numbered events
}

// session of the legacy era; the modern era has none.
type session struct {
	mu      sync.Mutex
	running map[string]context.CancelFunc // by request id
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /control/stats", s.stats)
	mux.HandleFunc("POST /mcp", s.post)
	mux.HandleFunc("GET /mcp", s.get)
	mux.HandleFunc("DELETE /mcp", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		delete(s.sessions, r.Header.Get("Mcp-Session-Id"))
		s.mu.Unlock()
	})
	return mux
}

func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	if err := json.NewEncoder(w).Encode(snapshot()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (s *server) session(r *http.Request) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[r.Header.Get("Mcp-Session-Id")]
}

func (s *server) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req request
	if err != nil || json.Unmarshal(body, &req) != nil {
		writeJSON(w, http.StatusBadRequest, failure(&req, -32700, "parse error"))
		return
	}
	if req.modern() && s.era == "legacy" || !req.modern() && s.era == "modern" || req.Method == "server/discover" && s.era == "legacy" {
		writeJSON(w, http.StatusBadRequest, failure(&req, -32601, "method not found"))
		return
	}
	if req.Method == "initialize" {
		id := rand.Text()
		s.mu.Lock()
		s.sessions[id] = &session{running: map[string]context.CancelFunc{}}
		s.mu.Unlock()
		counters.sessions.Add(1)
		w.Header().Set("Mcp-Session-Id", id)
		writeJSON(w, http.StatusOK, answer(&req))
		return
	}
	sess := s.session(r)
	if sess == nil && !req.modern() {
		writeJSON(w, http.StatusNotFound, failure(&req, -32600, "no such session"))
		return
	}
	switch req.Method {
	case "notifications/cancelled":
		counters.cancels.Add(1)
		if sess != nil {
			sess.mu.Lock()
			if cancel := sess.running[string(req.Params.RequestID)]; cancel != nil {
				cancel()
			}
			sess.mu.Unlock()
		}
		w.WriteHeader(http.StatusAccepted)
	case "tools/call":
		s.call(w, r, sess, &req)
	default:
		if out := answer(&req); out != nil {
			writeJSON(w, http.StatusOK, out)
		} else {
			w.WriteHeader(http.StatusAccepted)
		}
	}
}

// call answers a tools/call with an event stream. A legacy call outlives its
// stream; a modern one ends with it.
func (s *server) call(w http.ResponseWriter, r *http.Request, sess *session, req *request) {
	gone := r.Context()
	defer func() {
		if gone.Err() != nil {
			counters.closedEarly.Add(1)
		}
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	a := req.Params.Arguments
	if !a.Hold && a.MS > 0 {
		w.(http.Flusher).Flush()
	}
	run := func(emit func([]byte)) {
		ctx := gone
		if sess != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(context.WithoutCancel(gone))
			defer cancel()
			defer sess.register(string(req.ID), cancel)()
		}
		work(ctx, req, emit)
	}
	if !a.IDs {
		run(func(msg []byte) { writeEvent(w, "", msg) })
		return
	}
	id, log := rand.Text(), newEventLog()
	s.logs.Store(id, log)
	go func() {
		run(log.append)
		log.close()
	}()
	log.follow(gone, w, id, 0, a.Drop)
}

// register makes a call cancellable until the returned function is called.
func (s *session) register(id string, cancel context.CancelFunc) (remove func()) {
	s.mu.Lock()
	s.running[id] = cancel
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		delete(s.running, id)
		s.mu.Unlock()
	}
}

// get serves the standalone stream, which stays silent, and resumption.
func (s *server) get(w http.ResponseWriter, r *http.Request) {
	if s.era == "modern" {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if s.session(r) == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		<-r.Context().Done()
		return
	}
	id, n, _ := strings.Cut(last, "-")
	after, _ := strconv.Atoi(n)
	if l, ok := s.logs.Load(id); ok {
		counters.resumed.Add(1)
		l.(*eventLog).follow(r.Context(), w, id, after, 0)
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left is noticed by its context
}

func writeEvent(w http.ResponseWriter, id string, msg []byte) {
	b := make([]byte, 0, len(msg)+64)
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "event: message\ndata: "...), msg...), "\n\n"...)
	_, _ = w.Write(b) // a client that has left is noticed by its context
	w.(http.Flusher).Flush()
}
