package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
)

const third hangar.HostID = "00000003"

// crew is hosts with one duty.
type crew struct {
	*world
	t       *testing.T
	running map[hangar.HostID]func() // ends a host
	duties  map[hangar.HostID]*fleet.Duty

	doing   sync.Mutex
	at      []hangar.HostID // that do the duty now
	history []hangar.HostID // that began to
	left    []hangar.HostID // that do not have it any more
}

func newCrew(t *testing.T) *crew {
	return &crew{world: newWorld(), t: t, running: map[hangar.HostID]func(){}, duties: map[hangar.HostID]*fleet.Duty{}}
}

// start has a host live and do the duty, unless it only lives.
func (c *crew) start(id hangar.HostID, able bool) {
	c.t.Helper()
	f := c.host(id, false)
	if err := f.Register(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { _ = f.Run(ctx) })
	d := f.Duty("work", 24*time.Hour)
	c.duties[id] = d
	if able {
		synctest.Wait() // it lives
		parts.Go(func() {
			if err := d.Run(ctx, func(ctx context.Context) { c.work(ctx, id) }, func() { c.leave(id) }); !errors.Is(err, context.Canceled) {
				c.t.Error(err)
			}
		})
	}
	c.running[id] = func() { cancel(); parts.Wait() }
	synctest.Wait()
}

func (c *crew) work(ctx context.Context, id hangar.HostID) {
	c.doing.Lock()
	c.at, c.history = append(c.at, id), append(c.history, id)
	c.doing.Unlock()
	<-ctx.Done()
	c.doing.Lock()
	defer c.doing.Unlock()
	c.at = slices.DeleteFunc(c.at, func(o hangar.HostID) bool { return o == id })
}

func (c *crew) leave(id hangar.HostID) {
	c.doing.Lock()
	defer c.doing.Unlock()
	if slices.Contains(c.at, id) {
		c.t.Errorf("host %s has left the duty, and does it", id)
	}
	c.left = append(c.left, id)
}

func (c *crew) stop(id hangar.HostID) {
	c.running[id]()
	delete(c.running, id)
	delete(c.duties, id)
	synctest.Wait()
}

func (c *crew) end() {
	for id := range c.running {
		c.stop(id)
	}
}

// is checks that one host has the duty, and that all know which.
func (c *crew) is(when string, id hangar.HostID) {
	c.t.Helper()
	synctest.Wait()
	c.doing.Lock()
	defer c.doing.Unlock()
	if !slices.Equal(c.at, []hangar.HostID{id}) {
		c.t.Fatalf("%s: hosts %v do the duty, want %s", when, c.at, id)
	}
	for at, d := range c.duties {
		if c.able(at) {
			if h, err := d.Holder(); err != nil || h.ID != id || h.Address == "" {
				c.t.Errorf("%s: host %s takes %+v for the holder, %v; want %s", when, at, h, err, id)
			}
		}
	}
}

// able reports whether a host follows who has the duty: the last one here does not.
func (c *crew) able(id hangar.HostID) bool { return id != third }

// TestDuty: one host has a duty; it keeps it over restarts, another takes it once the host is dead, and
// gives it back to one that has had it for longer.
func TestDuty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t)
		defer c.end()
		c.start(third, false) // which never takes it
		c.start(first, true)
		c.is("at first", first)
		c.start(second, true)
		c.is("with another host", first)
		time.Sleep(time.Hour)
		c.stop(first)
		time.Sleep(30 * time.Second)
		c.start(first, true)
		c.is("after a restart", first)

		c.stop(first)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if h, err := c.duties[second].Holder(); err != nil || h.ID != first {
			t.Errorf("while the holder is suspect: %+v, %v", h, err)
		}
		time.Sleep(2 * time.Minute)
		c.is("after the death of the first", second)
		time.Sleep(10 * time.Minute)
		c.start(first, true)
		c.is("after the first has come back with more", first)

		c.stop(first)
		time.Sleep(5 * time.Hour)
		c.is("after the death of the first again", second)
		c.start(first, true)
		c.is("after the first has come back with less", second)

		// One that is removed is lost with what it has.
		c.stop(second)
		if err := c.host(first, false).RemoveHost(admin(t.Context()), second, hangar.HostRemoval{Force: true}); err != nil {
			t.Fatal(err)
		}
		c.is("at once when the holder is removed", first)
		if err := c.duties[first].Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.is("after one that is alone resigns, and takes it again", first)
		if want := []hangar.HostID{first, first, second, first, second, first, first}; !slices.Equal(c.history, want) {
			t.Errorf("the duty was done by %v, want %v", c.history, want)
		}
		if want := []hangar.HostID{second, first}; !slices.Equal(c.left, want) {
			t.Errorf("the duty was left by %v, want %v: one to another, one that resigned", c.left, want)
		}
	})
}

// TestDutyOfWhatIsWorthless: how long ago a host had a duty bounds what that is worth.
func TestDutyOfWhatIsWorthless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t)
		defer c.end()
		c.start(first, true)
		time.Sleep(100 * time.Hour)
		c.start(second, true)
		c.stop(first)
		time.Sleep(13 * time.Hour) // more than half of the day for which it is worth something
		c.is("while the first is dead", second)
		c.start(first, true)
		c.is("after it has come back", second)
	})
}

// TestDutyNeedsTheState: a host that cannot prove that it lives does nothing until it can.
func TestDutyNeedsTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		lost := &lossy{Memory: w.store, lose: make(chan struct{})}
		f := fleet.New(fleet.Config{
			Store: w.store, Presence: lost, Rows: w.rows, Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Self: hangar.Host{ID: first, Region: "loc", Address: "10.0.0.1:4281"},
		})
		if err := f.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer func() { cancel(); parts.Wait() }()
		parts.Go(func() { _ = w.store.Hold(ctx, "/fleet/alive/"+string(first), nil, time.Second, func() {}) })
		synctest.Wait()
		var mu sync.Mutex
		began, ended := 0, 0
		parts.Go(func() {
			_ = f.Duty("work", time.Hour).Run(ctx, func(ctx context.Context) {
				mu.Lock()
				began++
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				ended++
			}, func() { t.Error("another host has taken the duty of the only one") })
		})
		synctest.Wait()
		lost.lose <- struct{}{}
		synctest.Wait()
		mu.Lock()
		if began != 1 || ended != 1 {
			t.Errorf("once the lease is lost: began %d times, ended %d", began, ended)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if began != 2 || ended != 1 {
			t.Errorf("once there is another: began %d times, ended %d", began, ended)
		}
	})
}

// lossy is a state in which leases are lost.
type lossy struct {
	*state.Memory
	lose chan struct{}
}

func (l *lossy) Hold(ctx context.Context, _ string, _ []byte, _ time.Duration, held func()) error {
	held()
	select {
	case <-l.lose:
		return errors.New("lost")
	case <-ctx.Done():
		return nil
	}
}
