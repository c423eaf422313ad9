package extensions

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Pauses after failed steps, and of the Provisioner itself.
const (
	firstPause = 2 * time.Second
	lastPause  = 5 * time.Minute
	sweepEvery = 15 * time.Minute
)

// Provisioner carries out the journaled steps of extensions. It asks for no principal.
type Provisioner struct {
	*shared
	schedule *schedule
	running  atomic.Bool
	changed  chan struct{} // buffered 1: a step may be due
}

func newProvisioner(s *shared) *Provisioner {
	return &Provisioner{shared: s, schedule: newSchedule(), changed: make(chan struct{}, 1)}
}

// Run does steps until ctx ends, and returns when no request is in flight.
func (p *Provisioner) Run(ctx context.Context) error {
	p.running.Store(true)
	defer p.running.Store(false)
	defer p.Caller.Close()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { p.follow(ctx) })
	all.Go(func() { p.sweep(ctx) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		begin, at := p.schedule.start(p.Now())
		for _, e := range begin {
			all.Go(func() { p.work(ctx, e) })
		}
		if !at.IsZero() {
			timer.Reset(max(0, at.Sub(p.Now())))
		}
		select {
		case <-p.changed:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wake makes Run check the schedule.
func (p *Provisioner) wake() {
	select {
	case p.changed <- struct{}{}:
	default: // it was woken already
	}
}

// work does one step.
func (p *Provisioner) work(ctx context.Context, e *entry) {
	a, err := p.step(ctx, e.ref, p.schedule.newest(e))
	if err != nil && !errors.Is(err, errStale) && ctx.Err() == nil {
		p.Log.Warn("step of an extension has failed", keyExtension, e.ID, keyProvider, e.provider, keyError, err)
	}
	p.schedule.done(e, a, p.Now(), backOff)
	p.wake()
}

// backOff is the pause after a number of failures, less up to a half at random.
func backOff(failures int) time.Duration {
	d := lastPause
	if failures < 9 { // 2 s doubled eight times is more than lastPause
		d = min(firstPause<<(failures-1), lastPause)
	}
	return d - rand.N(d/2) //nolint:gosec // chance spreads the load; nothing is secret
}

// follow updates the schedule from the state until ctx ends.
func (p *Provisioner) follow(ctx context.Context) {
	_ = pause.Between(ctx, pause.Feeds, p.followOnce, func(err error) {
		p.Log.Warn("extensions cannot be followed", keyError, err)
	})
}

func (p *Provisioner) followOnce(ctx context.Context) error {
	items, revision, err := state.All(ctx, p.Store, state.ExtensionsPrefix, false)
	if err != nil {
		return err
	}
	there := make(map[ref]bool, len(items))
	for _, item := range items {
		if at, ok := refOf(item.Key); ok {
			there[at] = true
		}
		p.apply(state.Change{Item: item})
	}
	p.schedule.keep(there)
	p.wake()
	for batch, err := range p.Store.Watch(ctx, state.ExtensionsPrefix, revision+1) {
		if errors.Is(err, state.ErrCompacted) {
			return nil // all is read again
		}
		if err != nil {
			return err
		}
		for _, c := range batch.Changes {
			p.apply(c)
		}
		if len(batch.Changes) > 0 {
			p.wake()
		}
	}
	return nil
}

func (p *Provisioner) apply(c state.Change) {
	at, ok := refOf(c.Key)
	if !ok {
		return
	}
	if c.Deleted {
		p.schedule.remove(at)
		return
	}
	rec, err := state.Decode[record](c.Item)
	if err != nil {
		p.Log.Error("extension skipped", keyKey, c.Key, keyError, err)
		return
	}
	p.schedule.set(&rec, c.Item, p.Now())
}

// sweep removes expired records.
func (p *Provisioner) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.removeTombstones(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("ids of extensions that are gone are not removed yet", keyError, err)
		}
		_ = pause.For(ctx, sweepEvery)
	}
}

func (p *Provisioner) removeTombstones(ctx context.Context) error {
	items, _, err := state.All(ctx, p.Store, state.ResourcesPrefix, false)
	if err != nil {
		return err
	}
	now := p.Now()
	for _, item := range items {
		known, err := state.Decode[resource](item)
		if err != nil {
			p.Log.Error("id of an extension skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if known.ID != "" || known.Until.After(now) {
			continue
		}
		_, err = p.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}})
		if err != nil && !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
	return nil
}
