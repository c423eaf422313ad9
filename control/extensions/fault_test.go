package extensions

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/provider"
)

// answering is a fault that answers with a status and a body.
func answering(status int, media, body string) func(http.ResponseWriter, *http.Request, func()) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ func()) bool {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
		return true
	}
}

// on applies a fault to requests of a method.
func on(method string, fault func(http.ResponseWriter, *http.Request, func()) bool) func(http.ResponseWriter, *http.Request, func()) bool {
	return func(w http.ResponseWriter, r *http.Request, serve func()) bool {
		return r.Method == method && fault(w, r, serve)
	}
}

// lost serves a request and loses the answer.
func lost(_ http.ResponseWriter, _ *http.Request, serve func()) bool {
	serve()
	panic(http.ErrAbortHandler)
}

const foreignText = "<script>secret of the provider</script>"

// TestFaultsOfCreation: for every fault of a provider, the state of the extension has a reason
// without any text of the provider, no secret is set, and its end leaves nothing on either side once
// the provider behaves again.
func TestFaultsOfCreation(t *testing.T) {
	big := `{"id":"1","config":{},"x":"` + strings.Repeat("x", 10<<20) + `"}`
	for name, c := range map[string]struct {
		fault  func(http.ResponseWriter, *http.Request, func()) bool
		answer func(*provider.Provisioned)
		status hangar.ExtensionStatus
		why    string
	}{
		"down":           {fault: on("POST", func(http.ResponseWriter, *http.Request, func()) bool { panic(http.ErrAbortHandler) }), status: "provisioning", why: "ended the connection early"},
		"answer lost":    {fault: on("POST", lost), status: "provisioning", why: "ended the connection early"},
		"500":            {fault: on("POST", answering(500, "text/html", foreignText)), status: "provisioning", why: "status 500"},
		"429":            {fault: on("POST", answering(429, "text/html", foreignText)), status: "provisioning", why: "status 429"},
		"clock skew":     {fault: on("POST", answering(401, "application/json", `{"error":"timestamp"}`)), status: "provisioning", why: "does not accept the signature or the time"},
		"redirect":       {fault: redirect, status: "provisioning", why: "a redirect, which is not followed"},
		"422":            {fault: on("POST", answering(422, "application/json", `{"error":"`+foreignText+`"}`)), status: "error", why: "status 422"},
		"404":            {fault: on("POST", answering(404, "text/plain", foreignText)), status: "error", why: "status 404"},
		"HTML":           {fault: on("POST", answering(200, "text/html", foreignText)), status: "error", why: "is not JSON"},
		"no type":        {fault: on("POST", answering(200, "", `{"id":"1","config":{}}`)), status: "error", why: "is not JSON"},
		"half of it":     {fault: on("POST", answering(201, "application/json", `{"id":"1","conf`)), status: "error", why: "is not the JSON that was expected"},
		"no UTF-8":       {fault: on("POST", answering(201, "application/json", "{\"id\":\"\xff\",\"config\":{}}")), status: "error", why: "is not the JSON that was expected"},
		"no config":      {fault: on("POST", answering(201, "application/json", `{"id":"1"}`)), status: "error", why: "lacks an id that can be used, or a config"},
		"no id":          {fault: on("POST", answering(201, "application/json", `{"config":{}}`)), status: "error", why: "lacks an id"},
		"id is a path":   {answer: func(p *provider.Provisioned) { p.ID = ".." }, status: "error", why: "lacks an id"},
		"id with a line": {answer: func(p *provider.Provisioned) { p.ID = "a\nb" }, status: "error", why: "lacks an id"},
		"10 MB":          {fault: on("POST", answering(201, "application/json", big)), status: "error", why: "more than 1048576 bytes"},
		"bad name":       {answer: func(p *provider.Provisioned) { p.Name = foreignText }, status: "error", why: "a name that no extension can have"},
		"bad secret":     {answer: func(p *provider.Provisioned) { p.Config = map[string]string{"1=2": "x"} }, status: "error", why: "cannot become secrets"},
		"NUL in secret":  {answer: func(p *provider.Provisioned) { p.Config = map[string]string{"A": "x\x00"} }, status: "error", why: "cannot become secrets"},
		"other's App":    {answer: func(p *provider.Provisioned) { p.PlatformAppName = "shop" }, status: "error", why: "an App that is not the provider's"},
		"no App":         {answer: func(p *provider.Provisioned) { p.PlatformAppName = "../x" }, status: "error", why: "an App that is not the provider's"},
		"failed":         {fault: on("GET", answering(200, "application/json", `{"id":"r/1","status":"error","message":"`+foreignText+`"}`)), status: "error", why: "could not make the extension"},
		"other's status": {fault: on("GET", answering(200, "application/json", `{"id":"r/2","status":"ready"}`)), status: "provisioning", why: "about another extension"},
	} {
		t.Run(name, func(t *testing.T) {
			w, server := newWorld(t), extensionstest.New(t)
			w.provider("logs", server, nil)
			server.Fault(c.fault)
			server.Answer(c.answer)
			w.create(hangar.ExtensionCreate{Provider: "logs"})
			w.steps()
			e := w.one()
			if e.Status != c.status || !strings.Contains(e.Error, c.why) || strings.Contains(e.Error, "script") {
				t.Errorf("it is %s, %q, want %s because %q", e.Status, e.Error, c.status, c.why)
			}
			if got := w.secrets(acme, "web"); len(got) > 0 {
				t.Errorf("secrets are %q", got)
			}
			if _, err := w.service.DestroyExtension(w.as(acme), "web", e.Name); err != nil {
				t.Fatal(err)
			}
			w.steps() // while the fault lasts
			server.Fault(nil)
			server.Answer(nil)
			w.steps()
			w.nothingLeft()
			if left := server.Extensions(); len(left) != 0 && c.answer == nil {
				t.Errorf("the provider still has %v", left)
			}
		})
	}
}

// redirect answers with a redirect to where a request would be answered.
func redirect(w http.ResponseWriter, r *http.Request, _ func()) bool {
	if r.Method == http.MethodPost {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}
	return r.Method == http.MethodPost
}

// TestFailedCreationIsGivenUp: what the provider does not answer within createPatience has failed, and
// can be retried.
func TestFailedCreationIsGivenUp(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	server.Fault(answering(503, "", ""))
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	w.clock.advance(createPatience)
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionError || !strings.Contains(e.Error, "status 503") {
		t.Fatalf("after %s it is %+v", createPatience, e)
	}
	server.Fault(nil)
	if _, err := w.service.RetryExtension(w.as(acme), "web", "web-logs", hangar.ExtensionRetry{}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionReady {
		t.Errorf("retried it is %+v", e)
	}
	if _, err := w.service.RetryExtension(w.as(acme), "web", "web-logs", hangar.ExtensionRetry{}); hangar.CodeOf(err) != hangar.CodeConflict {
		t.Errorf("what has not failed is retried: %v", err)
	}
}

// TestAsynchronous: an extension that takes its time is asked for until it is ready, and sets its
// secrets then and not before.
func TestAsynchronous(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	server.Begin("creating")
	server.Accept()
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	for range 3 {
		w.steps()
		if e := w.one(); e.Status != hangar.ExtensionProvisioning || e.Error != "" || len(w.secrets(acme, "web")) != 0 {
			t.Fatalf("meanwhile it is %+v", e)
		}
	}
	server.Change("web-logs", func(e *extensionstest.Extension) { e.Status = "ready" })
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionReady || len(w.secrets(acme, "web")) != 2 {
		t.Errorf("at last it is %+v", e)
	}
	if n := strings.Count(strings.Join(paths(server), " "), "POST"); n != 1 {
		t.Errorf("%d POST requests", n)
	}
}

// TestSilentProvider: one that answers no GET is ready when it has answered the POST, unless it is
// asynchronous.
func TestSilentProvider(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprint(async), func(t *testing.T) {
			for _, status := range []int{404, 405, 501} {
				w, server := newWorld(t), extensionstest.New(t)
				w.provider("logs", server, func(in *hangar.ProviderCreate) { in.Asynchronous = async })
				var asked atomic.Int64
				server.Fault(on("GET", func(rw http.ResponseWriter, r *http.Request, serve func()) bool {
					asked.Add(1)
					return answering(status, "", "")(rw, r, serve)
				}))
				w.create(hangar.ExtensionCreate{Provider: "logs"})
				w.steps()
				want := hangar.ExtensionReady
				if async {
					want = hangar.ExtensionProvisioning
				}
				if e := w.one(); e.Status != want {
					t.Errorf("%d: it is %+v, want %s", status, e, want)
				}
				for day := int64(2); day < 5 && !async; day++ { // it stays so, and is asked once a day
					w.clock.advance(checkEvery)
					w.steps()
					w.steps()
					if e := w.one(); e.Status != want || e.Error != "" || asked.Load() != day {
						t.Errorf("%d: on day %d it is %+v, asked %d times", status, day, e, asked.Load())
					}
				}
			}
		})
	}
}

// TestCheckAfterAWrongClock: an extension that was checked while the clock was ahead is checked once the clock is
// right.
func TestCheckAfterAWrongClock(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	for at, rec := range w.refs() {
		rec.CheckedAt = rec.CheckedAt.Add(1000 * checkEvery)
		w.write(map[string]any{at.key(): rec})
	}
	server.Change("web-logs", func(e *extensionstest.Extension) { e.Status = "sleeping" })
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionSleeping {
		t.Errorf("it is %+v", e)
	}
}

// TestSecretsOfOthersAreKept: none of an extension's secrets is set when the App has one of the
// names, until the customer says so; and its end takes only what is its own.
func TestSecretsOfOthersAreKept(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	w.setSecret("LOGS_URL", "mine")
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	e := w.one()
	if e.Status != hangar.ExtensionError || !strings.Contains(e.Error, "LOGS_URL") || strings.Contains(e.Error, "LOGS_TOKEN") {
		t.Errorf("it is %+v", e)
	}
	if got := w.secrets(acme, "web"); !maps.Equal(got, map[string]string{"LOGS_URL": "mine"}) {
		t.Errorf("secrets are %q", got)
	}
	if _, err := w.service.RetryExtension(w.as(acme), "web", e.Name, hangar.ExtensionRetry{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	if got := w.secrets(acme, "web"); got["LOGS_URL"] != "https://web-logs.example.com" || len(got) != 2 {
		t.Errorf("overwritten secrets are %q", got)
	}
	w.setSecret("LOGS_TOKEN", "mine again")
	w.setSecret("OTHER", "stays")
	if _, err := w.service.DestroyExtension(w.as(acme), "web", e.Name); err != nil {
		t.Fatal(err)
	}
	if got := w.secrets(acme, "web"); !maps.Equal(got, map[string]string{"LOGS_TOKEN": "mine again", "OTHER": "stays"}) {
		t.Errorf("after its end secrets are %q", got)
	}
}

// TestDeletionIsRepeated: an extension stays until its provider has confirmed its end, and keeps its
// name until then.
func TestDeletionIsRepeated(t *testing.T) {
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request, func()) bool{
		"500": answering(500, "", ""), "403": answering(403, "", ""), "redirect": answering(302, "", ""), "lost": lost,
	} {
		t.Run(name, func(t *testing.T) {
			w, server := newWorld(t), extensionstest.New(t)
			w.provider("logs", server, nil)
			w.create(hangar.ExtensionCreate{Provider: "logs"})
			w.steps()
			server.Fault(on("DELETE", fault))
			if _, err := w.service.DestroyExtension(w.as(acme), "web", "web-logs"); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if w.steps(); w.one().Status != hangar.ExtensionDestroying || w.one().Error == "" {
					t.Fatalf("meanwhile it is %+v", w.one())
				}
			}
			if _, err := w.service.CreateExtension(w.as(acme), "web", hangar.ExtensionCreate{Provider: "logs"}); hangar.ReasonOf(err) != hangar.ReasonNameTaken {
				t.Errorf("its name is given away: %v", err)
			}
			server.Fault(nil)
			w.steps()
			w.nothingLeft()
		})
	}
}

// TestNeverSent: an extension that no request has reached the provider for goes without asking it.
func TestNeverSent(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	url := server.URL
	server.Close() // connections are refused
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionProvisioning || !strings.Contains(e.Error, "connection refused") || strings.Contains(e.Error, url) {
		t.Errorf("it is %+v", e)
	}
	if _, err := w.service.DestroyExtension(w.as(acme), "web", "web-logs"); err != nil {
		t.Fatal(err)
	}
	w.steps()
	w.nothingLeft()
}

// TestPrivateTargets: loopback is called, and plain HTTP spoken, only if the operator allows it.
func TestPrivateTargets(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	in := hangar.ProviderCreate{Name: "logs", ProviderSettings: hangar.ProviderSettings{BaseURL: server.URL}}
	if _, err := w.providers.CreateProvider(w.admin(), in); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("plain HTTP is registered: %v", err)
	}
	in.BaseURL = strings.Replace(server.URL, "http://", "https://", 1)
	if _, err := w.providers.CreateProvider(w.admin(), in); err != nil {
		t.Fatal(err)
	}
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	if e := w.one(); !strings.Contains(e.Error, "leads to a loopback address, which is not allowed") {
		t.Errorf("it is %+v", e)
	}
}

// TestChangeThatIsRefused: what was not changed is as it was.
func TestChangeThatIsRefused(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, func(in *hangar.ProviderCreate) { in.Plans = []string{"hobby", "pro"} })
	w.create(hangar.ExtensionCreate{Provider: "logs", Plan: "hobby"})
	w.steps()
	server.Fault(on("PATCH", answering(409, "", "")))
	plan := "pro"
	if _, err := w.service.UpdateExtension(w.as(acme), "web", "web-logs", hangar.ExtensionUpdate{Plan: &plan}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	if e := w.one(); e.Plan != "hobby" || e.Status != hangar.ExtensionReady || !strings.Contains(e.Error, "the change was not made") {
		t.Errorf("it is %+v", e)
	}
	gold := "gold"
	if _, err := w.service.UpdateExtension(w.as(acme), "web", "web-logs", hangar.ExtensionUpdate{Plan: &gold}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("a plan that is not offered: %v", err)
	}
}

// TestTermsAreAcceptedOnce: by each user, and for each version.
func TestTermsAreAcceptedOnce(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	terms := &hangar.ProviderTerms{URL: "https://logs.example.com/terms", Version: "1"}
	w.provider("logs", server, func(in *hangar.ProviderCreate) { in.Terms = terms })
	create := func(name, accept string, want string) {
		t.Helper()
		_, err := w.service.CreateExtension(w.as(acme), "web", hangar.ExtensionCreate{Provider: "logs", Name: name, AcceptTerms: accept})
		if got := hangar.ReasonOf(err); got != want {
			t.Errorf("accepting %q is answered %v, want %q", accept, err, want)
		}
		if want != "" && !strings.Contains(err.Error(), terms.URL) {
			t.Errorf("%v does not say where the terms are", err)
		}
	}
	create("a", "", hangar.ReasonTermsNotAccepted)
	create("a", "2", hangar.ReasonTermsNotAccepted)
	create("a", "1", "")
	create("b", "", "")
	terms = &hangar.ProviderTerms{URL: "https://logs.example.com/new-terms", Version: "2"}
	if _, err := w.providers.UpdateProvider(w.admin(), "logs", hangar.ProviderUpdate{Terms: terms}); err != nil {
		t.Fatal(err)
	}
	create("c", "", hangar.ReasonTermsNotAccepted)
	create("c", "2", "")
	if _, err := w.service.CreateExtension(w.as(rival), "shop", hangar.ExtensionCreate{Provider: "logs"}); hangar.ReasonOf(err) != hangar.ReasonTermsNotAccepted {
		t.Errorf("another user: %v", err)
	}
}

// TestProviderThatHangsDelaysNoOther: one provider holds every request that it gets, with more of them
// than may be under way, and another one's customers notice nothing; nor does another customer of the
// first notice the one who has many.
func TestProviderThatHangsDelaysNoOther(t *testing.T) {
	w, slow, fast := newWorld(t), extensionstest.New(t), extensionstest.New(t)
	w.provider("slow", slow, nil)
	w.provider("fast", fast, nil)
	slow.Configure(func(p provider.Provision) map[string]string {
		return map[string]string{"URL_" + strings.ReplaceAll(p.Name, "-", "_"): "x"}
	})
	release := make(chan struct{})
	slow.Fault(func(_ http.ResponseWriter, r *http.Request, _ func()) bool {
		if !strings.HasPrefix(r.URL.Path, "/extensions") {
			return false
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return false
	})
	for i := range 3 * stepsPerProvider {
		w.create(hangar.ExtensionCreate{Provider: "slow", Name: fmt.Sprintf("slow-%d", i)})
	}
	stop := w.run()
	if e := w.create(hangar.ExtensionCreate{Provider: "fast"}); e.Status != hangar.ExtensionReady {
		t.Errorf("the other provider's is %+v", e)
	}
	close(release)
	for _, r := range w.awaitAll(func(r *record) bool { return r.Phase == phaseLive }) {
		if r.Error != "" {
			t.Errorf("%s: %s", r.Body.Name, r.Error)
		}
	}
	stop()
}

// TestScheduleIsFair: an organization with many extensions leaves steps of a provider to another.
func TestScheduleIsFair(t *testing.T) {
	s, now := newSchedule(), time.Now()
	rec := func(org hangar.OrgID, n int) *record {
		return &record{ID: hangar.ExtensionID(fmt.Sprint(n)), Provider: "logs", Org: org, Phase: phaseCreate}
	}
	for n := range 100 {
		s.set(rec(acme, n), itemOf(rec(acme, n)), now)
	}
	begin, _ := s.start(now)
	if len(begin) != stepsPerOrg {
		t.Fatalf("%d steps of one organization begin", len(begin))
	}
	s.set(rec(rival, 0), itemOf(rec(rival, 0)), now)
	more, _ := s.start(now)
	if len(more) != 1 || more[0].Org != rival {
		t.Fatalf("then %d begin", len(more))
	}
	s.done(more[0], nextStep{never: true}, now, backOff)
	s.set(rec(rival, 1), itemOf(rec(rival, 1)), now)
	if more, _ = s.start(now); len(more) != 1 || more[0].Org != rival {
		t.Errorf("the other organization has no turn: %d", len(more))
	}
	// A step that fails is delayed more and more, and one that is noted meanwhile is not.
	e := begin[0]
	var last time.Duration
	for range 12 {
		s.done(e, nextStep{failed: true}, now, func(failures int) time.Duration { return time.Duration(failures) * time.Minute })
		delay := e.at.Sub(now)
		if delay <= last {
			t.Errorf("after %s it is delayed by %s", last, delay)
		}
		last, now = delay, e.at
		started, _ := s.start(now)
		found := false
		for _, one := range started {
			if found = found || one == e; one != e {
				s.done(one, nextStep{never: true}, now, backOff)
			}
		}
		for !found {
			started, _ = s.start(now)
			if len(started) == 0 {
				t.Fatal("its turn never comes")
			}
			for _, one := range started {
				if found = found || one == e; one != e {
					s.done(one, nextStep{never: true}, now, backOff)
				}
			}
		}
	}
	changed := rec(acme, 0)
	changed.ID, changed.Phase = e.ID, phaseDestroy
	s.set(changed, itemOf(changed), now)
	s.done(e, nextStep{failed: true}, now, func(int) time.Duration { return time.Hour })
	if e.at != now {
		t.Errorf("what was changed meanwhile waits %s", e.at.Sub(now))
	}
}
