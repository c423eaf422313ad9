// Package fleet keeps which hosts the platform has, whether they live, and the tokens with which
// servers join it.
//
// Promises. A host has one record, which it writes itself, except for its cordon and its labels,
// which administrators set. A host is alive as long as it holds its lease, then suspect, and dead
// after Config.DeadAfter without one. Every host watches all others, so no particular one is needed
// to notice a death. An id belongs to one server: a second one with it is refused. A token is kept
// as its digest, and one that is not reusable lets one server in, also of concurrent requests.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state.
//
// It does not know how hosts are reached, nor what they have.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pause"
)

// The keys of the state.
const (
	hostsPrefix  = state.FleetPrefix + "hosts/"
	alivePrefix  = state.FleetPrefix + "alive/"
	tokensPrefix = state.FleetPrefix + "join-tokens/"
)

// The defaults of Config.
const (
	DefaultTTL       = 10 * time.Second
	DefaultDeadAfter = 5 * time.Minute
)

const (
	tendEvery  = 5 * time.Second
	retryAfter = time.Second
)

// Rows are what hosts have published of what they have.
type Rows interface {
	PublishedMachines(ctx context.Context, host hangar.HostID) (map[hangar.MachineID]uint64, error)
	// ReservedMachines are those that the host has or may still make, also without a row.
	ReservedMachines(ctx context.Context, host hangar.HostID) ([]hangar.MachineRef, error)
	RetractMachine(ctx context.Context, host hangar.HostID, ref hangar.MachineRef) error
	PublishedVolumes(ctx context.Context, host hangar.HostID) (map[hangar.VolumeRef]uint64, error)
	RetractVolume(ctx context.Context, host hangar.HostID, ref hangar.VolumeRef) error
}

// Config is what a Fleet needs.
type Config struct {
	Store state.Store
	// Presence is where this host holds its lease. Nil: it is alone, and alive.
	Presence state.Presence
	Self     hangar.Host // with what it says of itself
	Rows     Rows
	// Vacate ends what a host is beside its record, before that is removed; joined is false for the one
	// that was the first. Nil: nothing.
	Vacate func(ctx context.Context, host hangar.Host, joined bool) error
	// Joined says that this host has joined, so that its record is there unless it was removed.
	Joined bool
	// Backup makes a copy of the state. Nil: it is kept by others.
	Backup func(ctx context.Context) (path string, size int64, err error)
	// NewToken makes a token for joining: its id, its text, and the digest of that. Nil: no server
	// can join.
	NewToken func() (id hangar.JoinTokenID, text string, digest []byte)
	JoinURL  string // where servers join
	// Heard is when other hosts were last heard of in the private network; nil: there is none.
	Heard func() map[hangar.HostID]time.Time
	// Room asks a host what it has left; nil: hosts cannot be asked.
	Room func(ctx context.Context, host hangar.HostID) (hangar.HostRoom, error)
	TTL  time.Duration // of leases; 0: DefaultTTL
	// DeadAfter is how long another host sees that a host is suspect before it is dead; 0: DefaultDeadAfter.
	DeadAfter time.Duration
	Log       *slog.Logger
	Now       func() time.Time
}

// Fleet implements hangar.HostFeed, hangar.HostService and hangar.HostRegistrar.
type Fleet struct{ cfg Config }

var (
	_ hangar.HostFeed      = (*Fleet)(nil)
	_ hangar.HostRegistrar = (*Fleet)(nil)
	_ hangar.HostService   = (*Fleet)(nil)
)

// New returns the Fleet of a state.
func New(cfg Config) *Fleet {
	cfg.TTL = cmp.Or(cfg.TTL, DefaultTTL)
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, DefaultDeadAfter)
	return &Fleet{cfg}
}

// record is what is kept of a host.
type record struct {
	hangar.Host
	Key      []byte    `json:"key,omitempty"` // SHA-256 of the public key with which it has joined; empty: it was the first
	JoinedAt time.Time `json:"joined_at"`
	Since    time.Time `json:"since,omitzero"` // when it became suspect, by the clock of who recorded that
	// Removing says that its removal has begun, after which it does not come back.
	Removing bool `json:"removing,omitempty"`
}

func hostKey(id hangar.HostID) string  { return hostsPrefix + string(id) }
func aliveKey(id hangar.HostID) string { return alivePrefix + string(id) }

// ErrRemoved says that an administrator has removed this host.
var ErrRemoved = errors.New("this host was removed from the platform")

// Register writes the record of this host. It returns ErrRemoved where it is to be there, because
// the host has joined, and is not, and while the host is being removed.
func (f *Fleet) Register(ctx context.Context) error {
	for {
		rec, item, err := state.Read[record](ctx, f.cfg.Store, hostKey(f.cfg.Self.ID))
		cond := state.Unchanged(item)
		switch {
		case errors.Is(err, state.ErrNotFound):
			if f.cfg.Joined {
				return ErrRemoved
			}
			rec, cond = record{JoinedAt: f.cfg.Now().UTC().Truncate(time.Second)}, state.Absent(hostKey(f.cfg.Self.ID))
		case err != nil:
			return state.HangarError(err)
		case rec.Removing:
			return ErrRemoved
		}
		before := rec
		own := f.cfg.Self
		own.Cordoned, own.Labels, own.State = rec.Cordoned, rec.Labels, hangar.HostAlive
		rec.Host, rec.Since = own, time.Time{}
		if reflect.DeepEqual(rec, before) {
			return nil
		}
		put, err := state.Write(hostKey(own.ID), rec)
		if err != nil {
			return err
		}
		if _, err = f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{cond}, Then: []state.Op{put}}); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// Run holds the lease of this host and watches the others, until ctx ends. It returns ErrRemoved
// when an administrator has removed this host.
func (f *Fleet) Run(ctx context.Context) error {
	if f.cfg.Presence == nil {
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.hold(ctx); err != nil {
			cancel(err)
		}
	}()
	var suspects state.Sightings
	for pause.For(ctx, tendEvery) == nil {
		switch err := f.tend(ctx, &suspects); {
		case errors.Is(err, ErrRemoved): // after hold has looked
			cancel(err)
		case err != nil && ctx.Err() == nil:
			f.cfg.Log.Warn("which hosts live cannot be recorded", "error", err)
		}
	}
	<-ended
	if err := context.Cause(ctx); errors.Is(err, ErrRemoved) {
		return err
	}
	return nil
}

// hold holds the lease of this host, again after each time that it was lost.
func (f *Fleet) hold(ctx context.Context) error {
	for {
		err := f.Register(ctx)
		if errors.Is(err, ErrRemoved) {
			return err
		}
		if err == nil {
			err = f.cfg.Presence.Hold(ctx, aliveKey(f.cfg.Self.ID), nil, f.cfg.TTL, func() {})
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.cfg.Log.Warn("the other hosts may take this one for lost", "error", err)
		_ = pause.For(ctx, retryAfter)
	}
}

// tend records since when hosts are suspect, and which of them are dead. How long one is suspect
// is by the clock of this host alone, since suspects has its record: those of others may be set differently.
func (f *Fleet) tend(ctx context.Context, suspects *state.Sightings) error {
	hosts, err := f.read(ctx)
	if err != nil {
		return err
	}
	// Another host may have recorded a suspicion while this one took its lease again. Left there, it would
	// make this host dead as soon as it loses the lease the next time.
	if self, ok := hosts[f.cfg.Self.ID]; !ok || self.stored != hangar.HostAlive || self.Removing {
		if err := f.Register(ctx); err != nil {
			return err
		}
	}
	now, seen := f.cfg.Now(), state.Sightings{}
	for _, h := range hosts {
		if !h.lives {
			seen[h.item.Key] = suspects.First(h.item, now)
		}
	}
	*suspects = seen
	for id, h := range hosts {
		next := h.record
		switch {
		case id == f.cfg.Self.ID || h.lives:
			continue
		case h.stored == hangar.HostAlive || h.Since.IsZero():
			next.State, next.Since = hangar.HostSuspect, now.UTC().Truncate(time.Second)
			f.cfg.Log.Warn("a host is not heard of", "host", id)
		case h.stored == hangar.HostSuspect && now.Sub(seen[h.item.Key].At) >= f.cfg.DeadAfter:
			next.State = hangar.HostDead
			f.cfg.Log.Error("a host is dead", "host", id, "since", h.Since)
		default:
			continue
		}
		put, err := state.Write(hostKey(id), next)
		if err != nil {
			return err
		}
		_, err = f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(h.item)}, Then: []state.Op{put}})
		if err != nil && !errors.Is(err, state.ErrConflict) { // another host was first
			return state.HangarError(err)
		}
	}
	return nil
}

// known is a host as the state has it.
type known struct {
	record // with the State that it has now
	item   state.Item
	stored hangar.HostState
	lives  bool
}

// read reads all hosts. A record that cannot be read is left out.
func (f *Fleet) read(ctx context.Context) (map[hangar.HostID]known, error) {
	hosts, _, err := f.readAt(ctx)
	return hosts, err
}

func (f *Fleet) readAt(ctx context.Context) (map[hangar.HostID]known, state.Revision, error) {
	items, revision, err := state.All(ctx, f.cfg.Store, state.FleetPrefix, false)
	if err != nil {
		return nil, 0, state.HangarError(err)
	}
	lives := map[hangar.HostID]bool{}
	for _, item := range items {
		if id, ok := strings.CutPrefix(item.Key, alivePrefix); ok {
			lives[hangar.HostID(id)] = true
		}
	}
	hosts := map[hangar.HostID]known{}
	for _, item := range items {
		id, ok := strings.CutPrefix(item.Key, hostsPrefix)
		if !ok {
			continue
		}
		rec, err := state.Decode[record](item)
		if err != nil || string(rec.ID) != id {
			f.cfg.Log.Error("the record of a host cannot be read", "key", item.Key, "error", err)
			continue
		}
		h := known{record: rec, item: item, stored: rec.State, lives: lives[rec.ID]}
		h.Labels = maps.Clone(rec.Labels)
		switch {
		case h.lives || rec.ID == f.cfg.Self.ID && f.cfg.Presence == nil:
			h.State = hangar.HostAlive
		case rec.State != hangar.HostDead:
			h.State = hangar.HostSuspect
		}
		hosts[rec.ID] = h
	}
	return hosts, revision, nil
}

// All are the hosts that there are, sorted by id, from memory.
func (f *Fleet) All(ctx context.Context) ([]hangar.Host, error) {
	hosts, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	return sorted(hosts), nil
}

func sorted(hosts map[hangar.HostID]known) []hangar.Host {
	list := make([]hangar.Host, 0, len(hosts))
	for _, id := range slices.Sorted(maps.Keys(hosts)) {
		list = append(list, hosts[id].Host)
	}
	return list
}

// Sole answers CodeFailedPrecondition if there are several hosts: each has the keys of what is
// encrypted in a file of its own.
func (f *Fleet) Sole(ctx context.Context) error {
	hosts, err := f.read(ctx)
	if err == nil && len(hosts) > 1 {
		err = hangar.Errorf(hangar.CodeFailedPrecondition, "", "the encryption key cannot be replaced while the platform has %d servers", len(hosts))
	}
	return err
}

// askTimeout bounds asking the state itself for a host that the copy in memory does not have.
const askTimeout = 2 * time.Second

// Knows reports whether a host is one of the platform. One that is not known here may have joined
// by another host a moment ago, so the state itself is asked; if it cannot be, the host is known.
func (f *Fleet) Knows(ctx context.Context, id hangar.HostID) bool {
	if _, err := f.cfg.Store.Get(ctx, hostKey(id)); !errors.Is(err, state.ErrNotFound) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return state.Confirm(ctx, f.cfg.Store, state.Item{Key: hostKey(id)}) != nil
}

// WatchHosts implements hangar.HostFeed.
func (f *Fleet) WatchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return func(yield func(hangar.HostChange, error) bool) {
		seen, synced := map[hangar.HostID]hangar.Host{}, false
		for now, err := range state.Snapshots(ctx, f.cfg.Store, state.FleetPrefix, f.readAt) {
			if err != nil {
				yield(hangar.HostChange{}, err)
				return
			}
			for _, h := range sorted(now) {
				if before, ok := seen[h.ID]; ok && reflect.DeepEqual(before, h) {
					continue
				}
				seen[h.ID] = h
				if !yield(hangar.HostChange{ID: h.ID, Host: &h}, nil) {
					return
				}
			}
			for id := range seen {
				if _, ok := now[id]; ok {
					continue
				}
				delete(seen, id)
				if !yield(hangar.HostChange{ID: id}, nil) {
					return
				}
			}
			if !synced && !yield(hangar.HostChange{Synced: true}, nil) {
				return
			}
			synced = true
		}
	}
}
