// Command upstream is a deterministic tool server to put behind a gateway.
//
// It serves the session era (2025-03-26 to 2025-11-25) or the stateless era
// (2026-07-28), has one tool, "work", and counts what the gateway does to it;
// the counters are at /control/stats.
package main

import (
	"flag"
	"log"
	"net/http"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on")
	era := flag.String("era", "legacy", "legacy or modern")
	flag.Parse()
	s := &server{era: *era, sessions: map[string]*session{}}
	log.Fatal(http.ListenAndServe(*addr, s.routes()))
}
