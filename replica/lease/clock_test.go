package lease

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/etcdtest"
)

// TestClock has the sources jump against each other.
func TestClock(t *testing.T) {
	var at [3]time.Duration
	at[2] = 1e18 // the wall clock begins elsewhere
	c := newClock(func() [3]time.Duration { return at })
	for _, step := range []struct {
		name             string
		mono, boot, wall time.Duration
		want             time.Duration // that has passed
	}{
		{"all alike", time.Second, time.Second, time.Second, time.Second},
		{"the machine slept", time.Second, time.Hour, time.Hour, time.Hour},
		{"all alike again", time.Second, time.Second, time.Second, time.Second},
		{"it continued from a snapshot", 0, 0, time.Minute, time.Minute},
		{"the wall clock is set back", time.Second, time.Second, -time.Hour, time.Second},
		{"and forward later, by a sleep", 0, time.Minute, 0, time.Minute},
		{"and by a snapshot", 0, 0, time.Minute, time.Minute},
	} {
		before := c.Now()
		at[0], at[1], at[2] = at[0]+step.mono, at[1]+step.boot, at[2]+step.wall
		if got := c.Now() - before; got != step.want {
			t.Errorf("%s: %s passed, not %s", step.name, got, step.want)
		}
		if before = c.Now(); c.Now() != before {
			t.Errorf("%s: time passes by itself", step.name)
		}
	}
}

// alone is a member of a cluster of one.
type alone struct{}

func (alone) Identity() (uint64, string, uint64) { return 1, "LFSC1", 0 }
func (alone) Adopt(string) error                 { return nil }
func (alone) Marks() map[string]Mark             { return nil }

// TestSleep has the machine of the primary sleep: at once the lease is not valid, and it is again when etcd has
// granted it anew, in the same term, as no other node had it meanwhile.
func TestSleep(t *testing.T) {
	e, err := NewEtcd(EtcdConfig{
		Endpoints: []string{etcdtest.Start(t)}, Candidate: true, TTL: 5 * time.Second, LockDelay: time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var slept atomic.Int64
	e.clock = newClock(func() [3]time.Duration {
		awake := time.Since(began)
		return [3]time.Duration{awake, awake + time.Duration(slept.Load()), awake}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, alone{}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	wait := func(what string, held bool) Term {
		limit := time.After(30 * time.Second)
		for {
			term, changed := e.Term()
			if term.Held == held && e.Valid(term.Epoch) == held {
				return term
			}
			select {
			case <-changed:
			case <-time.After(time.Millisecond):
			case <-limit:
				t.Fatal("waited in vain: ", what)
			}
		}
	}
	before := wait("the lease", true)
	slept.Store(int64(time.Hour))
	if e.Valid(before.Epoch) {
		t.Error("the lease is valid after an hour of sleep")
	}
	if after := wait("the lease again", true); after.Epoch != before.Epoch {
		t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
	}
}
