package control_test

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// lagging is a state whose changes are seen late.
type lagging struct {
	*state.Memory

	late atomic.Bool
}

func (l *lagging) Watch(ctx context.Context, prefix string, from state.Revision) iter.Seq2[state.Batch, error] {
	return func(yield func(state.Batch, error) bool) {
		for batch, err := range l.Memory.Watch(ctx, prefix, from) {
			if l.late.Load() {
				time.Sleep(time.Second / 2)
			}
			if !yield(batch, err) {
				return
			}
		}
	}
}

// TestGrantsOfAServerThatLags: a client may use at one server at once what it got at another.
func TestGrantsOfAServerThatLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &lagging{Memory: state.NewMemory()}
		mirror := func(store state.Store) *state.Mirror {
			m := state.NewMirror(state.MirrorConfig{Store: store, Log: quiet})
			if err := m.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			return m
		}
		a := newPlane(t, mirror(shared.Memory))
		b := &plane{store: mirror(shared), dir: t.TempDir(), hosts: a.hosts, keys: a.keys, clock: a.clock}
		b.restart(t)
		client, acme := party("logs"), a.org(t, "acme")
		a.member(t, "ann", "acme", hangar.RoleMember)
		ctx, _ := a.session(t, "ann@example.com", goodPassword)
		made := a.grant(ctx, t, client, acme.ID)
		synctest.Wait()
		shared.late.Store(true)

		refreshed, err := a.OAuth().RefreshTokens(t.Context(), client, made.Refresh)
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.OAuth().RefreshTokens(t.Context(), client, refreshed.Refresh)
		if err != nil {
			t.Fatalf("a fresh refresh token: %v", err)
		}
		if _, err = b.exchange(t, client, a.authorize(ctx, t, client, acme.ID)); err != nil {
			t.Errorf("a fresh code: %v", err)
		}
		time.Sleep(time.Minute)
		last, err := a.OAuth().RefreshTokens(t.Context(), client, again.Refresh)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.OAuth().RevokeGrant(t.Context(), client, last.Access); err != nil {
			t.Error(err)
		}
		_, err = a.OAuth().RefreshTokens(t.Context(), client, last.Refresh) // the grant has ended
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	})
}
