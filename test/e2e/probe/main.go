// Command probe is the program that tests of the private network run in Machines: it reaches out to
// others on demand, and answers callers.
//
// See package reach for what it tries and answers. It is asked over HTTP on port 8080:
//
//	POST /try    a list of attempts; answers with a list of outcomes, in their order
//	GET  /heard  what has come by UDP
//	GET  /self   the addresses of eth0
//
// PROBE_NAME is who it says it is.
package main

import (
	"encoding/json"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/test/e2e/reach"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	s, err := reach.Serve(os.Getenv("PROBE_NAME"), netip.AddrPortFrom(netip.IPv6Unspecified(), reach.Port))
	if err != nil {
		return err
	}
	http.HandleFunc("POST /try", tryAll)
	http.HandleFunc("GET /heard", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.Heard()) })
	http.HandleFunc("GET /self", self)
	return (&http.Server{Addr: ":8080", ReadHeaderTimeout: time.Minute}).ListenAndServe()
}

func reply(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print(err)
	}
}

func tryAll(w http.ResponseWriter, r *http.Request) {
	var attempts []reach.Attempt
	if err := json.NewDecoder(r.Body).Decode(&attempts); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	outcomes := make([]reach.Outcome, len(attempts))
	var all sync.WaitGroup
	for i, a := range attempts {
		all.Go(func() { outcomes[i] = reach.Try(r.Context(), a) })
	}
	all.Wait()
	reply(w, outcomes)
}

func self(w http.ResponseWriter, _ *http.Request) {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	addrs, err := eth0.Addrs()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var found []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			found = append(found, p.Addr())
		}
	}
	reply(w, found)
}
