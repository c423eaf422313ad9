// Package extensionstest has a provider of extensions for tests: a server that keeps to
// docs/extensions.md, and can be made to break every rule of it.
//
// A Server may be used from many goroutines.
package extensionstest

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// Server is a provider.
type Server struct {
	*httptest.Server

	// Now is the clock; nil: time.Now.
	Now func() time.Time

	mu       sync.Mutex // guards what follows
	verifier *provider.Verifier
	made     map[string]*Extension // by the platform's id
	numbers  int
	requests []Request
	status   string
	config   func(provider.Provision) map[string]string
	answer   func(*provider.Provisioned)
	fault    func(w http.ResponseWriter, r *http.Request, serve func()) bool
	accepted bool
}

// Extension is one that the provider has.
type Extension struct {
	provider.Provision
	Remote string // the provider's id
	Status string
	Usage  map[string]json.RawMessage
}

// Request is one that has reached the provider and was verified.
type Request struct {
	Method, Path string
	Body         string
}

// New starts a provider, which ends with the test. Its extensions are ready at once.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{made: map[string]*Extension{}, status: provider.StatusReady}
	s.config = func(p provider.Provision) map[string]string {
		return map[string]string{"LOGS_URL": "https://" + p.Name + ".example.com", "LOGS_TOKEN": "token-of-" + p.ID}
	}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(s.Close)
	return s
}

// Trust sets the secrets by which requests are verified.
func (s *Server) Trust(tb testing.TB, secrets ...string) {
	tb.Helper()
	v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: s.URL, Secrets: secrets, Now: s.Now})
	if err != nil {
		tb.Fatal(err)
	}
	s.set(func() { s.verifier = v })
}

func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Begin sets the status that new extensions have.
func (s *Server) Begin(status string) { s.set(func() { s.status = status }) }

// Accept has creations answered with 202.
func (s *Server) Accept() { s.set(func() { s.accepted = true }) }

// Configure sets what the config of new extensions is.
func (s *Server) Configure(config func(provider.Provision) map[string]string) {
	s.set(func() { s.config = config })
}

// Answer changes answers to creations.
func (s *Server) Answer(change func(*provider.Provisioned)) { s.set(func() { s.answer = change }) }

// Fault is called with every request, in place of the provider, which it may call or not. It reports
// whether it has answered. Nil: there are no faults.
func (s *Server) Fault(f func(w http.ResponseWriter, r *http.Request, serve func()) bool) {
	s.set(func() { s.fault = f })
}

// Change changes the extension that has a name.
func (s *Server) Change(name string, change func(*Extension)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.made {
		if e.Name == name {
			change(e)
		}
	}
}

// Extensions returns the existing extensions, by the platform's id.
func (s *Server) Extensions() map[string]Extension {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Extension{}
	for id, e := range s.made {
		all[id] = *e
	}
	return all
}

// Requests returns the requests that were verified so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request{}, s.requests...)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault, verifier := s.fault, s.verifier
	s.mu.Unlock()
	serve := func() { verifier.Handler(http.HandlerFunc(s.verified)).ServeHTTP(w, r) }
	if fault == nil || !fault(w, r, serve) {
		serve()
	}
}

func (s *Server) verified(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{r.Method, r.URL.Path, string(body)})
	if r.URL.Path == "/extensions" && r.Method == http.MethodPost {
		s.create(w, body)
		return
	}
	remote, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/extensions/"))
	id := ""
	for known, e := range s.made {
		if e.Remote == remote {
			id = known
		}
	}
	if err != nil || id == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e := s.made[id]
	switch r.Method {
	case http.MethodDelete:
		delete(s.made, id)
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodPatch:
		var in provider.Provision
		if json.Unmarshal(body, &in) != nil || in.Validate() != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		e.Provision = in
	}
	reply(w, http.StatusOK, provider.Resource{
		ID: e.Remote, Name: e.Name, Plan: e.Plan, Status: e.Status, OrganizationID: e.OrganizationID, UserID: e.UserID, Extra: maps.Clone(e.Usage),
	})
}

func (s *Server) create(w http.ResponseWriter, body json.RawMessage) {
	var in provider.Provision
	if json.Unmarshal(body, &in) != nil || in.Validate() != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e := s.made[in.ID]
	if e == nil {
		s.numbers++
		e = &Extension{Provision: in, Remote: "r/" + strconv.Itoa(s.numbers), Status: s.status}
		s.made[in.ID] = e
	}
	answer := provider.Provisioned{ID: e.Remote, Config: s.config(in)}
	if s.answer != nil {
		s.answer(&answer)
	}
	status := http.StatusCreated
	if s.accepted {
		status = http.StatusAccepted
	}
	reply(w, status, answer)
}

func reply(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw)
}

// Flaky is a provider that misbehaves at random while it is broken. Its Fault is one of a Server.
type Flaky struct {
	Broken atomic.Bool
	odds   int           // one request of so many is refused, one has its answer lost, one is lost
	slow   time.Duration // and one takes so long

	mu   sync.Mutex
	dice *rand.Rand // guarded by mu
}

// NewFlaky returns a Flaky that is not broken yet.
func NewFlaky(odds int, slow time.Duration, dice *rand.Rand) *Flaky {
	return &Flaky{odds: odds, slow: slow, dice: dice}
}

// Fault misbehaves, or reports that it does not.
func (f *Flaky) Fault(w http.ResponseWriter, _ *http.Request, serve func()) bool {
	if !f.Broken.Load() {
		return false
	}
	f.mu.Lock()
	fault := f.dice.IntN(f.odds)
	f.mu.Unlock()
	switch fault {
	case 0:
		w.WriteHeader(http.StatusServiceUnavailable)
	case 1:
		serve()
		panic(http.ErrAbortHandler) // the answer is lost
	case 2:
		panic(http.ErrAbortHandler)
	case 3:
		<-time.After(f.slow)
		return false
	default:
		return false
	}
	return true
}

// SecretOf is what the secrets of an extension begin with, for configs that name them after it.
func SecretOf(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
