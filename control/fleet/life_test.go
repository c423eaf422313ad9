package fleet_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
)

// TestSuspicionEndsWithTheLease: a host that is recorded as suspect while it holds its lease, as after
// a race of the two, has all of DeadAfter when it loses the lease much later.
func TestSuspicionEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		ctx, stop := context.WithCancel(t.Context())
		run, wait := runner(t, nil)
		run(ctx, f)
		synctest.Wait()
		join := applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")
		if err := f.AdmitHost(ctx, join); err != nil {
			t.Fatal(err)
		}
		living, kill := context.WithCancel(ctx)
		run(living, w.host(second, true))
		synctest.Wait()
		if err := f.AdmitHost(ctx, join); err != nil { // it writes the record of a suspect host
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		kill()
		time.Sleep(30 * time.Second) // half of DeadAfter
		synctest.Wait()
		if h, err := f.Host(admin(ctx), second); err != nil || h.State != hangar.HostSuspect {
			t.Errorf("a host that has just lost its lease is %s, %v", h.State, err)
		}
		stop()
		wait()
	})
}

// TestClockThatIsAhead: a host whose clock is an hour ahead of the one that has recorded a suspicion waits as
// long as any other before it takes the suspect for dead.
func TestClockThatIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		ctx, stop := context.WithCancel(t.Context())
		run, wait := runner(t, nil)
		living, kill := context.WithCancel(ctx)
		run(living, f)
		synctest.Wait()
		if err := f.AdmitHost(ctx, applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")); err != nil { // and it never runs
			t.Fatal(err)
		}
		kill()
		w.ahead = time.Hour
		run(ctx, w.host(first, false))
		for _, want := range []hangar.HostState{hangar.HostSuspect, hangar.HostDead} {
			time.Sleep(45 * time.Second) // of a minute
			synctest.Wait()
			if h, err := f.Host(admin(ctx), second); err != nil || h.State != want {
				t.Errorf("the host is %s, %v, want %s", h.State, err, want)
			}
		}
		stop()
		wait()
	})
}

// removing is a Presence before whose Hold something happens.
type removing struct {
	*state.Memory
	before func()
}

func (r *removing) Hold(ctx context.Context, key string, value []byte, ttl time.Duration, held func()) error {
	r.before()
	return r.Memory.Hold(ctx, key, value, ttl, held)
}

// TestRemovedBeforeItHolds: a host that is removed after it has looked at its record, and before it
// holds its lease, ends as any other that is removed.
func TestRemovedBeforeItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		if err := f.AdmitHost(t.Context(), applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		other := w.hostWith(second, true, &removing{w.store, func() {
			if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{Force: true}); err != nil {
				t.Error(err)
			}
		}})
		go func() { ended <- other.Run(ctx) }()
		time.Sleep(time.Minute)
		stop()
		if err := <-ended; !errors.Is(err, fleet.ErrRemoved) {
			t.Errorf("a removed host goes on: %v", err)
		}
	})
}

// TestRemovedWhileItComesBack: a host that starts again while it is removed does not go on without its
// rows, and cannot join again before it is gone.
func TestRemovedWhileItComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		join := applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")
		if err := f.AdmitHost(t.Context(), join); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		w.rows.retracting = func() {
			go func() { ended <- w.host(second, true).Run(ctx) }()
			synctest.Wait()
			if err := f.AdmitHost(ctx, join); hangar.CodeOf(err) != hangar.CodeConflict {
				t.Errorf("it joins again: %v", err)
			}
		}
		if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{}); hangar.CodeOf(err) != hangar.CodeConflict {
			t.Errorf("removed with what it has: %v", err)
		}
		if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{Force: true}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		stop()
		if err := <-ended; !errors.Is(err, fleet.ErrRemoved) {
			t.Errorf("the host goes on: %v", err)
		}
		if f.Knows(t.Context(), second) {
			t.Error("the host is still known")
		}
	})
}

// TestFirstHostIsRemoved: what ends a host is told that it has not joined, because its admin token has another name.
func TestFirstHostIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f, other := w.host(first, false), w.host(second, true)
		if err := f.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.AdmitHost(t.Context(), applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")); err != nil {
			t.Fatal(err)
		}
		if err := other.RemoveHost(admin(t.Context()), first, hangar.HostRemoval{}); err != nil {
			t.Fatal(err)
		}
		if err := f.RemoveHost(admin(t.Context()), second, hangar.HostRemoval{Force: true}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.vacated, []hangar.HostID{first, second}) || !slices.Equal(w.founders, []hangar.HostID{first}) {
			t.Errorf("vacated %v, of which %v were the first", w.vacated, w.founders)
		}
	})
}
