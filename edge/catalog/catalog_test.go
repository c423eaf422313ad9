package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/internal/pause"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a MachineFeed that a test writes. Each session is one run of
// WatchMachines; closing its channel ends the feed.
type feed struct {
	sessions chan chan step
	starts   atomic.Int64
}

type step struct {
	change hangar.MachineRowChange
	err    error
}

func newFeed() *feed { return &feed{sessions: make(chan chan step, 10)} }

func (f *feed) WatchMachines(ctx context.Context) iter.Seq2[hangar.MachineRowChange, error] {
	return func(yield func(hangar.MachineRowChange, error) bool) {
		f.starts.Add(1)
		var session chan step
		select {
		case session = <-f.sessions:
		case <-ctx.Done():
			yield(hangar.MachineRowChange{}, ctx.Err())
			return
		}
		for {
			select {
			case s, ok := <-session:
				if !ok || !yield(s.change, s.err) {
					return
				}
			case <-ctx.Done():
				yield(hangar.MachineRowChange{}, ctx.Err())
				return
			}
		}
	}
}

// session begins a run of the feed and hands it steps one by one.
func (f *feed) session(steps ...step) chan step {
	ch := make(chan step)
	f.sessions <- ch
	for _, s := range steps {
		ch <- s
	}
	return ch
}

func row(app string, n int, seq uint64) step {
	r := newRow(app, n, seq)
	return step{change: hangar.MachineRowChange{ID: r.Machine.ID, Row: r}}
}

func newRow(app string, n int, seq uint64) *hangar.MachineRow {
	return &hangar.MachineRow{
		Machine: hangar.Machine{ID: machineID(n), App: hangar.AppName(app), AppID: hangar.AppID(app), Host: "h1", State: hangar.MachineStarted},
		Network: 1, Seq: seq,
	}
}

func machineID(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

func with(s step, alter func(r *hangar.MachineRow)) step {
	alter(s.change.Row)
	return s
}

func gone(n int) step { return step{change: hangar.MachineRowChange{ID: machineID(n)}} }

var (
	synced = step{change: hangar.MachineRowChange{Synced: true}}
	broken = step{err: errors.New("connection lost")}
)

// bubble is what a test in a synctest bubble works with.
type bubble struct {
	t    *testing.T
	cat  *catalog.Catalog // follows feed
	feed *feed
	log  *bytes.Buffer
}

// within runs fn in a bubble.
func within(t *testing.T, fn func(in bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFeed()
		c := catalog.New(f, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		fn(bubble{t, c, f, &log})
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

func ids(rows []*hangar.MachineRow) string {
	var text []string
	for _, r := range rows {
		text = append(text, fmt.Sprintf("%s@%d", strings.TrimLeft(string(r.Machine.ID), "0"), r.Seq))
	}
	return strings.Join(text, " ")
}

func want(t *testing.T, c *catalog.Catalog, app hangar.AppID, text string) {
	t.Helper()
	synctest.Wait()
	if got := ids(c.AppMachines(app)); got != text {
		t.Errorf("%s has %q, want %q", app, got, text)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestVersions: equal versions mean equal rows, also after all have gone and some come back.
func TestVersions(t *testing.T) {
	within(t, func(in bubble) {
		t, c := in.t, in.cat
		s := in.feed.session(synced)
		seen := map[uint64]string{}
		// expect says what network 1, and App a on it, have now.
		expect := func(all, a string, changed bool) {
			t.Helper()
			synctest.Wait()
			view := c.Network(1, "a")
			if got := ids(c.Network(1, "").Rows); got != all {
				t.Errorf("the network has %q, not %q", got, all)
			}
			if got := ids(view.Rows); got != a || view.Version != c.NetworkVersion(1, "a") || (view.Version == 0) != (a == "") {
				t.Errorf("the app has %q with version %d and %d, not %q", got, view.Version, c.NetworkVersion(1, "a"), a)
			}
			if was, ok := seen[view.Version]; ok == changed && a != "" || ok && was != a {
				t.Errorf("version %d was that of %q, now of %q", view.Version, was, a)
			}
			seen[view.Version] = a
		}
		expect("", "", false)
		s <- row("a", 1, 1)
		expect("1@1", "1@1", true)
		s <- row("b", 2, 2)
		expect("1@1 2@2", "1@1", false)
		s <- with(row("a", 3, 3), func(r *hangar.MachineRow) { r.Network = 2 })
		expect("1@1 2@2", "1@1", false)
		s <- row("a", 4, 4)
		expect("1@1 2@2 4@4", "1@1 4@4", true)
		s <- gone(4)
		expect("1@1 2@2", "1@1", true)
		s <- gone(1)
		expect("2@2", "", true)
		s <- row("a", 1, 9)
		expect("1@9 2@2", "1@9", true)
	})
}

// TestAddresses: a Machine is found by the address that it has now.
func TestAddresses(t *testing.T) {
	within(t, func(in bubble) {
		t, c := in.t, in.cat
		first, second := netip.MustParseAddr("fdaa:0:1::2"), netip.MustParseAddr("fdaa:0:1::1:2")
		at := func(n int, seq uint64, a netip.Addr) step {
			return with(row("a", n, seq), func(r *hangar.MachineRow) { r.Machine.PrivateIP = a })
		}
		expect := func(a netip.Addr, n int) {
			t.Helper()
			synctest.Wait()
			if r, ok := c.MachineAt(a); ok != (n > 0) || ok && r.Machine.ID != machineID(n) {
				t.Errorf("%s has %v, not machine %d", a, r, n)
			}
		}
		s := in.feed.session(at(1, 1, first), row("a", 3, 1), synced)
		expect(first, 1)
		expect(netip.Addr{}, 0)
		s <- at(1, 2, second)
		expect(first, 0)
		expect(second, 1)
		s <- at(2, 3, second) // before the one that had it is known to be gone
		s <- gone(1)
		expect(second, 2)
		s <- gone(2)
		expect(second, 0)
	})
}

func TestFollowing(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		s := f.session(row("a", 2, 1), row("a", 1, 2), with(row("b", 3, 3), func(r *hangar.MachineRow) { r.Network = 2 }))
		synctest.Wait()
		if isClosed(c.Synced()) {
			t.Error("synced before the feed was")
		}
		want(t, c, "a", "1@2 2@1")
		s <- synced
		synctest.Wait()
		if !isClosed(c.Synced()) {
			t.Error("not synced")
		}
		s <- row("a", 1, 5)
		s <- gone(2)
		s <- gone(9)
		s <- row("b", 4, 6)
		want(t, c, "a", "1@5")
		want(t, c, "b", "3@3 4@6")
		want(t, c, "none", "")
		if got := ids(c.Network(1, "").Rows); got != "1@5 4@6" {
			t.Errorf("network 1 has %q", got)
		}
		if got := ids(c.Network(2, "").Rows); got != "3@3" {
			t.Errorf("network 2 has %q", got)
		}
		if got := ids(c.Network(7, "").Rows); got != "" {
			t.Errorf("network 7 has %q", got)
		}
		if r, ok := c.Machine(machineID(3)); !ok || r.Seq != 3 {
			t.Errorf("Machine = %v, %t", r, ok)
		}
		if _, ok := c.Machine(machineID(2)); ok {
			t.Error("a Machine that is gone is in view")
		}
		if got := fmt.Sprint(c.Apps()); got != "[a b]" || c.Len() != 3 {
			t.Errorf("Apps = %s, Len %d", got, c.Len())
		}
		s <- gone(1)
		synctest.Wait()
		if got := fmt.Sprint(c.Apps()); got != "[b]" {
			t.Errorf("Apps = %s", got)
		}
	})
}

func TestOlderRowsDoNotReplaceNewer(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		s := f.session(synced, row("a", 1, 5), row("a", 1, 4), row("a", 1, 5))
		want(t, c, "a", "1@5")
		// The numbers of another host cannot be compared.
		s <- with(row("a", 1, 2), func(r *hangar.MachineRow) { r.Machine.Host = "h2" })
		want(t, c, "a", "1@2")
	})
}

func TestSnapshotsDoNotChange(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		s := f.session(synced, row("a", 1, 1), row("a", 2, 1))
		synctest.Wait()
		before := c.AppMachines("a")
		if again := c.AppMachines("a"); &again[0] != &before[0] {
			t.Error("two reads of the same state made two lists")
		}
		s <- row("a", 1, 2)
		s <- gone(2)
		want(t, c, "a", "1@2")
		if got := ids(before); got != "1@1 2@1" {
			t.Errorf("the old snapshot is now %q", got)
		}
	})
}

func TestResyncDropsWhatIsGone(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		f.session(row("a", 1, 1), row("a", 2, 1), row("b", 3, 1), row("b", 4, 1), synced, broken)
		want(t, c, "a", "1@1 2@1") // the last view stays
		changedA, cancelA := c.Subscribe("a")
		defer cancelA()
		changedB, cancelB := c.Subscribe("b")
		defer cancelB()
		s := f.session(row("a", 1, 1), row("b", 3, 2), row("b", 4, 1), gone(4))
		want(t, c, "a", "1@1 2@1") // not all has been seen yet
		want(t, c, "b", "3@2")
		s <- synced
		want(t, c, "a", "1@1")
		want(t, c, "b", "3@2")
		if !isClosed(changedA) || !isClosed(changedB) {
			t.Error("a subscriber was not told")
		}
		s <- synced // a second one means nothing
		want(t, c, "a", "1@1")
		if !isClosed(c.Synced()) {
			t.Error("not synced")
		}
	})
}

func TestResyncThatBreaksDropsNothing(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		f.session(row("a", 1, 1), row("a", 2, 1), synced, broken)
		f.session(row("a", 1, 2), broken)
		want(t, c, "a", "1@2 2@1")
		f.session(row("a", 1, 2), synced)
		want(t, c, "a", "1@2")
	})
}

func TestRetryBacksOff(t *testing.T) {
	within(t, func(in bubble) {
		t, f, log := in.t, in.feed, in.log
		delay := pause.Feeds.First
		for n := range 12 {
			begin := time.Now()
			if n%2 == 0 {
				f.session(broken)
			} else {
				close(f.session()) // ends without an error
			}
			for f.starts.Load() < int64(n+2) {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			if took := time.Since(begin); took != delay {
				t.Errorf("retry %d after %v, want %v", n, took, delay)
			}
			delay = min(2*delay, pause.Feeds.Most)
		}
		good := f.session(synced)
		time.Sleep(2 * pause.Feeds.Most)
		good <- broken
		begin, starts := time.Now(), f.starts.Load()
		for f.starts.Load() == starts {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(begin); took != pause.Feeds.First {
			t.Errorf("retry after a good session: %v", took)
		}
		for _, text := range []string{"connection lost", "feed ended"} {
			if !strings.Contains(log.String(), text) {
				t.Errorf("the log does not say %q", text)
			}
		}
	})
}

func TestRunEndsDuringBackOff(t *testing.T) {
	within(t, func(in bubble) {
		f := in.feed
		f.session(broken)
		synctest.Wait()
	})
}

func TestBadRowsHarmNoOther(t *testing.T) {
	good := []step{row("a", 1, 1), row("b", 2, 1)}
	for name, c := range map[string]struct {
		bad step
		log string
	}{
		"names another machine":  {with(row("b", 7, 1), func(r *hangar.MachineRow) { r.Machine.ID = machineID(1) }), "names machine"},
		"names no app":           {row("", 7, 1), "names no app"},
		"unknown state":          {with(row("b", 2, 9), func(r *hangar.MachineRow) { r.Machine.State = "hibernating" }), "hibernating"},
		"takes over a machine":   {row("b", 1, 9), "belongs to app a"},
		"moves between networks": {with(row("b", 2, 9), func(r *hangar.MachineRow) { r.Network = 9 }), "network 1"},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(in bubble) {
				t, cat, f, log := in.t, in.cat, in.feed, in.log
				s := f.session(append(good, c.bad, synced)...)
				want(t, cat, "a", "1@1")
				want(t, cat, "b", "2@1")
				if cat.Skipped() != 1 || !strings.Contains(log.String(), c.log) {
					t.Errorf("Skipped = %d, log %q", cat.Skipped(), log)
				}
				s <- row("b", 2, 10)
				want(t, cat, "b", "2@10")
			})
		})
	}
}

func TestSubscribe(t *testing.T) {
	within(t, func(in bubble) {
		t, c, f := in.t, in.cat, in.feed
		s := f.session(synced)
		a, cancelA := c.Subscribe("a")
		b, cancelB := c.Subscribe("b")
		anyApp, cancelAny := c.Subscribe("")
		told := func(text string) {
			t.Helper()
			synctest.Wait()
			got := fmt.Sprint(isClosed(a), isClosed(b), isClosed(anyApp))
			if got != text {
				t.Errorf("told %s, want %s", got, text)
			}
		}
		told("false false false")
		s <- row("a", 1, 1)
		s <- row("a", 1, 2)
		told("true false true")
		told("false false false")
		s <- row("a", 1, 2) // nothing new
		told("false false false")
		s <- row("b", 2, 1)
		told("false true true")
		s <- gone(1)
		told("true false true")
		s <- gone(1)
		told("false false false")
		cancelA()
		cancelA()
		s <- row("a", 3, 1)
		told("false false true")
		cancelB()
		cancelAny()
		s <- gone(3)
		told("false false false")
	})
}

// TestAwaitMachine: a waiter for a row is woken after observers have been notified of it.
func TestAwaitMachine(t *testing.T) {
	within(t, func(in bubble) {
		var told atomic.Uint64
		in.cat.Observe(func(_, row *hangar.MachineRow) {
			runtime.Gosched()
			if row != nil {
				told.Store(row.Seq)
			}
		})
		s := in.feed.session(row("a", 1, 1), row("a", 2, 1), synced)
		ref := hangar.MachineRef{App: "a", AppID: "a", ID: machineID(1)}
		for seq := uint64(1); seq < 1000; seq++ {
			done := make(chan error)
			go func() { done <- in.cat.AwaitMachine(in.t.Context(), ref, seq) }()
			s <- row("a", 1, seq)
			if err := <-done; err != nil || told.Load() < seq {
				in.t.Fatalf("waited for row %d, observers have seen %d: %v", seq, told.Load(), err)
			}
		}
		ctx, cancel := context.WithTimeout(in.t.Context(), time.Second)
		defer cancel()
		if err := in.cat.AwaitMachine(ctx, ref, 1000); !errors.Is(err, context.DeadlineExceeded) {
			in.t.Errorf("a row that never comes: %v", err)
		}
		ended := make(chan error)
		go func() { ended <- in.cat.AwaitMachine(in.t.Context(), ref, 1000) }()
		synctest.Wait()
		s <- gone(1)
		if err := <-ended; err != nil {
			in.t.Errorf("a row that goes: %v", err)
		}
	})
}

// TestReadersAndWriter is for the race detector.
func TestReadersAndWriter(t *testing.T) {
	f := newFeed()
	c := catalog.New(f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	for range 4 {
		wg.Go(func() {
			changed, stop := c.Subscribe("a")
			defer stop()
			for {
				rows := c.AppMachines("a")
				for i, r := range rows {
					if i > 0 && rows[i-1].Machine.ID >= r.Machine.ID {
						t.Errorf("%s after %s", r.Machine.ID, rows[i-1].Machine.ID)
					}
				}
				c.Network(1, "")
				c.Machine(machineID(3))
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	s := f.session(synced)
	for seq := range uint64(2000) {
		s <- row("a", int(seq%17), seq+1)
		if seq%5 == 0 {
			s <- gone(int(seq % 13))
		}
	}
	cancel()
	wg.Wait()
}

func BenchmarkLookup(b *testing.B) {
	const machines, apps = 10_000, 500
	f := newFeed()
	c := catalog.New(f, nil)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	s := f.session()
	for i := range machines {
		s <- row(fmt.Sprint(i%apps), i, 1)
	}
	s <- synced
	<-c.Synced()
	names := make([]hangar.AppID, apps)
	for i := range names {
		names[i] = hangar.AppID(fmt.Sprint(i))
	}
	id := machineID(machines / 2)
	b.Run("Machine", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := c.Machine(id); !ok {
				b.Fatal("not found")
			}
		}
	})
	b.Run("AppMachines", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if len(c.AppMachines(names[i%apps])) != machines/apps {
				b.Fatal("rows are missing")
			}
			i++
		}
	})
	b.Run("AppMachinesParallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.AppMachines("7")
			}
		})
	})
	b.Run("Change", func(b *testing.B) {
		b.ReportAllocs()
		seq := uint64(1)
		for b.Loop() {
			seq++
			s <- row("7", 7, seq)
			c.AppMachines("7")
		}
	})
	cancel()
	<-done
}

// TestObserve: observers are notified of every change, in order, once it is visible.
func TestObserve(t *testing.T) {
	within(t, func(in bubble) {
		var told []string
		in.cat.Observe(func(old, row *hangar.MachineRow) {
			name := func(r *hangar.MachineRow) string {
				if r == nil {
					return "none"
				}
				if seen, _ := in.cat.Machine(r.Machine.ID); seen != row {
					in.t.Error("observers were notified of a change that is not visible")
				}
				return ids([]*hangar.MachineRow{r})
			}
			told = append(told, name(old)+" → "+name(row))
		})
		s := in.feed.session(row("a", 1, 1), row("a", 2, 1), synced, row("a", 1, 2), row("a", 1, 2), gone(1), gone(1))
		close(s)
		in.feed.session(row("a", 3, 1), synced)
		synctest.Wait()
		want := "none → 1@1, none → 2@1, 1@1 → 1@2, 1@2 → none, none → 3@1, 2@1 → none"
		if got := strings.Join(told, ", "); got != want {
			in.t.Errorf("told %q, want %q", got, want)
		}
	})
}
