package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pause"
)

// DefaultPeriod is for how long a key signs.
const DefaultPeriod = 30 * 24 * time.Hour

// MinPeriod is the shortest Policy.Period that leaves DefaultPolicy its other times.
const MinPeriod = time.Hour

// Policy says when keys come and go.
type Policy struct {
	Period time.Duration // for how long a key signs
	// MaxAge is how long verifiers may cache the keys.
	MaxAge time.Duration
	// Lead is for how long a key is shown before it signs. What it is longer than
	// MaxAge is how long it may take until all servers show it, and how far their
	// clocks may be apart.
	Lead time.Duration
	// Linger is for how long a key is shown after its last token should have expired:
	// how long it may take until all servers notice that it was retired out of turn.
	Linger time.Duration
}

// DefaultPolicy is the Policy unless the operator sets another.
func DefaultPolicy() Policy {
	return Policy{Period: DefaultPeriod, MaxAge: 5 * time.Minute, Lead: 15 * time.Minute, Linger: 10 * time.Minute}
}

// shown is the place of the first key that is shown at a time: of those before, all
// tokens have expired.
func (p Policy) shown(r record, now time.Time) int {
	first, current := 0, r.current(now)
	for first < current && !p.dropAt(r, first).After(now) {
		first++
	}
	return first
}

// dropAt is when a key that is not the last one is no longer needed.
func (p Policy) dropAt(r record, at int) time.Time {
	return r.until(at).Add(hangar.IdentityTokenLifetime + p.Linger)
}

// advance does to a record what is due at a time, and reports whether that was
// anything. There is always one key after the current one.
func (p Policy) advance(r *record, now time.Time, fresh NewKey) (bool, error) {
	if len(r.Keys) == 0 {
		// No verifier has cached a set yet, so these two need not be published ahead of
		// their time.
		if err := r.add(fresh, now, now, now); err != nil {
			return false, err
		}
		return true, r.add(fresh, now, now, now.Add(p.Period))
	}
	old := p.shown(*r, now)
	r.Keys = slices.Delete(r.Keys, 0, old)
	changed := old > 0
	at := r.current(now)
	end := r.Keys[at].NotBefore.Add(p.Period)
	if at+1 == len(r.Keys) {
		ready := now.Add(p.Lead)
		return true, r.add(fresh, now, ready, latest(end, ready))
	}
	// The period may have become shorter than it was.
	if next := &r.Keys[at+1]; next.NotBefore.After(latest(end, next.Ready, now)) {
		next.NotBefore = latest(end, next.Ready, now)
		changed = true
	}
	return changed, nil
}

// rotate has the next key sign as soon as it may. It reports whether that is sooner
// than it was.
func (p Policy) rotate(r record, now time.Time) bool {
	at := r.current(now)
	if at+1 == len(r.Keys) {
		return false // there will be one after advance
	}
	next := &r.Keys[at+1]
	// A clock may be behind the one that the current key was made by.
	if soonest := latest(next.Ready, now, r.Keys[at].NotBefore); soonest.Before(next.NotBefore) {
		next.NotBefore = soonest
		return true
	}
	return false
}

// due is when advance has something to do next.
func (p Policy) due(r record, now time.Time) time.Time {
	at := r.current(now)
	if at+1 == len(r.Keys) {
		return now
	}
	next := r.Keys[at+1].NotBefore
	if first := p.shown(r, now); first > 0 {
		return now
	} else if first < at {
		if drop := p.dropAt(r, first); drop.Before(next) {
			return drop
		}
	}
	return next
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

const (
	commitTimeout = 30 * time.Second // of a change, after which a key counts as shown late
	minPause      = 10 * time.Millisecond
	maxPause      = time.Hour // so that the work of another server is finished if it is gone
	minRetry      = time.Second
	maxRetry      = time.Minute
)

// Run makes and drops keys when it is time to, until ctx ends. While the state cannot
// be reached it tries again now and then.
func (i *Issuer) Run(ctx context.Context) error {
	retry := minRetry
	for {
		var wait time.Duration
		due, err := i.tend(ctx, nil)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			i.cfg.Log.Warn("keys of identity tokens stay what they are", keyError, err)
			wait, retry = retry, min(2*retry, maxRetry)
		default:
			wait, retry = min(max(due.Sub(i.cfg.Now()), minPause), maxPause), minRetry
		}
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
}

// tend brings the record up to date, and makes a change if one is wanted. It returns
// when there is something to do next.
func (i *Issuer) tend(ctx context.Context, change func(r record, now time.Time) bool) (time.Time, error) {
	for {
		r, unchanged, err := i.read(ctx)
		if err != nil {
			return time.Time{}, err
		}
		now := i.cfg.Now().UTC().Truncate(time.Millisecond)
		changed, err := i.cfg.Policy.advance(&r, now, i.cfg.NewKey)
		if err == nil && change != nil && change(r, now) {
			changed = true
			_, err = i.cfg.Policy.advance(&r, now, i.cfg.NewKey)
		}
		if err != nil {
			return time.Time{}, err
		}
		if !changed {
			return i.cfg.Policy.due(r, now), nil
		}
		err = i.store(ctx, r, unchanged)
		if errors.Is(err, state.ErrConflict) {
			continue // another server was faster
		}
		if err != nil {
			return time.Time{}, err
		}
		i.cfg.Log.Info("keys of identity tokens changed", keyKey, r.Keys[r.current(now)].ID, keyCount, len(r.Keys))
		if _, err := i.keys(ctx); err != nil {
			return time.Time{}, err
		}
		return i.cfg.Policy.due(r, now), nil
	}
}

// read returns the record as it is, empty if there is none, and what must hold when it
// is replaced.
func (i *Issuer) read(ctx context.Context) (record, state.Compare, error) {
	item, err := i.cfg.Store.Get(ctx, recordKey)
	if errors.Is(err, state.ErrNotFound) {
		return record{}, state.Absent(recordKey), nil
	}
	if err == nil {
		err = i.learn(item)
	}
	if err != nil {
		return record{}, state.Compare{}, err
	}
	// What was learnt may be newer than the item.
	known := i.known.Load()
	return record{Keys: slices.Clone(known.Keys)}, state.Compare{Key: recordKey, Revision: known.revision}, nil
}

func (i *Issuer) store(ctx context.Context, r record, unchanged state.Compare) error {
	plain, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode keys: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	return i.cfg.Vault.Put(ctx, recordKey, plain, unchanged)
}
