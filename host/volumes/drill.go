package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/fairsem"
)

// settingDrills keeps the records of drills in the journal.
const settingDrills = "volume-drills"

// drillRecord is the stored record of an App's drills.
type drillRecord struct {
	Latest hangar.VolumeDrill `json:"latest"`
	// Scratch is the volume that the latest drill restores to, until it is removed.
	Scratch hangar.VolumeID `json:"scratch,omitempty"`
	// Passed is the time of the last drill that has passed.
	Passed time.Time `json:"passed,omitzero"`
	// Postponed: the disk had no room for the drill, which is retried before the next turn.
	Postponed bool `json:"postponed,omitempty"`
}

// drills restores snapshots regularly to verify them.
type drills struct {
	store  *Store
	trials *fairsem.Semaphore[hangar.OrgID] // take turns for the disk

	mu       sync.Mutex                                        // held while a change is committed
	byApp    map[hangar.AppID]*drillRecord                     // replaced, never changed in place; guarded by mu
	progress map[hangar.AppID]*atomic.Pointer[hangar.Progress] // of the drills in progress; guarded by mu
}

func newDrills(s *Store) *drills {
	return &drills{
		store: s, trials: fairsem.New[hangar.OrgID](1),
		byApp: make(map[hangar.AppID]*drillRecord), progress: make(map[hangar.AppID]*atomic.Pointer[hangar.Progress]),
	}
}

// oldestSuccess is the oldest of the Apps' last passed drills; the zero Time: none has passed.
func (d *drills) oldestSuccess() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	var oldest time.Time
	for _, rec := range d.byApp {
		if at := rec.Passed; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}

// VolumeDrill implements hangar.VolumeAgent.
func (d *drills) VolumeDrill(_ context.Context, of hangar.AppID) (*hangar.VolumeDrill, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rec := d.byApp[of]
	if rec == nil {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "no snapshot of the App was tried out yet")
	}
	drill := rec.Latest
	if at := d.progress[of]; at != nil && drill.FinishedAt.IsZero() {
		if p := at.Load(); p != nil {
			drill.Progress = *p
		}
	}
	return &drill, nil
}

// DrillVolumes implements hangar.VolumeAgent.
func (d *drills) DrillVolumes(_ context.Context, of hangar.AppID) (*hangar.VolumeDrill, error) {
	if d.store.o.Archive == nil {
		return nil, errNoArchive()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.byApp[of]
	if before != nil && before.Latest.FinishedAt.IsZero() {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
			"failed_precondition: a drill of App %q is under way since %s", before.Latest.App, before.Latest.StartedAt.Format(time.RFC3339))
	}
	records := d.store.recordsOf(of)
	volume, snapshot, ok := pickDrill(records, rand.IntN)
	if !ok {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound,
			"failed_precondition: the App has no snapshot that could be tried out")
	}
	next := drillRecord{Scratch: hangar.NewVolumeID(), Latest: hangar.VolumeDrill{
		App: records[0].Volume.App, Volume: volume, Snapshot: snapshot, StartedAt: wholeSecond(d.store.o.Now()),
	}}
	if before != nil {
		next.Passed = before.Passed
		if before.Scratch != "" {
			next.Scratch = before.Scratch // its remains are removed first
		}
	}
	if err := d.put(of, &next); err != nil {
		return nil, err
	}
	d.store.work.Go(func() { d.run(d.store.work.Context, of) })
	return &next.Latest, nil
}

// pickDrill draws a snapshot that is complete: each is as likely as any other.
func pickDrill(records []*journal.VolumeRecord, intn func(int) int) (hangar.VolumeID, hangar.SnapshotID, bool) {
	var complete []*hangar.Snapshot
	for _, rec := range records {
		for i := range rec.Snapshots {
			if s := &rec.Snapshots[i]; s.State == hangar.SnapshotCreated {
				complete = append(complete, s)
			}
		}
	}
	if len(complete) == 0 {
		return "", "", false
	}
	s := complete[intn(len(complete))]
	return s.Volume, s.ID, true
}

// put stores the record of an App's drills, or removes it if rec is nil. d.mu is held.
func (d *drills) put(of hangar.AppID, rec *drillRecord) error {
	all := maps.Clone(d.byApp)
	if rec == nil {
		delete(all, of)
	} else {
		all[of] = rec
	}
	value, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode drills: %w", err)
	}
	err = d.store.o.Journal.Commit(func(tx *journal.Tx) error { return tx.SetSetting(settingDrills, value) })
	if err != nil {
		return fmt.Errorf("commit drill of app %s: %w", of, err)
	}
	d.byApp = all
	return nil
}

// change is put for the drill in progress.
func (d *drills) change(of hangar.AppID, alter func(next *drillRecord)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := *d.byApp[of]
	alter(&next)
	return d.put(of, &next)
}

// read reads the journal's records of drills.
func (d *drills) read() error {
	value, err := d.store.o.Journal.Setting(settingDrills)
	if errors.Is(err, journal.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := json.Unmarshal(value, &d.byApp); err != nil {
		// The schedule restarts; a scratch volume is removed as one without an owner.
		d.store.o.Log.Error("the record of drills cannot be read", keyError, err)
		d.byApp = make(map[hangar.AppID]*drillRecord)
	}
	return nil
}

// resume restarts the drills of an earlier daemon.
func (d *drills) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for of, rec := range d.byApp {
		if rec.Latest.FinishedAt.IsZero() || rec.Scratch != "" {
			d.store.work.Go(func() { d.run(d.store.work.Context, of) })
		}
	}
}

// reads reports whether a drill is about to read a snapshot.
func (d *drills) reads(id hangar.SnapshotID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, rec := range d.byApp {
		if rec.Latest.FinishedAt.IsZero() && rec.Latest.Snapshot == id {
			return true
		}
	}
	return false
}

// drillPostponement is how long a drill without room on the disk is postponed.
const drillPostponement = day

// dueDrill reports whether an App is to have a drill now: once a week, at its own minute, of
// snapshots that existed then.
func dueDrill(app hangar.AppID, rec *drillRecord, records []*journal.VolumeRecord, now time.Time) bool {
	due := latestTurn(string(app), week, now)
	if rec != nil {
		switch last := &rec.Latest; {
		case last.FinishedAt.IsZero():
			return false
		case ahead(last.StartedAt, now):
		case rec.Postponed:
			return !now.Before(last.FinishedAt.Add(drillPostponement))
		case !last.StartedAt.Before(due):
			return false
		}
	}
	for _, r := range records {
		for i := range r.Snapshots {
			if s := &r.Snapshots[i]; s.State == hangar.SnapshotCreated && !s.FinishedAt.After(due) {
				return true
			}
		}
	}
	return false
}
