package scrape_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/scrape"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server handles one connection until it ends.
type server func(conn net.Conn)

// answering answers requests as a handler does, one after another.
func answering(h http.HandlerFunc) server {
	return func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			rec := httptest.NewRecorder()
			h(rec, req)
			resp := rec.Result()
			resp.ContentLength = int64(rec.Body.Len())
			if resp.Write(conn) != nil || resp.Close {
				return
			}
		}
	}
}

// text answers with a body.
func text(body string) server {
	return answering(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
}

// raw reads a request and writes pieces of an answer, with a pause before each.
func raw(pause time.Duration, pieces iter.Seq[string]) server {
	return func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		for piece := range pieces {
			time.Sleep(pause)
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
	}
}

// forever repeats the last piece endlessly.
func forever(pieces ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := 0; yield(pieces[min(i, len(pieces)-1)]); i++ {
		}
	}
}

const okHeader = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"

type sample struct {
	series string // name and labels, as they are written
	value  float64
	stale  bool
	at     time.Duration
	org    hangar.OrgID
}

type dial struct {
	machine hangar.MachineID
	network string
	at      time.Duration
}

// rig is a Scraper with fake Machines, in a synctest bubble.
type rig struct {
	*scrape.Scraper
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex // guards what follows
	targets  []scrape.Target
	machines map[hangar.MachineID]server // nil: refuses
	refuse   string                      // network
	dials    []dial
	samples  []sample
	told     []string
	conns    sync.WaitGroup
	open     map[net.Conn]bool
	writeErr error
}

func within(t *testing.T, l scrape.Limits, play func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{began: time.Now(), done: make(chan struct{}), machines: map[hangar.MachineID]server{}, open: map[net.Conn]bool{}}
		r.Scraper = scrape.New(scrape.Options{Targets: r.list, Dial: r.dial, Writer: r, Tell: r.tell, Limits: l})
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(t.Context())
		go func() { defer close(r.done); r.Run(ctx) }()
		play(t, r)
		r.stop()
		r.conns.Wait()
	})
}

func (r *rig) stop() { r.cancel(); <-r.done }

func (r *rig) list() iter.Seq[scrape.Target] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Values(slices.Clone(r.targets))
}

func (r *rig) dial(ctx context.Context, ref hangar.MachineRef, network string, _ int) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials = append(r.dials, dial{ref.ID, network, time.Since(r.began)})
	serve := r.machines[ref.ID]
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if serve == nil || network == r.refuse {
		return nil, &net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 7)}, Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	r.open[near] = true
	r.conns.Go(func() { serve(far); _ = far.Close() })
	return &watched{near, r}, nil
}

// watched notes that it was closed.
type watched struct {
	net.Conn
	r *rig
}

func (w *watched) Close() error {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	delete(w.r.open, w.Conn)
	return w.Conn.Close()
}

func (r *rig) Write(_ context.Context, tenant metrics.Tenant, samples []metrics.Sample) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range samples {
		var b strings.Builder
		for _, l := range s.Labels {
			if l.Name == metrics.NameLabel {
				b.WriteString(strings.Clone(l.Value))
			}
		}
		for _, l := range s.Labels {
			if l.Name != metrics.NameLabel {
				fmt.Fprintf(&b, " %s=%s", l.Name, l.Value)
			}
		}
		r.samples = append(r.samples, sample{b.String(), s.Value, metrics.IsStale(s.Value), time.UnixMilli(s.Time).Sub(r.began), tenant.Org})
	}
	return r.writeErr
}

func (r *rig) tell(ref hangar.MachineRef, level, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf("%s %s %s", ref.ID, level, message))
}

func target(org, machine string) scrape.Target {
	return scrape.Target{
		Machine: hangar.MachineRef{App: "web", AppID: "app1", ID: hangar.MachineID(machine)},
		Tenant:  metrics.Tenant{Org: hangar.OrgID(org), Number: 7}, Region: "fra", Host: "ab12", Port: 9091, Path: "/metrics",
	}
}

// add adds a Machine, or replaces it.
func (r *rig) add(t scrape.Target, s server) {
	r.remove(t.Machine.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = append(r.targets, t)
	r.machines[t.Machine.ID] = s
}

func (r *rig) serve(id hangar.MachineID, s server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machines[id] = s
}

func (r *rig) remove(id hangar.MachineID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = slices.DeleteFunc(r.targets, func(t scrape.Target) bool { return t.Machine.ID == id })
}

// take returns the samples since the last call.
func (r *rig) take() []sample {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.samples
	r.samples = nil
	return list
}

func (r *rig) dialled() []dial {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

func (r *rig) lines() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.told
	r.told = nil
	return list
}

func (r *rig) value(t *testing.T, name, label string) float64 {
	t.Helper()
	return metricstest.Value(t, r.Scraper, name, label)
}

// want compares series, values and markers, but not times.
func want(t *testing.T, got []sample, want ...string) {
	t.Helper()
	var list []string
	for _, s := range got {
		if s.stale {
			list = append(list, s.series+" stale")
		} else {
			list = append(list, fmt.Sprintf("%s %v", s.series, s.value))
		}
	}
	if !slices.Equal(list, want) {
		t.Errorf("samples\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
	}
}

const own = " app=web host=ab12 instance=m region=fra"

func TestLabelsOfThePlatform(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		var asked *http.Request
		r.add(target("o", "m"), answering(func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			asked = req
			mu.Unlock()
			_, _ = io.WriteString(w, "# TYPE a counter\na{code=\"200\",instance=\"other\",__org__=\"x\",zone=\"z\"} 5 1000\nb{app=\"evil\"} 1.5\n")
		}))
		time.Sleep(metrics.Interval)
		got := r.take()
		want(t, got, "a app=web code=200 host=ab12 instance=m region=fra zone=z 5", "b"+own+" 1.5")
		for _, s := range got {
			if s.org != "o" || s.at < 0 || s.at > metrics.Interval {
				t.Errorf("%+v", s)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if asked.Method != http.MethodGet || asked.URL.Path != "/metrics" || asked.Host != "pipe" ||
			!strings.Contains(asked.Header.Get("Accept"), "application/openmetrics-text") || asked.UserAgent() == "" {
			t.Errorf("request %+v", asked)
		}
		if told := r.lines(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
	})
}

func TestEachMachineHasATimeOfItsOwn(t *testing.T) {
	var first []dial
	for round := range 2 {
		within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
			time.Sleep(time.Duration(round) * 3 * time.Second) // another daemon asks at the same times
			for i := range 100 {
				r.add(target("o", fmt.Sprintf("m%02d", i)), nil)
			}
			time.Sleep(2*time.Minute - time.Duration(round)*3*time.Second)
			times := map[hangar.MachineID][]time.Duration{}
			for _, d := range r.dialled() {
				if d.network == "tcp4" {
					times[d.machine] = append(times[d.machine], d.at)
				}
			}
			offsets := map[time.Duration]bool{}
			for id, list := range times {
				offsets[list[0]%metrics.Interval] = true
				for i := range list[1:] {
					if list[i+1]-list[i] != metrics.Interval {
						t.Errorf("%s is asked at %v", id, list)
					}
				}
			}
			if len(times) != 100 || len(offsets) < 95 {
				t.Errorf("%d Machines are asked at %d times", len(times), len(offsets))
			}
			last := slices.DeleteFunc(r.dialled(), func(d dial) bool { return d.at < time.Minute })
			if round == 0 {
				first = last
			} else if !slices.Equal(first, last) {
				t.Error("another daemon asks at other times")
			}
		})
	}
}

func TestSeriesThatEnd(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), text("a 1\nb 2\nc 3\n"))
		time.Sleep(metrics.Interval)
		want(t, r.take(), "a"+own+" 1", "b"+own+" 2", "c"+own+" 3")

		r.serve("m", text("c 3\na 1\n")) // the connection that there is still has the old
		r.add(func() scrape.Target { x := target("o", "m"); x.Generation++; return x }(), text("c 3\na 1\n"))
		time.Sleep(metrics.Interval)
		want(t, r.take(), "c"+own+" 3", "a"+own+" 1", "b"+own+" stale")
		time.Sleep(metrics.Interval)
		want(t, r.take(), "c"+own+" 3", "a"+own+" 1")

		r.add(func() scrape.Target { x := target("o", "m"); x.Generation += 2; return x }(), nil) // it fails
		time.Sleep(metrics.Interval)
		got := r.take()
		want(t, got, "c"+own+" stale", "a"+own+" stale")
		time.Sleep(metrics.Interval)
		want(t, r.take())

		r.serve("m", text("a 1\n"))
		time.Sleep(metrics.Interval)
		want(t, r.take(), "a"+own+" 1")
		before := time.Since(r.began)
		r.remove("m") // it is stopped, suspended or destroyed
		time.Sleep(2 * time.Second)
		got = r.take()
		want(t, got, "a"+own+" stale")
		if got[0].at < before {
			t.Errorf("the marker is of %s, before %s", got[0].at, before)
		}
		if n, open := r.value(t, "hangar_scrape_targets", ""), len(r.open); n != 0 || open != 0 {
			t.Errorf("%v targets and %d connections are left", n, open)
		}
		dials := len(r.dialled())
		time.Sleep(time.Hour)
		want(t, r.take())
		if n := len(r.dialled()); n != dials {
			t.Error("a Machine is dialled that does not run")
		}
		r.add(target("o", "m"), text("a 2\n")) // it has been started
		time.Sleep(metrics.Interval + time.Second)
		want(t, r.take(), "a"+own+" 2")
	})
}

func TestTheEndOfTheDaemonIsNoEndOfSeries(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), text("a 1\n"))
		time.Sleep(metrics.Interval)
		want(t, r.take(), "a"+own+" 1")
		r.stop()
		want(t, r.take())
		if n := len(r.open); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// TestAMachineThatGoesDuringAScrape: its markers follow all of its samples.
func TestAMachineThatGoesDuringAScrape(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), text("a 1\n"))
		time.Sleep(metrics.Interval)
		want(t, r.take(), "a"+own+" 1")
		r.add(func() scrape.Target { x := target("o", "m"); x.Generation++; return x }(),
			raw(2*time.Second, slices.Values([]string{okHeader, "a 2\n", "a 3\n"})))
		for r.value(t, "hangar_scrape_under_way", "") == 0 {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		r.remove("m")
		time.Sleep(time.Minute)
		want(t, r.take(), "a"+own+" stale")
		if told := r.lines(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
	})
}

// TestANewNameEndsTheOldSeries: the labels of a series do not change during its life.
func TestANewNameEndsTheOldSeries(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), text("a 1\n"))
		time.Sleep(metrics.Interval)
		r.take()
		moved := target("o", "m")
		moved.Machine.App = "shop"
		r.add(moved, text("a 1\n"))
		time.Sleep(metrics.Interval + 2*time.Second)
		want(t, r.take(), "a"+own+" stale", "a app=shop host=ab12 instance=m region=fra 1")
	})
}

func TestConnectionsAreKept(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "kept"), text("a 1\n"))
		r.add(target("o", "closes"), answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "a 1\n")
		}))
		r.add(target("o", "idle"), func(conn net.Conn) { // closes what is idle, as many servers do
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			text("a 1\n")(conn)
		})
		r.mu.Lock()
		r.refuse = "tcp4"
		r.mu.Unlock()
		time.Sleep(10 * metrics.Interval)
		n := map[string]int{}
		for _, d := range r.dialled() {
			n[string(d.machine)+" "+d.network]++
		}
		for what, want := range map[string]int{"kept tcp4": 1, "kept tcp6": 1, "closes tcp4": 1, "closes tcp6": 10, "idle tcp4": 1, "idle tcp6": 10} {
			if n[what] != want {
				t.Errorf("%s: %d dials, want %d", what, n[what], want)
			}
		}
		if got := len(r.take()); got != 30 {
			t.Errorf("%d samples", got)
		}
	})
}

func TestTheOwnerIsToldOncePerChange(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		refusing := answering(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "SECRET", http.StatusTeapot) })
		now := target("o", "m")
		step := func(s server, intervals int) string {
			now.Generation++
			r.add(now, s)
			time.Sleep(time.Duration(intervals) * metrics.Interval)
			return strings.Join(r.lines(), "\n")
		}
		for i, c := range []struct {
			s    server
			want string
		}{
			{nil, "m warn The metrics of port 9091 cannot be read: nothing listens on the port; it has to listen on 0.0.0.0 or the private address"},
			{nil, ""},
			{text("a 1\n"), "m info The metrics of port 9091 are read again without problems"},
			{text("a 1\n"), ""},
			{refusing, "m warn The metrics of port 9091 cannot be read: the answer has the status 418"},
			{text("a 1\n<SECRET>\n\n<>\n"), "m warn Some of the metrics of port 9091 are left out: 2 lines cannot be read; the first is line 2"},
			{text("a 1\n<SECRET>\n"), ""},
			{text("a 1\na 2\n"), "m warn Some of the metrics of port 9091 are left out: 1 samples are of series that were there already; labels named app, region, host or instance do not tell series apart"},
			{text("a 1\n"), "m info The metrics of port 9091 are read again without problems"},
		} {
			if got := step(c.s, 6); got != c.want {
				t.Errorf("step %d: told\n%s\nwant\n%s", i, got, c.want)
			}
		}
		// One that is never the same fills no log.
		for i := range 240 {
			step([]server{text("a 1\n"), refusing}[i%2], 1)
		}
		step(nil, 1)
		n := 0
		for i := range 240 {
			n += len(strings.Fields(step([]server{text("a 1\n"), refusing}[i%2], 1))) / 10
		}
		if n > 70 {
			t.Errorf("%d lines in an hour", n)
		}
	})
}

func TestAFailingWriterIsNoProblemOfTheMachine(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.mu.Lock()
		r.writeErr = hangar.Errorf(hangar.CodeUnavailable, "", "no")
		r.mu.Unlock()
		r.add(target("o", "m"), text("a 1\n"))
		time.Sleep(2 * metrics.Interval)
		if told := r.lines(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
		if n := r.value(t, "hangar_scrape_scrapes_total", "write"); n != 2 {
			t.Errorf("%v failures", n)
		}
	})
}
