package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics/alerts/notify"
)

// pipes is a network in memory, which works with the time of synctest.
type pipes struct{ conns chan net.Conn }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p *pipes) Close() error   { close(p.conns); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// ledger remembers in memory.
type ledger struct {
	mu   sync.Mutex
	orgs map[hangar.OrgID]map[string][]byte
}

func (l *ledger) LoadNotices(org hangar.OrgID) (map[string][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.orgs[org]), nil
}

func (l *ledger) SaveNotices(org hangar.OrgID, values map[string][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orgs == nil {
		l.orgs = map[hangar.OrgID]map[string][]byte{}
	}
	if l.orgs[org] == nil {
		l.orgs[org] = map[string][]byte{}
	}
	for k, v := range values {
		if v == nil {
			delete(l.orgs[org], k)
		} else {
			l.orgs[org][k] = v
		}
	}
	return nil
}

// got is a notification that a webhook has received.
type got struct {
	at   time.Duration // since the test began
	path string
	notify.Payload
}

// bed is a Notifier with webhooks in memory.
type bed struct {
	t      *testing.T
	begun  time.Time
	ledger *ledger
	mail   *notify.Mail
	answer func(r *http.Request) int // status; 0: none ever

	mu   sync.Mutex
	got  []got
	asks int
	n    *notify.Notifier
	stop func()
}

func newBed(t *testing.T) *bed {
	b := &bed{t: t, begun: time.Now(), ledger: &ledger{}, answer: func(*http.Request) int { return 200 }}
	b.start()
	return b
}

func (b *bed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	b.mu.Lock()
	b.asks++
	b.mu.Unlock()
	status := b.answer(r)
	if status == 0 {
		<-r.Context().Done()
		return
	}
	if r.Header.Get(hangar.AlertSignatureHeader) != notify.Signature(secret, body) {
		b.t.Errorf("the signature is %s", r.Header.Get(hangar.AlertSignatureHeader))
	}
	if status == 200 {
		one := got{at: time.Since(b.begun), path: r.URL.Path}
		if err := json.Unmarshal(body, &one.Payload); err != nil {
			b.t.Error(err)
		}
		b.mu.Lock()
		b.got = append(b.got, one)
		b.mu.Unlock()
	}
	w.Header().Set("Location", "http://elsewhere/")
	w.WriteHeader(status)
}

// start starts a Notifier with the ledger, as after a restart.
func (b *bed) start() {
	network := &pipes{make(chan net.Conn)}
	server := &http.Server{Handler: b}
	ctx, cancel := context.WithCancel(b.t.Context())
	b.n = notify.New(notify.Options{Ledger: b.ledger, Dial: network.dial, Mail: b.mail, ExternalURL: "https://api.example.com", Log: slog.New(slog.DiscardHandler)})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(network) })
	wg.Go(func() { _ = b.n.Run(ctx) })
	synctest.Wait()
	b.stop = sync.OnceFunc(func() {
		cancel()
		server.Close()
		wg.Wait()
	})
}

// sent returns the notifications since the last call, as "time path status firing/resolved".
func (b *bed) sent() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []string{}
	for _, g := range b.got {
		var firing, resolved []string
		for _, a := range g.Alerts {
			if a.Status == "firing" {
				firing = append(firing, a.Labels["i"])
			} else {
				resolved = append(resolved, a.Labels["i"])
			}
		}
		slices.Sort(firing)
		slices.Sort(resolved)
		list = append(list, fmt.Sprintf("%s %s %s %s/%s", g.at, g.path, g.Status, strings.Join(firing, ","), strings.Join(resolved, ",")))
	}
	b.got = nil
	return list
}

func (b *bed) want(list ...string) {
	b.t.Helper()
	if diff := cmp.Diff(append([]string{}, list...), b.sent()); diff != "" {
		b.t.Error(diff)
	}
}

const secret = "0123456789abcdef"

var org = hangar.Org{ID: "org1", Slug: "acme"}

func webhook(name string) hangar.AlertReceiver {
	return hangar.AlertReceiver{Name: name, Webhook: &hangar.AlertWebhook{URL: "http://hook.example.com/" + name, Secret: hangar.NewSensitive(secret)}}
}

func config(receivers ...hangar.AlertReceiver) hangar.AlertConfig {
	return hangar.AlertConfig{Receivers: receivers, Grouping: hangar.AlertGrouping{
		By: []string{"alertname"}, Wait: hangar.Duration(30 * time.Second), Interval: hangar.Duration(5 * time.Minute), Repeat: hangar.Duration(time.Hour),
	}}
}

func firing(name, i string) hangar.Alert {
	return hangar.Alert{
		Group: "g", Name: name, State: hangar.AlertFiring, Labels: map[string]string{"alertname": name, "i": i},
		Annotations: map[string]string{"summary": "all is lost"}, Value: 1, FiredAt: time.Now(), Fingerprint: name + i, Expr: "up == 0",
	}
}

func resolved(name, i string) hangar.Alert {
	a := firing(name, i)
	a.State, a.ResolvedAt = hangar.AlertResolved, time.Now()
	return a
}

// TestTiming: group_wait, group_interval, repeat_interval and the end of alerts.
func TestTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		defer func() { b.stop() }()
		quiet := webhook("quiet")
		quiet.SendResolved = new(bool)
		picky := webhook("picky")
		picky.Match = map[string]string{"i": "2"}
		b.n.Configure(org, config(webhook("all"), quiet, picky))
		tell := func(alerts ...hangar.Alert) { b.n.Update(org.ID, alerts) }

		tell(firing("A", "1"))
		time.Sleep(10 * time.Second)
		tell(firing("A", "2"))
		time.Sleep(time.Minute) // 1m10s
		sent := b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"30s /all firing 1,2/", "30s /quiet firing 1,2/", "40s /picky firing 2/"}, sent); diff != "" {
			t.Error(diff)
		}
		tell(firing("B", "1")) // a group of its own
		tell(firing("A", "3"))
		time.Sleep(5 * time.Minute) // 6m10s
		sent = b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"1m40s /all firing 1/", "1m40s /quiet firing 1/", "5m30s /all firing 1,2,3/", "5m30s /quiet firing 1,2,3/"}, sent); diff != "" {
			t.Error(diff)
		}
		tell(resolved("A", "1"), resolved("B", "1"))
		time.Sleep(9 * time.Minute) // 15m10s
		b.want("6m40s /all resolved /1", "10m30s /all firing 2,3/1")
		tell(resolved("A", "2"), resolved("A", "3"), firing("A", "1"))
		time.Sleep(15 * time.Minute) // 30m10s
		sent = b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"15m30s /all firing 1/2,3", "15m30s /quiet firing 1/", "15m40s /picky resolved /2"}, sent); diff != "" {
			t.Error(diff)
		}
		time.Sleep(2 * time.Hour) // 2h30m10s: repeated at the first look an hour after it was sent
		sent = b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"1h15m30s /all firing 1/", "1h15m30s /quiet firing 1/", "2h15m30s /all firing 1/", "2h15m30s /quiet firing 1/"}, sent); diff != "" {
			t.Error(diff)
		}
		tell(resolved("A", "1"))
		time.Sleep(10 * time.Minute)
		b.want("2h30m30s /all resolved /1")
		if len(b.ledger.orgs[org.ID]) > 0 {
			t.Errorf("the ledger keeps %v", slices.Collect(maps.Keys(b.ledger.orgs[org.ID])))
		}
		tell(resolved("C", "1")) // which was never known to fire
		time.Sleep(time.Hour)
		b.want()
		b.n.Remove(org.ID)
		tell(firing("A", "1"))
		time.Sleep(time.Hour)
		b.want()
	})
}

// TestRestart: sent notifications are not repeated, and changes during the restart are sent.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		defer func() { b.stop() }()
		b.n.Configure(org, config(webhook("all")))
		b.n.Update(org.ID, []hangar.Alert{firing("A", "1"), firing("B", "1"), firing("C", "1")})
		time.Sleep(time.Minute)
		if n := len(b.sent()); n != 3 {
			t.Fatalf("%d notifications", n)
		}
		b.stop()
		b.start()
		b.n.Configure(org, config(webhook("all")))
		b.n.Update(org.ID, []hangar.Alert{firing("A", "1"), resolved("B", "1"), firing("C", "1"), firing("C", "2")})
		time.Sleep(time.Minute - 15*time.Second)
		sent := b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"1m30s /all firing 1,2/", "1m30s /all resolved /1"}, sent); diff != "" {
			t.Error(diff)
		}
		time.Sleep(50 * time.Minute)
		b.want()
		time.Sleep(time.Hour)
		if sent := b.sent(); len(sent) != 2 {
			t.Errorf("repeated: %v", sent)
		}
	})
}

// TestReceiversChange: an unchanged receiver continues, and a new one gets the firing alerts.
func TestReceiversChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		defer func() { b.stop() }()
		b.n.Configure(org, config(webhook("a"), webhook("b")))
		b.n.Update(org.ID, []hangar.Alert{firing("A", "1")})
		time.Sleep(time.Minute)
		b.sent()
		moved := webhook("a")
		moved.Webhook.URL += "/moved"
		b.n.Configure(org, config(webhook("b"), moved, webhook("c")))
		time.Sleep(time.Minute)
		sent := b.sent()
		slices.Sort(sent)
		if diff := cmp.Diff([]string{"1m30s /a/moved firing 1/", "1m30s /c firing 1/"}, sent); diff != "" {
			t.Error(diff)
		}
		if n := len(b.ledger.orgs[org.ID]); n != 3 {
			t.Errorf("the ledger has %d notices", n)
		}
		var names []string
		for _, s := range b.n.Status(org.ID) {
			names = append(names, s.Name)
			if s.SentAt.IsZero() || s.Error != "" || s.Waiting > 0 {
				t.Errorf("status %+v", s)
			}
		}
		if !slices.Equal(names, []string{"b", "a", "c"}) {
			t.Errorf("receivers %v", names)
		}
	})
}

// TestFailures: a receiver that hangs, fails or redirects delays no other one, of its own or
// another organization. It is retried with pauses, and its waiting notifications are limited.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		defer func() { b.stop() }()
		broken, asked := true, map[string][]time.Duration{}
		b.answer = func(r *http.Request) int {
			b.mu.Lock()
			defer b.mu.Unlock()
			asked[r.URL.Path] = append(asked[r.URL.Path], time.Since(b.begun))
			switch {
			case r.URL.Path == "/hangs" && broken:
				return 0
			case r.URL.Path == "/fails" && broken:
				return 500
			case r.URL.Path == "/redirects":
				return 302
			case r.URL.Path == "/gone":
				return 410
			}
			return 200
		}
		other := hangar.Org{ID: "org2", Slug: "other"}
		b.n.Configure(org, config(webhook("hangs"), webhook("fails"), webhook("redirects"), webhook("gone"), webhook("good")))
		b.n.Configure(other, config(webhook("others")))
		b.n.Update(other.ID, []hangar.Alert{firing("A", "1")})
		var many []hangar.Alert
		for i := range 3 * hangar.MaxAlerts {
			many = append(many, firing("A", fmt.Sprint(i)))
		}
		b.n.Update(org.ID, many)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		paths := map[string]int{}
		for _, g := range b.got {
			paths[g.path]++
			if g.at != 30*time.Second {
				t.Errorf("%s was notified after %s", g.path, g.at)
			}
			if g.path == "/good" && (len(g.Alerts) != 200 || g.TruncatedAlerts != 2*hangar.MaxAlerts-200) {
				t.Errorf("%d alerts and %d more", len(g.Alerts), g.TruncatedAlerts)
			}
		}
		if diff := cmp.Diff(map[string]int{"/good": 1, "/others": 1}, paths); diff != "" {
			t.Error(diff)
		}
		b.mu.Lock()
		if n := len(asked["/redirects"]) + len(asked["/gone"]); n != 2 {
			t.Errorf("what was refused is sent %d times", n)
		}
		if n := len(asked["/fails"]); n != 8 {
			t.Errorf("what failed is sent %d times", n)
		}
		if n := len(asked["/hangs"]); n < 4 || n > 8 {
			t.Errorf("what hangs is sent to %d times", n)
		}
		last, least := 30*time.Second, 500*time.Millisecond
		for i, at := range asked["/fails"] {
			if pause := at - last; i > 0 && (pause < least || pause > 2*least+time.Millisecond) {
				t.Errorf("retry %d comes after %s", i, pause)
			} else if i > 0 {
				least = min(2*least, 30*time.Second)
			}
			last = at
		}
		b.mu.Unlock()
		for i, want := range []string{
			"the webhook does not answer in time", "the webhook answers with status 500",
			"the webhook answers with status 302, and redirects are not followed", "the webhook answers with status 410", "",
		} {
			s := b.n.Status(org.ID)[i]
			if s.Error != want {
				t.Errorf("%s: the status says %q, not %q", s.Name, s.Error, want)
			}
			if dropped := hangar.MaxAlerts; s.Dropped < dropped || s.Dropped > dropped+1 {
				t.Errorf("%s: %d were dropped", s.Name, s.Dropped)
			}
			if waiting := s.Waiting; waiting != 0 && waiting != 2*hangar.MaxAlerts {
				t.Errorf("%s: %d are waiting", s.Name, waiting)
			}
		}
		b.mu.Lock()
		broken, b.got = false, nil
		b.mu.Unlock()
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		paths = map[string]int{}
		for _, g := range b.got {
			paths[g.path]++
		}
		if diff := cmp.Diff(map[string]int{"/hangs": 1, "/fails": 1}, paths); diff != "" {
			t.Error(diff)
		}
	})
}
