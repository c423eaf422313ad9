package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// volumes are those of the agent.
type volumes struct {
	creates singleflight.Group

	// room is held while it is decided that the disk has room for more, and that is
	// committed. It is taken before any volume's mu.
	room sync.Mutex
	// purging is held while destroyed volumes are removed. It is taken before room.
	purging *semaphore.Weighted

	mu     sync.RWMutex
	byID   map[hangar.VolumeID]*volume // guarded by mu
	unread map[hangar.VolumeID]bool    // have a record that does not parse; set by Open
}

// volume is one volume in the agent's memory. Its mu is taken after that of a Machine,
// and of several volumes in the order of their ids.
type volume struct {
	agent *Agent
	id    hangar.VolumeID

	rec atomic.Pointer[journal.VolumeRecord] // replaced under mu, never changed in place

	mu sync.Mutex // held while a change is decided and committed

	open opened

	claims  *semaphore.Weighted             // held from a claim until it is committed or given up
	still   *semaphore.Weighted             // held while there is a view of the device, of which there is one at a time
	reading atomic.Pointer[hangar.Progress] // of the snapshot that is being taken; nil: none is
	filling atomic.Pointer[hangar.Progress] // of a volume that is being filled; nil: it is not

	forking atomic.Int32 // volumes that are about to be recorded, to be made from this one; added to under mu

	dailyWaits atomic.Bool                        // for the disk to have room, of which the volume has told
	endFilling atomic.Pointer[context.CancelFunc] // nil: nobody has begun to fill it
}

// volumeChange alters a copy of a volume's record and says what happened. It must
// replace slices, not change them.
type volumeChange func(next *journal.VolumeRecord) []hangar.VolumeEvent

// volumeDraft is a change that is committed together with something else.
type volumeDraft struct {
	v    *volume
	next *journal.VolumeRecord
}

// draft works out what a change makes of the record. v.mu is held until the draft is
// settled or dropped.
func (v *volume) draft(alter volumeChange) volumeDraft {
	next := *v.rec.Load()
	now := v.agent.o.Now()
	if events := alter(&next); len(events) > 0 {
		next.Volume.UpdatedAt = wholeMillisecond(now)
		next.Events = withEvents(next.Events, events, now)
	}
	return volumeDraft{v, &next}
}

// withEvents returns the events of a volume with some more, the oldest of these first.
func withEvents(events, more []hangar.VolumeEvent, now time.Time) []hangar.VolumeEvent {
	list := make([]hangar.VolumeEvent, 0, len(more)+len(events))
	for _, e := range more {
		e.ID, e.Timestamp = hangar.NewEventID(now), now.UnixMilli()
		if e.Source == "" {
			e.Source = hangar.SourceAgent
		}
		list = append(list, e)
	}
	slices.Reverse(list)
	list = append(list, events...)
	return slices.Clip(list[:min(len(list), hangar.MaxVolumeEvents)])
}

func wholeMillisecond(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// settle makes a draft visible that has been committed.
func (d volumeDraft) settle() { d.v.rec.Store(d.next) }

// commit makes a change durable and then visible, and returns the new record. v.mu is
// held.
func (v *volume) commit(alter volumeChange) (*journal.VolumeRecord, error) {
	d := v.draft(alter)
	err := v.agent.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutVolume(d.next) })
	if err != nil {
		return nil, volumeNotRecorded(v.id, err)
	}
	d.settle()
	return d.next, nil
}

// record is commit for callers that do not hold v.mu.
func (v *volume) record(alter volumeChange) (*journal.VolumeRecord, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.commit(alter)
}

// tell is record for events alone.
func (v *volume) tell(events ...hangar.VolumeEvent) error {
	_, err := v.record(func(*journal.VolumeRecord) []hangar.VolumeEvent { return events })
	return err
}

func volumeNotRecorded(id hangar.VolumeID, err error) error {
	if errors.Is(err, journal.ErrClosed) {
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the server is shutting down", Err: err}
	}
	return fmt.Errorf("commit volume %s: %w", id, err)
}

func (a *Agent) newVolume(rec *journal.VolumeRecord) *volume {
	v := &volume{agent: a, id: rec.Volume.ID, claims: semaphore.NewWeighted(1), still: semaphore.NewWeighted(1)}
	v.rec.Store(rec)
	return v
}

// volume returns the volume that ref names.
func (a *Agent) volume(ref hangar.VolumeRef) (*volume, error) {
	v := a.volumeByID(ref.ID)
	if v == nil || v.rec.Load().Volume.AppID != ref.AppID {
		return nil, hangar.VolumeNotFound(ref.ID)
	}
	return v, nil
}

// volumeByID returns nil for one that is not known.
func (a *Agent) volumeByID(id hangar.VolumeID) *volume {
	a.volumes.mu.RLock()
	defer a.volumes.mu.RUnlock()
	return a.volumes.byID[id]
}

func (a *Agent) addVolume(v *volume) {
	a.volumes.mu.Lock()
	defer a.volumes.mu.Unlock()
	a.volumes.byID[v.id] = v
}

// allVolumes returns every volume, sorted by id.
func (a *Agent) allVolumes() []*volume {
	a.volumes.mu.RLock()
	list := slices.Collect(maps.Values(a.volumes.byID))
	a.volumes.mu.RUnlock()
	slices.SortFunc(list, func(x, y *volume) int { return strings.Compare(string(x.id), string(y.id)) })
	return list
}

// forgetVolume removes the record of a volume that is gone.
func (a *Agent) forgetVolume(v *volume) error {
	ref := v.rec.Load().Volume.Ref()
	err := a.o.Journal.Commit(func(tx *journal.Tx) error { return tx.DeleteVolume(ref) })
	if err != nil {
		return volumeNotRecorded(v.id, err)
	}
	a.volumes.mu.Lock()
	defer a.volumes.mu.Unlock()
	delete(a.volumes.byID, v.id)
	return nil
}

// row is what others see of the volume.
func (v *volume) row(ctx context.Context) *hangar.VolumeRow {
	rec := v.rec.Load()
	row := volumeRow(rec)
	if usage, ok := v.usage(ctx); ok {
		row.Volume.Usage = usage
	}
	row.Snapshots = v.snapshots(rec)
	if p := v.filling.Load(); p != nil && row.Volume.State == hangar.VolumeRestoring {
		row.Volume.Filling.Progress = *p
	}
	return &row
}

func volumeRow(rec *journal.VolumeRecord) hangar.VolumeRow {
	row := hangar.VolumeRow{Volume: rec.Volume, Org: rec.Org, OrgID: rec.OrgID, Snapshots: rec.Snapshots, Seq: rec.Seq}
	row.Volume.HostStatus = "ok"
	return row
}

// keyVolume is the key of log lines.
const keyVolume = "volume"
