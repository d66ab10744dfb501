package app

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
)

// routes is everything that the listener answers.
func (a *App) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(HeaderPID, pid)
		io.WriteString(w, "ok\n") // live: nothing more
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	if a.opt.Config.Metrics.Enabled {
		mux.HandleFunc("GET /metrics", a.metrics)
	}
	mux.HandleFunc("POST /api/calls/{id}/cancel", a.cancelCall)
	mux.HandleFunc("GET /api/presence", a.presence)
	mux.HandleFunc("POST /api/wraps", a.addWrap)
	mux.HandleFunc("DELETE /api/wraps/{lease}", a.dropWrap)
	mux.HandleFunc("POST /api/replace", a.handOver)
	return a.counted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// What every call takes does not go by way of patterns.
		switch agents := downstream.Serves(r.URL.Path); {
		case agents && a.front.enter():
			a.handler.ServeHTTP(w, r)
		case a.front.successor.Load() != nil:
			a.front.pass(w, r)
		default:
			mux.ServeHTTP(w, r)
		}
	}))
}

// HeaderPID is the process that answers /healthz and /readyz: so whoever has
// read its address in the state folder knows that it is not a later program at
// the same port.
const HeaderPID = "Longcall-Pid"

var pid = strconv.Itoa(os.Getpid())

// metrics are for anybody on this machine, and elsewhere for those with a
// token: they name the tool servers.
func (a *App) metrics(w http.ResponseWriter, r *http.Request) {
	if !config.IsLoopback(a.opt.Config.Listen) {
		if _, ok := a.principal(w, r); !ok {
			return
		}
	}
	a.tel.Handler().ServeHTTP(w, r)
}

// readyz says whether calls are taken.
func (a *App) readyz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(HeaderPID, pid)
	if !a.ready.Load() {
		http.Error(w, "not ready: starting or stopping", http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ready\n")
}

// principal authenticates a request to the admin API; ok is false if it was
// answered.
func (a *App) principal(w http.ResponseWriter, r *http.Request) (name string, ok bool) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "not for web pages", http.StatusForbidden)
		return "", false
	}
	p, err := a.auth.CheckHeader(r.Header)
	if err != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return "", false
	}
	return p.Name, true
}

// cancelCall cancels a running call of the caller, as an operator, or as the
// agent whose relay says so.
func (a *App) cancelCall(w http.ResponseWriter, r *http.Request) {
	name, ok := a.principal(w, r)
	if !ok {
		return
	}
	var body struct {
		Reason string `json:"reason"`
		By     string `json:"by"` // operator if empty, or agent
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<10))
	if err != nil || len(b) > 0 && json.Unmarshal(b, &body) != nil || body.By != "" && body.By != "operator" && body.By != "agent" {
		http.Error(w, `the body must be {"reason": "…", "by": "operator" or "agent"} or empty`, http.StatusBadRequest)
		return
	}
	end := call.End{By: "operator", Text: "Cancelled by the operator"}
	if body.By == "agent" {
		end = call.End{By: "agent", Text: "The agent cancelled the call"}
	}
	if reason := strings.Join(strings.Fields(body.Reason), " "); reason != "" {
		end.Text += ": " + strings.ToValidUTF8(reason[:min(len(reason), 500)], "")
	} else {
		end.Text += "."
	}
	id := call.ID(r.PathValue("id"))
	if c, err := a.engine.Get(r.Context(), name, id); body.By == "agent" && err == nil && c.Record().Server == downstream.ServerShell {
		// What a relay passes on is a cancel of the request: a command goes on.
		w.WriteHeader(http.StatusNoContent)
		return
	}
	err = a.engine.Tell(name, id, end)
	if errors.Is(err, call.ErrUnknown) {
		err = a.cancelElsewhere(r.Context(), name, id, end)
	}
	switch {
	case errors.Is(err, call.ErrUnknown):
		http.Error(w, "no such call", http.StatusNotFound)
	case errors.Is(err, call.ErrNotRunning):
		http.Error(w, "the call has ended already", http.StatusConflict)
	case err != nil:
		a.log.Error("a call was not cancelled", "call", id, "error", err)
		http.Error(w, "nothing was cancelled: the journal cannot be read. Try again; the log has more", http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
