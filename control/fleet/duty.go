package fleet

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	dutiesPrefix   = state.FleetPrefix + "duties/"
	onDutyPrefix   = state.FleetPrefix + "on-duty/"
	dutyTakenAgain = "this host takes a duty for all hosts"
)

// Duty is work that one host does for all, and that leaves valuable data on that host. So it stays
// with its host until that is dead or removed, and returns to a host that has had it for longer than
// its substitute.
type Duty struct {
	f      *Fleet
	name   string
	worth  time.Duration
	holder atomic.Pointer[hangar.Host]
}

// Duty returns a duty of a name. What it leaves on a host is worth nothing after a time.
func (f *Fleet) Duty(name string, worth time.Duration) *Duty {
	return &Duty{f: f, name: name, worth: worth}
}

// span is a time in which a host had a duty.
type span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// length is how much of a span is worth something.
func (s span) length(now time.Time, worth time.Duration) time.Duration {
	if oldest := now.Add(-worth); s.Since.Before(oldest) {
		s.Since = oldest
	}
	return max(0, s.Until.Sub(s.Since))
}

// dutyRecord is what is kept of a duty.
type dutyRecord struct {
	Host  hangar.HostID          `json:"host"`
	Since time.Time              `json:"since"`
	Past  map[hangar.HostID]span `json:"past,omitempty"` // of the others that have had it
}

// taken returns the record with which a host takes the duty, unless it is another's.
func (r dutyRecord) taken(self hangar.HostID, hosts map[hangar.HostID]known, now time.Time, worth time.Duration) (dutyRecord, bool) {
	own, has := r.Past[self]
	holder, there := hosts[r.Host]
	vacant := !there || holder.State == hangar.HostDead
	more := has && own.length(now, worth) > span{r.Since, now}.length(now, worth)
	if r.Host == self || !hosts[self].lives || !vacant && !more {
		return r, false
	}
	next := dutyRecord{Host: self, Since: now, Past: maps.Clone(r.Past)}
	if own.length(now, worth) > 0 {
		next.Since = own.Since
	}
	if next.Past == nil {
		next.Past = map[hangar.HostID]span{}
	}
	delete(next.Past, self)
	if there {
		next.Past[r.Host] = span{r.Since, now}
	}
	maps.DeleteFunc(next.Past, func(id hangar.HostID, s span) bool {
		_, known := hosts[id]
		return !known || s.length(now, worth) == 0
	})
	return next, true
}

// dutyView is what is known of a duty at one time.
type dutyView struct {
	hosts  map[hangar.HostID]known
	record dutyRecord
	item   state.Item // without a revision: no host has had it
}

func (d *Duty) key() string { return dutiesPrefix + d.name }

func (d *Duty) read(ctx context.Context) (v dutyView, revision state.Revision, err error) {
	if v.hosts, revision, err = d.f.readAt(ctx); err != nil {
		return v, 0, err
	}
	v.record, v.item, err = state.Read[dutyRecord](ctx, d.f.cfg.Store, d.key())
	if errors.Is(err, state.ErrNotFound) {
		v.item = state.Item{Key: d.key()}
		return v, revision, nil
	}
	return v, revision, state.HangarError(err)
}

// Holder returns the host that has the duty, as far as this one knows; CodeUnavailable: none has it.
func (d *Duty) Holder() (hangar.Host, error) {
	if h := d.holder.Load(); h != nil {
		return *h, nil
	}
	return hangar.Host{}, hangar.Errorf(hangar.CodeUnavailable, "", "no host does the duty %s", d.name)
}

// Run follows who has the duty until ctx ends, and takes it when it is this host's turn. While it
// has it and the state can be reached, do runs. Before another host takes a duty whose host is lost,
// do has ended there. left is called once
// this host does not have the duty any more that it had, and do has ended.
func (d *Duty) Run(ctx context.Context, do func(context.Context), left func()) error {
	var performing sync.WaitGroup
	defer performing.Wait()
	stop := func() {}
	defer func() { stop() }()
	mine := false
	return pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for v, err := range state.Snapshots(ctx, d.f.cfg.Store, state.FleetPrefix, d.read) {
			if err != nil {
				return err
			}
			if err := d.take(ctx, v); err != nil {
				return err
			}
			d.show(v)
			switch now := v.record.Host == d.f.cfg.Self.ID; {
			case now && !mine:
				own, end := context.WithCancel(ctx)
				stop = end
				performing.Go(func() { d.perform(own, do) })
			case !now && mine:
				stop()
				performing.Wait()
				left()
			}
			mine = v.record.Host == d.f.cfg.Self.ID
		}
		return nil
	}, func(err error) {
		d.f.cfg.Log.WarnContext(ctx, "which host has a duty is looked up again", "duty", d.name, "error", err)
	})
}

// show makes known who has the duty.
func (d *Duty) show(v dutyView) {
	h, ok := v.hosts[v.record.Host]
	if !ok || h.State == hangar.HostDead {
		d.holder.Store(nil)
		return
	}
	d.holder.Store(&h.Host)
}

// take takes the duty if it is this host's turn; the next view shows that it has it.
func (d *Duty) take(ctx context.Context, v dutyView) error {
	next, mine := v.record.taken(d.f.cfg.Self.ID, v.hosts, d.f.cfg.Now().UTC().Truncate(time.Second), d.worth)
	if !mine {
		return nil
	}
	put, err := state.Write(d.key(), next)
	if err != nil {
		return err
	}
	_, err = d.f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(v.item)}, Then: []state.Op{put}})
	if errors.Is(err, state.ErrConflict) { // another host was first
		return nil
	}
	if err == nil {
		d.f.cfg.Log.InfoContext(ctx, dutyTakenAgain, "duty", d.name, "before", v.record.Host)
	}
	return state.HangarError(err)
}

// perform has do run whenever this host can prove that it lives, until ctx ends.
func (d *Duty) perform(ctx context.Context, do func(context.Context)) {
	for ctx.Err() == nil {
		holding, stop := context.WithCancel(ctx)
		var doing sync.WaitGroup
		err := d.f.cfg.Presence.Hold(holding, onDutyPrefix+d.name, []byte(d.f.cfg.Self.ID), d.f.cfg.TTL, func() {
			doing.Go(func() { do(holding) })
		})
		stop()
		doing.Wait()
		if ctx.Err() == nil {
			d.f.cfg.Log.WarnContext(ctx, "a duty is interrupted", "duty", d.name, "error", err)
			_ = pause.For(ctx, retryAfter) // the loop looks at ctx
		}
	}
}

// Resign gives up the duty of a host that will not do it any longer.
func (d *Duty) Resign(ctx context.Context) error {
	rec, item, err := state.Read[dutyRecord](ctx, d.f.cfg.Store, d.key())
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.Host != d.f.cfg.Self.ID {
		return nil
	}
	if err == nil {
		_, err = d.f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(d.key())}})
	}
	if errors.Is(err, state.ErrConflict) { // another host has taken it
		return nil
	}
	return state.HangarError(err)
}
