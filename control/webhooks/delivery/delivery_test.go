package delivery_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
	"github.com/hangar-platform/hangar/internal/publicdial"
	"github.com/hangar-platform/hangar/provider"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	servers := map[string]*sink{}
	var set []hangar.EventReceiver
	add := func(id string, alter func(*hangar.EventReceiver)) {
		servers[id] = newSink(t, nil)
		r := to(id, "acme", servers[id].URL)
		alter(&r)
		set = append(set, r)
	}
	add("all", func(*hangar.EventReceiver) {})
	add("exits", func(r *hangar.EventReceiver) { r.Events = []hangar.EventType{hangar.EventExit} })
	add("gone", func(r *hangar.EventReceiver) { r.Apps = []hangar.AppID{"app-of-nobody"} })
	add("provider", func(r *hangar.EventReceiver) {
		r.Org, r.AllOf, r.Apps = "", "", []hangar.AppID{"app-of-rival", "app-of-acme"}
	})
	add("none", func(r *hangar.EventReceiver) { r.Org, r.AllOf = "", "" })
	rig := newRig(t, fast, set...)
	rig.await()
	all := rig.feed.record(
		event("acme", 1, hangar.EventStart), event("rival", 2, hangar.EventStart), event("acme", 1, hangar.EventExit), event("third", 3, hangar.EventExit),
	)
	for id, want := range map[string][]int{"all": {0, 2}, "exits": {2}, "provider": {0, 1, 2}} {
		var events []hangar.MachineEvent
		for _, i := range want {
			events = append(events, all[i])
		}
		servers[id].until(t.Context(), t, len(want))
		servers[id].check(t, events)
	}
	for _, id := range []string{"gone", "none"} {
		if status := rig.ReceiverStatus(id); status.Waiting != 0 || len(servers[id].got) != 0 {
			t.Errorf("%s: %+v", id, status)
		}
	}
}

// TestRequests looks at what is sent.
func TestRequests(t *testing.T) {
	t.Parallel()
	type request struct {
		header http.Header
		event  provider.MachineEvent
	}
	requests := make(chan request, 10)
	var verifier atomic.Pointer[provider.Verifier]
	s := newSink(t, nil)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := verifier.Load().Verify(r); err != nil {
			t.Errorf("refused: %v", err)
		}
		e, err := provider.ReadMachineEvent(r)
		if err != nil {
			t.Error(err)
		}
		requests <- request{r.Header, e}
		_, _ = w.Write([]byte("what is answered is thrown away"))
	})
	trust := func(secret string) {
		v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: s.URL, Secrets: []string{secret}})
		if err != nil {
			t.Fatal(err)
		}
		verifier.Store(v)
	}
	trust(testSecret)
	spec := to("hook", "acme", s.URL+"/x?y=%20")
	rig := newRig(t, fast, spec)
	rig.await()
	exit := &hangar.ExitEvent{ExitCode: 137, GuestSignal: 9, OOMKilled: true}
	failed := event("acme", 1, hangar.EventLaunch)
	failed.Event.Status, failed.Event.Request = "failed", &hangar.EventRequest{Error: "image not found"}
	exited := event("acme", 1, hangar.EventExit)
	exited.Event.Request = &hangar.EventRequest{ExitEvent: exit, MonitorEvent: &hangar.MonitorEvent{ExitEvent: exit}, RestartCount: 2}
	sent := rig.feed.record(failed, exited)
	first, second := <-requests, <-requests
	for _, want := range []string{`"Error":"image not found"`, `"Transition":"prepareImage"`, `"source":"user"`} {
		if !strings.Contains(string(first.event.Data), want) {
			t.Errorf("data %s lacks %s", first.event.Data, want)
		}
	}
	for _, want := range []string{`"exit_event":{`, `"exit_code":137`, `"oom_killed":true`, `"restart_count":2`} {
		if !strings.Contains(string(second.event.Data), want) {
			t.Errorf("data %s lacks %s", second.event.Data, want)
		}
	}
	e := first.event
	if e.Type != "io.platform.machine.launch" || e.ID != string(sent[0].Event.ID) || e.MachineID != string(sent[0].Machine) || e.Status != "failed" ||
		e.Source != "/v1/apps/web/machines/"+e.MachineID || e.Time.UnixMilli() != sent[0].Event.Timestamp {
		t.Errorf("%+v", e)
	}
	h := first.header
	if h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "hangar-webhooks" || len(h.Get("X-Signature")) != 64 || h.Get("Accept-Encoding") != "" {
		t.Errorf("headers %v", h)
	}

	// Another spelling, and a secret that signs from now on.
	trust("the next secret")
	spec.Version, spec.OriginalNames, spec.Next, spec.NextAt = 2, true, hangar.NewSensitive("the next secret"), time.Now()
	rig.registry.put(spec)
	rig.await()
	rig.feed.record(event("acme", 1, hangar.EventStart))
	if e := (<-requests).event; e.Type != "io.fly.machine.start" || e.Name() != "start" {
		t.Errorf("type %s", e.Type)
	}
}

// TestErrors: a failure is reported in one word, without anything of the answer.
func TestErrors(t *testing.T) {
	t.Parallel()
	answering := func(status int) string {
		return newSink(t, func(*http.Request, string) int { return status }).URL
	}
	redirecting := newSink(t, nil)
	redirecting.Config.Handler = http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound)
	hanging := newSink(t, nil)
	hanging.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hang(r) })
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	t.Cleanup(accepting.Wait)
	t.Cleanup(func() { _ = raw.Close() })
	accepting.Go(func() {
		for {
			c, err := raw.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1<<10))
			_, _ = c.Write([]byte("SSH-2.0-secret banner\r\n"))
			_ = c.Close()
		}
	})
	dialer := publicdial.New(publicdial.Options{Allow: allowed(t, "127.0.0.0/8")})
	for name, c := range map[string]struct {
		url    string
		error  hangar.DeliveryError
		status int
	}{
		"server error": {answering(500), hangar.DeliveryStatus, 500},
		"not found":    {answering(404), hangar.DeliveryStatus, 404},
		"gone":         {answering(410), hangar.DeliveryStatus, 410},
		"redirect":     {redirecting.URL, hangar.DeliveryRedirect, 302},
		"hanging":      {hanging.URL, hangar.DeliveryTimeout, 0},
		"refused":      {"http://127.0.0.1:1", hangar.DeliveryNoConnect, 0},
		"no HTTP":      {"http://" + raw.Addr().String(), hangar.DeliveryBadAnswer, 0},
		"no TLS":       {"https://" + raw.Addr().String(), hangar.DeliveryBadTLS, 0},
		"metadata":     {"http://169.254.169.254/", hangar.DeliveryNotAllowed, 0},
		"private":      {"http://10.0.0.1/", hangar.DeliveryNotAllowed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := newRig(t, func(o *delivery.Options) {
				fast(o)
				o.Dial = dialer.DialContext
				if c.error == hangar.DeliveryTimeout {
					o.Timing.Attempt = time.Second
				}
			}, to("hook", "acme", c.url))
			rig.await()
			rig.feed.record(event("acme", 1, hangar.EventStart))
			status := rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Error != "" })
			if status.Error != c.error || status.HTTPStatus != c.status || status.Waiting != 1 || status.FailedAt.IsZero() {
				t.Errorf("status %+v", status)
			}
			ping, err := rig.Ping(t.Context(), "hook")
			if err != nil || ping.Delivered || ping.Error != c.error || ping.HTTPStatus != c.status {
				t.Errorf("ping %+v, %v", ping, err)
			}
		})
	}
}

// hang returns when the client has gone, which the server notices once the body is read.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func allowed(t *testing.T, texts ...string) (list []publicdial.Allowed) {
	t.Helper()
	for _, text := range texts {
		a, err := publicdial.ParseAllowed(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	return list
}

// TestPrivateReceivers: an address that may not be called is called for those alone who may, also by a
// connection that is there already.
func TestPrivateReceivers(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	private := to("provider", "", s.URL)
	private.AllOf, private.Apps, private.AllowPrivate = "", []hangar.AppID{"app-of-acme"}, true
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Dial = publicdial.New(publicdial.Options{}).DialContext
	}, private, to("hook", "acme", s.URL))
	rig.await()
	sent := rig.feed.record(event("acme", 1, hangar.EventStart))
	s.until(t.Context(), t, 1)
	status := rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Error != "" })
	if status.Error != hangar.DeliveryNotAllowed {
		t.Errorf("status %+v", status)
	}
	s.check(t, sent)
	if n := len(s.got); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestDeadLetters: what has failed for too long is given up, is listed, and can be sent again.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	s := newSink(t, func(*http.Request, string) int {
		if up.Load() {
			return http.StatusOK
		}
		return http.StatusTeapot
	})
	var clock atomic.Int64 // what is added to the time
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Now = func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }
	}, to("hook", "acme", s.URL))
	rig.await()
	sent := rig.feed.record(event("acme", 1, hangar.EventStart), event("acme", 1, hangar.EventExit), event("acme", 2, hangar.EventStart))
	rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Waiting == 3 && s.Failing })
	clock.Store(int64(hangar.WebhookRetention - time.Minute))
	rig.restart()
	rig.await()
	if status := rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Failing }); status.Waiting != 3 || status.Dead != 0 {
		t.Errorf("a minute before: %+v", status)
	}
	clock.Store(int64(hangar.WebhookRetention + time.Minute))
	status := rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Waiting == 0 })
	if status.Dead != 3 || status.WaitingBytes != 0 {
		t.Errorf("a minute after: %+v", status)
	}
	rig.restart() // they are on the disk
	rig.await()
	dead, err := rig.ReceiverDeliveries("hook", hangar.DeliveryQuery{State: hangar.DeliveryDead})
	if err != nil || len(dead) != 3 {
		t.Fatalf("%d dead letters, %v", len(dead), err)
	}
	for i, d := range dead {
		if d.EventID != sent[2-i].Event.ID || d.Reason != hangar.DeathExpired || d.State != hangar.DeliveryDead {
			t.Errorf("%d: %+v", i, d)
		}
	}
	up.Store(true)
	if _, err := rig.Resend("hook", "01K2KJQ1M6Y8T9V0B3C4D5E6F7"); hangar.ReasonOf(err) != hangar.ReasonDeliveryNotFound {
		t.Errorf("one that there is not: %v", err)
	}
	again, err := rig.Resend("hook", dead[0].ID)
	if err != nil || again.State != hangar.DeliveryWaiting || again.EventID != sent[2].Event.ID || again.Attempts != 0 {
		t.Fatalf("%+v, %v", again, err)
	}
	s.until(t.Context(), t, 1)
	status = rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Waiting == 0 })
	if status.Dead != 2 || status.Failing {
		t.Errorf("after one was sent again: %+v", status)
	}
	done, err := rig.ReceiverDeliveries("hook", hangar.DeliveryQuery{State: hangar.DeliveryDelivered})
	if err != nil || len(done) != 1 || done[0].HTTPStatus != http.StatusOK || done[0].Attempts != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := rig.Resend("hook", done[0].ID); err != nil { // also one that was delivered
		t.Fatal(err)
	}
	rig.until("hook", func(hangar.WebhookStatus) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.got) == 2
	})
}

// TestBlockedMachine: an event that is never accepted holds up later ones of its Machine, and of no
// other.
func TestBlockedMachine(t *testing.T) {
	t.Parallel()
	poison := event("acme", 1, hangar.EventStart)
	s := newSink(t, func(_ *http.Request, machine string) int {
		if machine == string(poison.Machine) {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	rig := newRig(t, fast, to("hook", "acme", s.URL))
	rig.await()
	rig.feed.record(poison, poison)
	var want []hangar.MachineEvent
	for i := range 200 {
		want = append(want, rig.feed.record(event("acme", 2+i%7, hangar.EventExit))...)
	}
	s.until(t.Context(), t, len(want))
	s.check(t, want)
	status := rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Waiting == 2 })
	if status.Dead != 0 {
		t.Errorf("status %+v", status)
	}
}

// TestBlockedWindow: what is never accepted is given up once it holds up more than is looked at.
func TestBlockedWindow(t *testing.T) {
	t.Parallel()
	poison := event("acme", 1, hangar.EventStart)
	s := newSink(t, func(_ *http.Request, machine string) int {
		if machine == string(poison.Machine) {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	rig := newRig(t, fast, to("hook", "acme", s.URL))
	rig.await()
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{poison}, 600)...)
	want := rig.feed.record(event("acme", 2, hangar.EventExit))
	s.until(t.Context(), t, 1)
	s.check(t, want)
	rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Dead > 0 })
	dead, err := rig.ReceiverDeliveries("hook", hangar.DeliveryQuery{State: hangar.DeliveryDead})
	if err != nil || len(dead) == 0 || dead[0].Reason != hangar.DeathBlocked {
		t.Errorf("%d dead letters, %v", len(dead), err)
	}
}

// TestBlockedWindowInPart: what is never accepted holds up no events of other Machines that come later, even if it
// is neither so little that more is read at once nor so much that it is given up.
func TestBlockedWindowInPart(t *testing.T) {
	t.Parallel()
	poison := event("acme", 1, hangar.EventStart)
	refused := make(chan struct{})
	var once sync.Once
	s := newSink(t, func(_ *http.Request, machine string) int {
		if machine == string(poison.Machine) {
			once.Do(func() { close(refused) })
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	rig := newRig(t, fast, to("hook", "acme", s.URL))
	rig.await()
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{poison}, delivery.WindowSize/2+50)...)
	<-refused
	var want []hangar.MachineEvent
	for i := range 20 {
		want = append(want, rig.feed.record(event("acme", 2+i, hangar.EventExit))...)
		s.until(t.Context(), t, len(want))
	}
	s.check(t, want)
	if status := rig.ReceiverStatus("hook"); status.Dead != 0 {
		t.Errorf("status %+v", status)
	}
}

// TestOneTenantFloods: of an organization whose receivers take nothing the oldest events are given up,
// and those of another one, which would fit into its own queue all at once, are not touched.
func TestOneTenantFloods(t *testing.T) {
	t.Parallel()
	down := newSink(t, func(*http.Request, string) int { return http.StatusServiceUnavailable })
	up := newSink(t, nil)
	limits := delivery.Limits{ReceiverBytes: 40_000, OrgBytes: 60_000, TotalBytes: 150_000, Dead: 50, Log: 20}
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Limits = limits
		o.Timing.LastPause = time.Minute
		o.Timing.FirstPause = time.Minute
	}, to("flood/1", "flood", down.URL), to("flood/2", "flood", down.URL), to("flood/3", "flood", down.URL), to("acme", "acme", up.URL))
	rig.await()
	var want []hangar.MachineEvent
	for i := range 2000 {
		rig.feed.record(event("flood", i%50, hangar.EventStart))
		if i%20 == 0 {
			want = append(want, rig.feed.record(event("acme", i%3, hangar.EventStart))...)
		}
	}
	up.until(t.Context(), t, len(want))
	up.check(t, want)
	sum, events := int64(0), 0
	for _, id := range []string{"flood/1", "flood/2", "flood/3"} {
		status := rig.until(id, func(s hangar.WebhookStatus) bool { return s.Waiting+s.Dead+int(s.Dropped) == 2000 })
		sum += status.WaitingBytes
		events += status.Waiting
		if status.WaitingBytes > limits.ReceiverBytes*11/10 || status.Waiting == 0 || // what is known of an attempt is added later
			status.Dead > limits.Dead || status.Dropped == 0 {
			t.Errorf("%s: %+v", id, status)
		}
	}
	if sum > limits.OrgBytes*11/10 || events == 0 {
		t.Errorf("%d bytes wait, of %d events", sum, events)
	}
	status := rig.until("acme", func(s hangar.WebhookStatus) bool { return s.Waiting == 0 })
	if status.Dead != 0 || status.Dropped != 0 {
		t.Errorf("the other one: %+v", status)
	}
	log, err := rig.ReceiverDeliveries("acme", hangar.DeliveryQuery{Limit: hangar.MaxWebhookDeliveries})
	if err != nil || len(log) != limits.Log {
		t.Errorf("%d deliveries are kept, %v", len(log), err)
	}
	waiting, err := rig.ReceiverDeliveries("flood/1", hangar.DeliveryQuery{State: hangar.DeliveryWaiting, Limit: 1})
	if err != nil || len(waiting) != 1 {
		t.Fatal(waiting, err)
	}
	if dead, err := rig.ReceiverDeliveries("flood/1", hangar.DeliveryQuery{State: hangar.DeliveryDead, Limit: 1}); err != nil || dead[0].Reason != hangar.DeathQueueFull || dead[0].ID > waiting[0].ID {
		t.Errorf("%+v, %v", dead, err)
	}
}

// TestTotalBound: all organizations together are bounded, at the cost of the one with the most.
func TestTotalBound(t *testing.T) {
	t.Parallel()
	down := newSink(t, func(*http.Request, string) int { return http.StatusServiceUnavailable })
	limits := delivery.Limits{TotalBytes: 50_000}
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Limits = limits
		o.Timing.FirstPause, o.Timing.LastPause = time.Minute, time.Minute
	}, to("big", "big", down.URL), to("small", "small", down.URL))
	rig.await()
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{event("small", 1, hangar.EventStart)}, 20)...)
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{event("big", 1, hangar.EventStart)}, 1000)...)
	big := rig.until("big", func(s hangar.WebhookStatus) bool { return s.Waiting+s.Dead+int(s.Dropped) == 1000 })
	small := rig.ReceiverStatus("small")
	if small.Waiting != 20 || small.Dead != 0 || big.WaitingBytes+small.WaitingBytes > limits.TotalBytes*11/10 { // outcomes come on top
		t.Errorf("%+v, %+v", big, small)
	}
}

// TestHangingReceiversOfOneTenant: they hold a part of the requests on their way, and others go on.
func TestHangingReceiversOfOneTenant(t *testing.T) {
	t.Parallel()
	var held, most atomic.Int64
	hanging := newSink(t, nil)
	hanging.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := held.Add(1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		hang(r)
		held.Add(-1)
	})
	up := newSink(t, nil)
	set := []hangar.EventReceiver{to("acme", "acme", up.URL)}
	for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		set = append(set, to("hang/"+id, "hang", hanging.URL))
	}
	rig := newRig(t, func(o *delivery.Options) {
		o.Limits = delivery.Limits{InFlight: 8, OrgInFlight: 4}
		o.Timing = delivery.Timing{Attempt: time.Hour, Flush: time.Millisecond}
	}, set...)
	rig.await()
	for i := range 40 {
		rig.feed.record(event("hang", i, hangar.EventStart))
	}
	for held.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	var want []hangar.MachineEvent
	for i := range 100 {
		want = append(want, rig.feed.record(event("acme", i%5, hangar.EventStart))...)
	}
	up.until(t.Context(), t, len(want))
	up.check(t, want)
	if n := most.Load(); n > 4 {
		t.Errorf("%d requests of one organization were on their way, want at most 4", n)
	}
}

// TestReceiverGoes: what waits for a receiver goes with it, also if that happened while nothing ran, but
// not while it is unknown whether it has gone.
func TestReceiverGoes(t *testing.T) {
	t.Parallel()
	down := newSink(t, func(*http.Request, string) int { return http.StatusServiceUnavailable })
	one, two := to("one", "acme", down.URL), to("two", "acme", down.URL)
	rig := newRig(t, fast, one, two)
	rig.await()
	rig.feed.record(event("acme", 1, hangar.EventStart))
	waits := func(s hangar.WebhookStatus) bool { return s.Waiting == 1 }
	gone := func(s hangar.WebhookStatus) bool { return s.Waiting == 0 && !s.Failing }
	rig.until("one", waits)
	rig.until("two", waits)
	rig.registry.put(one)
	rig.until("two", gone)
	rig.stop()
	rig.registry.put(hangar.EventReceiver{Org: "acme", Unreadable: true})
	rig.start()
	rig.feed.record(event("acme", 1, hangar.EventStart))
	if status := rig.ReceiverStatus("one"); status.Waiting != 1 {
		t.Errorf("unreadable: %+v", status)
	}
	rig.stop()
	rig.registry.put(two)
	rig.start()
	rig.await()
	rig.until("one", gone)
	if _, err := rig.Ping(t.Context(), "one"); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("ping of one that is gone: %v", err)
	}
}

// TestLostEvents: events that the host has not kept are counted, and a host that has lost its records
// starts over.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	rig := newRig(t, fast, to("hook", "acme", s.URL))
	rig.await()
	rig.feed.record(event("acme", 1, hangar.EventStart))
	s.until(t.Context(), t, 1)
	rig.stop()
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{event("acme", 1, hangar.EventStart)}, 5)...)
	rig.feed.floor = 4
	rig.start()
	s.until(t.Context(), t, 3)
	if n := valueOf(t, rig.Dispatcher, "hangar_webhook_lost_events_total"); n != 3 {
		t.Errorf("%v events are lost, want 3", n)
	}
	rig.stop()
	rig.feed = newFeed()
	fresh := rig.feed.record(event("acme", 9, hangar.EventStart))
	rig.start()
	s.until(t.Context(), t, 4)
	if n := valueOf(t, rig.Dispatcher, "hangar_webhook_lost_events_total"); n != 0 {
		t.Errorf("%v events are lost with the records", n)
	}
	if got := s.of[string(fresh[0].Machine)]; len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestDiskFull: while nothing can be written events stay with their host.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	var full atomic.Bool
	refused := make(chan struct{}, 1)
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Admit = func(int64) error {
			if !full.Load() {
				return nil
			}
			select {
			case refused <- struct{}{}:
			default:
			}
			return errors.New("full")
		}
	}, to("hook", "acme", s.URL))
	rig.await()
	full.Store(true)
	want := rig.feed.record(event("acme", 1, hangar.EventStart), event("acme", 1, hangar.EventExit))
	<-refused
	if status := rig.ReceiverStatus("hook"); status.Waiting != 0 {
		t.Errorf("%+v", status)
	}
	full.Store(false)
	s.until(t.Context(), t, 2)
	s.check(t, want)
}

// TestUnreadableFile: while the disk does not read a part of the file, calls fail, and the next start puts it aside.
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	s := newSink(t, nil)
	rig := newRig(t, fast, to("hook", "acme", s.URL))
	rig.await()
	want := rig.feed.record(event("acme", 1, hangar.EventStart), event("acme", 1, hangar.EventExit))
	s.until(t.Context(), t, 2)
	rig.until("hook", func(status hangar.WebhookStatus) bool { return status.Waiting == 0 })
	path := filepath.Join(rig.dir, "webhooks.db")
	// Reading beyond the end of a file that is mapped into memory faults, as a failed read does.
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if list, err := rig.ReceiverDeliveries("hook", hangar.DeliveryQuery{}); err == nil {
		t.Errorf("deliveries are %v, and cannot be read", list)
	}
	rig.restart()
	want = append(want, rig.feed.record(event("acme", 1, hangar.EventStart))...)
	s.until(t.Context(), t, len(want))
	s.check(t, want)
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Errorf("the damaged file is not put aside: %v", err)
	}
}

// TestUnreadableQueue: it is not read again and again.
func TestUnreadableQueue(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := newSink(t, func(*http.Request, string) int {
		<-release
		return http.StatusNoContent
	})
	var failed atomic.Int64
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Log = slog.New(slog.NewTextHandler(lines(func(line string) {
			if strings.Contains(line, "queue of a receiver cannot be read") {
				failed.Add(1)
			}
		}), nil))
	}, to("hook", "acme", s.URL))
	rig.await()
	n := 2 * delivery.WindowSize
	rig.feed.record(slices.Repeat([]hangar.MachineEvent{event("acme", 1, hangar.EventStart)}, n)...)
	rig.until("hook", func(status hangar.WebhookStatus) bool { return status.Waiting == n })
	if err := os.Truncate(filepath.Join(rig.dir, "webhooks.db"), int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	close(release)
	for failed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // for it to be read again, wrongly
	if n := failed.Load(); n > 10 {
		t.Errorf("it was read %d times", n)
	}
	rig.kill()
}

// lines is a Writer to which a log writes.
type lines func(line string)

func (l lines) Write(p []byte) (int, error) {
	l(string(p))
	return len(p), nil
}

// TestAwaitReceiver: it ends with its context.
func TestAwaitReceiver(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := rig.AwaitReceiver(ctx, "nobody", 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestQueueOfOneThatEndsWhileItStarts: a Dispatcher that learns of its receivers when it ends keeps their queues.
func TestQueueOfOneThatEndsWhileItStarts(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	s := newSink(t, func(*http.Request, string) int {
		if up.Load() {
			return http.StatusOK
		}
		return http.StatusBadGateway
	})
	rig := newRig(t, fast, to("a", "acme", s.URL))
	rig.await()
	rig.feed.record(event("acme", 1, hangar.EventStart))
	rig.until("a", func(s hangar.WebhookStatus) bool { return s.Waiting == 1 })
	rig.stop()
	rig.registry.late = make(chan struct{})
	rig.start()
	<-rig.registry.late
	rig.stop()
	rig.registry.late = nil
	up.Store(true)
	rig.start()
	s.until(t.Context(), t, 1)
}

// TestModel records events for receivers that are up, down, slow, hanging or broken for some Machines,
// which changes all the time, and drops the process at any moment. In the end every event was accepted
// by every receiver, those of a Machine in order.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			model(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func model(t *testing.T, rng *rand.Rand) {
	t.Helper()
	const receivers, machines, steps = 6, 5, 80
	orgs := []hangar.OrgID{"acme", "rival"}
	moods := make([]atomic.Int64, receivers)
	var sinks []*sink
	var set []hangar.EventReceiver
	for i := range receivers {
		sinks = append(sinks, newSink(t, func(r *http.Request, machine string) int {
			switch moods[i].Load() {
			case 1:
				return http.StatusBadGateway
			case 2:
				if machine[len(machine)-1]%2 == 0 {
					return http.StatusNotFound
				}
			case 3:
				<-r.Context().Done()
				return http.StatusOK // the answer is lost, and counts as accepted
			case 4:
				time.Sleep(2 * time.Millisecond)
			}
			return http.StatusOK
		}))
		set = append(set, to(string(rune('a'+i)), orgs[i%2], sinks[i].URL))
	}
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Timing.Attempt = 2 * time.Second
	}, set...)
	rig.await()
	want := map[hangar.OrgID][]hangar.MachineEvent{}
	for range steps {
		switch n := rng.IntN(20); {
		case n == 0:
			rig.restart()
		case n < 6:
			moods[rng.IntN(receivers)].Store(rng.Int64N(5))
		case n == 6:
			i := rng.IntN(receivers)
			set[i].Version++
			rig.registry.put(set...)
		case n == 7:
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
		default:
			for range 1 + rng.IntN(20) {
				org := orgs[rng.IntN(2)]
				want[org] = append(want[org], rig.feed.record(event(org, rng.IntN(machines), hangar.EventTypes()[rng.IntN(11)]))...)
			}
		}
	}
	for i := range moods {
		moods[i].Store(0)
	}
	for i, s := range sinks {
		s.until(t.Context(), t, len(want[orgs[i%2]]))
		s.check(t, want[orgs[i%2]])
		status := rig.until(set[i].ID, func(s hangar.WebhookStatus) bool { return s.Waiting == 0 })
		if status.Dead != 0 || status.WaitingBytes != 0 {
			t.Errorf("%+v", status)
		}
	}
}
