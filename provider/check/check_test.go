package check_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
	"github.com/hangar-platform/hangar/provider/check"
)

const secret, hookSecret = "secret for requests", "secret for webhooks"

// flaw is a way in which a server breaks the protocol.
type flaw string

const (
	flawless      flaw = ""
	trusting      flaw = "it looks at no signature"
	lax           flaw = "it looks at the signature alone"
	forgetful     flaw = "it remembers no nonce"
	linkForever   flaw = "its links work more than once"
	notIdempotent flaw = "it makes another extension each time"
	otherConfig   flaw = "its config changes"
	noConfig      flaw = "it answers no config"
	badVariable   flaw = "its config has a name that is none"
	broken        flaw = "its extensions are never ready"
	otherID       flaw = "GET answers another id"
	plainText     flaw = "it answers text"
	huge          flaw = "it answers too much"
	strict        flaw = "it refuses members that it does not know"
	crashing      flaw = "it answers 500 to nonsense"
	lost          flaw = "a browser is sent nowhere"
	noState       flaw = "it sends a browser without a state"
	onceEvents    flaw = "it refuses an event that comes again"
	stays         flaw = "DELETE removes nothing"
	deleteOnce    flaw = "a second DELETE is an error"
	badWebhook    flaw = "its webhooks are signed with the other secret"
	silent        flaw = "it sends no webhook" // which is allowed
)

// server is a provider with a flaw.
type server struct {
	flaw    flaw
	front   *httptest.Server
	hookURL string

	mu     sync.Mutex
	made   map[string]string // id on the platform → own id
	n      int
	events map[string]bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	id := ""
	if len(parts) > 1 {
		id = parts[1]
	}
	answer := func(status int, body any) {
		w.Header().Set("Content-Type", map[bool]string{true: "text/plain", false: "application/json"}[s.flaw == plainText])
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	resource := provider.Resource{ID: id, Status: provider.StatusReady, Name: "x"}
	switch {
	case r.Method == http.MethodPost && id == "":
		s.create(w, r, answer)
	case r.Method == http.MethodPost && id == "events":
		e, err := provider.ReadMachineEvent(r)
		if err != nil || s.flaw == onceEvents && s.events[e.ID] {
			w.WriteHeader(http.StatusConflict)
			return
		}
		s.events[e.ID] = true
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		if !s.has(id) && s.flaw == deleteOnce {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if s.has(id) && s.flaw != silent {
			s.tell(id)
		}
		for platform, own := range s.made {
			if own == id && s.flaw != stays {
				delete(s.made, platform)
			}
		}
		w.WriteHeader(http.StatusNoContent)
	case !s.has(id):
		w.WriteHeader(http.StatusNotFound)
	case len(parts) == 3:
		s.signOn(w)
	case s.flaw == broken:
		resource.Status = provider.StatusError
		answer(http.StatusOK, resource)
	case s.flaw == otherID:
		resource.ID += "x"
		answer(http.StatusOK, resource)
	default:
		answer(http.StatusOK, resource)
	}
}

func (s *server) has(id string) bool {
	for _, own := range s.made {
		if own == id {
			return true
		}
	}
	return false
}

func (s *server) create(w http.ResponseWriter, r *http.Request, answer func(int, any)) {
	raw, _ := io.ReadAll(r.Body)
	var p provider.Provision
	err := json.Unmarshal(raw, &p)
	if err == nil {
		err = p.Validate()
	}
	switch {
	case err != nil && s.flaw == crashing:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case err != nil, s.flaw == strict && strings.Contains(string(raw), "x_check"):
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.n++
	key := p.ID
	if s.flaw == notIdempotent {
		key += strings.Repeat("i", s.n)
	}
	if s.made[key] == "" {
		s.made[key] = p.ID + strings.Repeat("i", s.n)
	}
	made := provider.Provisioned{ID: s.made[key], Config: map[string]string{"X_URL": "x"}}
	switch s.flaw {
	case noConfig:
		made.Config = nil
	case badVariable:
		made.Config["1=2"] = "x"
	case otherConfig:
		made.Config["X_URL"] = strings.Repeat("x", s.n)
	case huge:
		made.Config["X_URL"] = strings.Repeat("x", 2<<20)
	}
	answer(http.StatusCreated, made)
}

func (s *server) signOn(w http.ResponseWriter) {
	to := url.Values{
		"client_id": {"c"}, "redirect_uri": {"https://x"}, "response_type": {"code"}, "scope": {"read"}, "state": {"s"}, "organization_id": {"o"},
	}
	if s.flaw == noState {
		to.Del("state")
	}
	if s.flaw != lost {
		w.Header().Set("Location", "https://auth.example.com/oauth/authorize?"+to.Encode())
	}
	w.WriteHeader(http.StatusFound)
}

// tell sends a webhook in the background.
func (s *server) tell(id string) {
	key := hookSecret
	if s.flaw == badWebhook {
		key = secret
	}
	client := provider.WebhookClient{URL: s.hookURL, Signer: provider.Signer{Secret: key}, Attempts: 1}
	go func() {
		_ = client.Send(context.Background(), provider.Event{Action: provider.ResourceDeleted, Resource: provider.Resource{ID: id}})
	}()
}

// verified wraps the server in a Verifier, weakened by its flaw.
func (s *server) verified(t *testing.T) http.Handler {
	t.Helper()
	verifiers := map[string]*provider.Verifier{}
	verifier := func() *provider.Verifier {
		v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: s.front.URL, Secrets: []string{secret}})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	verifiers[""] = verifier()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.flaw == trusting:
			s.ServeHTTP(w, r)
		case s.flaw == lax:
			body, _ := io.ReadAll(r.Body)
			message := body
			if r.Method == http.MethodGet || r.Method == http.MethodDelete {
				message = []byte(r.URL.RawQuery)
			}
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			if r.Header.Get(provider.SignatureHeader) != provider.Signature(secret, message) && !strings.HasSuffix(r.URL.Path, "/sso") {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			s.ServeHTTP(w, r)
		case s.flaw == forgetful, s.flaw == linkForever && strings.HasSuffix(r.URL.Path, "/sso"):
			verifier().Handler(s).ServeHTTP(w, r)
		default:
			verifiers[""].Handler(s).ServeHTTP(w, r)
		}
	})
}

func run(t *testing.T, f flaw) (results []check.Result, left int) {
	t.Helper()
	s := &server{flaw: f, made: map[string]string{}, events: map[string]bool{}}
	s.front = httptest.NewUnstartedServer(nil)
	s.front.Start()
	t.Cleanup(s.front.Close)
	s.front.Config.Handler = s.verified(t)
	hooks := httptest.NewServer(nil)
	t.Cleanup(hooks.Close)
	receiver, err := check.NewReceiver(hooks.URL, hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	hooks.Config.Handler = receiver
	s.hookURL = hooks.URL + "/hooks/extensions/x"
	c := check.Config{BaseURL: s.front.URL, Secret: secret, AuthorizeURL: "https://auth.example.com/oauth/authorize", ReadyWithin: time.Minute}
	if f != silent && f != stays { // a rule that waits for a webhook
		c.Webhooks = receiver
	}
	if err := check.Run(t.Context(), c, func(r check.Result) { results = append(results, r) }); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return results, len(s.made)
}

// TestFlaws: the check finds each flaw, under the rule that it breaks.
func TestFlaws(t *testing.T) {
	t.Parallel()
	for f, want := range map[flaw][]string{
		flawless: nil,
		silent:   nil,
		trusting: {
			"a request without a signature is refused", "an empty signature is refused", "a signature by another secret is refused",
			"a signature by an empty secret is refused", "half of the signature is refused", "a body that was changed after it was signed is refused",
			"a query that was changed after it was signed is refused", "a timestamp of ten minutes ago is refused", "a timestamp in ten minutes is refused",
			"a request that was signed for another server is refused", "a request that was signed for another path is refused",
			"a request without url, nonce and timestamp is refused", "a query that is the body of another request is refused",
			"a request that came before is refused", "the link works once", "a link with another signature is refused",
		},
		lax: {
			"a timestamp of ten minutes ago is refused", "a timestamp in ten minutes is refused", "a request that was signed for another server is refused",
			"a request that was signed for another path is refused", "a request without url, nonce and timestamp is refused",
			"a query that is the body of another request is refused", "a request that came before is refused", "the link works once",
			"a link with another signature is refused",
		},
		forgetful:     {"a request that came before is refused", "the link works once"},
		linkForever:   {"the link works once"},
		notIdempotent: {"creating it again answers the same"},
		otherConfig:   {"creating it again answers the same"},
		noConfig:      {"an extension is created"},
		badVariable:   {"config has names of environment variables"},
		broken:        {"it becomes ready"},
		otherID:       {"it becomes ready", "forged requests have changed nothing", "it is updated"},
		plainText:     {"an extension is created"},
		huge:          {"an extension is created"},
		strict:        {"members that it does not know are ignored"},
		crashing:      {"a signed body that lacks members is refused, not an error of the server"},
		lost:          {"a browser is redirected by the signed link"},
		noState:       {"a browser without a session is sent to sign in"},
		onceEvents:    {"events of Machines are accepted, more than once"},
		stays:         {"it is gone after that"},
		deleteOnce:    {"deleting it again succeeds or is 404", "deleting what never was succeeds or is 404"},
		badWebhook:    {"webhooks are signed and whole"},
	} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			results, left := run(t, f)
			var found []string
			for _, r := range results {
				if r.Outcome == check.Broken {
					found = append(found, r.Rule)
					if r.Detail == "" {
						t.Errorf("%s: there is no detail", r.Rule)
					}
				}
			}
			slices.Sort(found)
			slices.Sort(want)
			if f == trusting { // a forged DELETE has removed the extension, and all that follows fails
				found = slices.DeleteFunc(found, func(rule string) bool { return !slices.Contains(want, rule) })
			}
			if !slices.Equal(found, want) {
				t.Errorf("found %q, want %q", found, want)
			}
			if left > 0 && f != stays && f != plainText && f != huge && f != notIdempotent {
				t.Errorf("%d extensions are left", left)
			}
		})
	}
}

// TestEndedRunLeavesNothing: a canceled run deletes its extension.
func TestEndedRunLeavesNothing(t *testing.T) {
	s := &server{made: map[string]string{}, events: map[string]bool{}}
	s.front = httptest.NewServer(nil)
	t.Cleanup(s.front.Close)
	s.front.Config.Handler = s.verified(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := check.Run(ctx, check.Config{BaseURL: s.front.URL, Secret: secret}, func(check.Result) { cancel() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || len(s.made) != 0 {
		t.Errorf("answered %v, and %d extensions are left", err, len(s.made))
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]check.Config{
		"no secret":   {BaseURL: "https://example.com"},
		"no base URL": {Secret: "x"},
		"a query":     {BaseURL: "https://example.com?x", Secret: "x"},
	} {
		if err := check.Run(t.Context(), c, func(check.Result) { t.Errorf("%s: something was tried", name) }); err == nil {
			t.Errorf("%s: is accepted", name)
		}
	}
}
