package volumes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// drillReserve is how much of the disk, in bytes, a drill leaves free for more important use.
const drillReserve = 1 << 30

// run carries out the drill of an App that is recorded as under way. When ctx ends
// first, the next daemon begins again.
func (d *drills) run(ctx context.Context, of hangar.AppID) {
	var org hangar.OrgID
	if records := d.store.recordsOf(of); len(records) > 0 {
		org = records[0].OrgID
	}
	release, err := d.trials.Acquire(ctx, org)
	if err != nil {
		return
	}
	defer release()
	progress := new(atomic.Pointer[hangar.Progress])
	d.mu.Lock()
	rec := d.byApp[of]
	if rec == nil || !rec.Latest.FinishedAt.IsZero() && rec.Scratch == "" {
		d.mu.Unlock()
		return // another run has done it: that of an earlier daemon's scratch, or that of a new drill
	}
	d.progress[of] = progress
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.progress[of] == progress { // not that of a drill begun since this one was recorded as finished
			delete(d.progress, of)
		}
	}()
	if !rec.Latest.FinishedAt.IsZero() { // only its scratch volume is left
		if d.cleared(ctx, rec) {
			d.record(ctx, of, func(next *drillRecord) {
				if !next.Latest.FinishedAt.IsZero() {
					next.Scratch = ""
				}
			})
		}
		return
	}
	failure := d.try(ctx, rec, func(p hangar.Progress) { progress.Store(&p) })
	cleared := d.cleared(ctx, rec)
	if ctx.Err() == nil {
		d.ended(ctx, of, rec, failure, cleared)
	}
}

// try restores a snapshot to a scratch volume, whose key is in memory alone, and verifies its
// content.
func (d *drills) try(ctx context.Context, rec *drillRecord, progress func(hangar.Progress)) (err error) {
	store, err := d.store.archiver.getSoon(ctx)
	if err != nil {
		return err
	}
	entry, err := store.Entry(ctx, rec.Latest.Snapshot)
	if err != nil {
		return archiveFault("read", err)
	}
	if err := d.clearScratch(ctx, rec.Scratch); err != nil {
		return err
	}
	spec := devices.Spec{ID: rec.Scratch, Size: entry.VolumeSize, Key: make([]byte, keySize)}
	_, _ = rand.Read(spec.Key) // never fails: crypto/rand.Read aborts the program instead
	if err := d.store.o.Devices.Create(ctx, spec); err != nil {
		return err
	}
	device, err := d.store.o.Devices.Attach(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finish.Do(ctx, closing, device.Close)) }()
	err = fillDevice(ctx, device, func(target Target) error {
		room, err := d.store.boundTarget(ctx, target, diskspace.TrySnapshot, spec.ID, drillReserve)
		if err != nil {
			return err
		}
		_, err = readArchive(ctx, store, entry.ID, room, progress)
		return err
	})
	if err != nil {
		return err
	}
	return compare(ctx, store, device, entry)
}

// compare verifies the content of a device against an entry of the archive.
func compare(ctx context.Context, store Archive, device Device, entry archive.Entry) (err error) {
	if entry.FSType == hangar.FSExt4 {
		if err := device.Check(ctx); err != nil {
			return fmt.Errorf("the file system of the snapshot is damaged: %w", err)
		}
	}
	frozen, err := device.Freeze(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finish.Do(ctx, closing, frozen.Close)) }()
	data, err := frozen.Data(ctx)
	if err != nil {
		return err
	}
	digest, err := store.Digest(ctx, frozen, data)
	if err == nil && digest != entry.Digest {
		err = fmt.Errorf("the restored content has the digest %s, the snapshot had %s", digest, entry.Digest)
	}
	return err
}

// ended publishes the result of a drill. cleared: its scratch volume is removed.
func (d *drills) ended(ctx context.Context, of hangar.AppID, rec *drillRecord, failure error, cleared bool) {
	now := wholeSecond(d.store.o.Now())
	drill := rec.Latest
	result, fault := resultPassed, ""
	switch {
	case hangar.ReasonOf(failure) == hangar.ReasonDiskFull:
		result, fault = resultPostponed, "postponed: "+hangar.MessageOf(failure)
	case failure != nil:
		result, fault = resultFailed, hangar.MessageOf(failure)
	}
	d.store.metrics.drills.WithLabelValues(result).Inc()
	d.alert(of, &drill, result, fault, failure)
	d.record(ctx, of, func(next *drillRecord) {
		next.Latest.FinishedAt, next.Latest.Passed, next.Latest.Fault = now, failure == nil, fault
		next.Postponed = result == resultPostponed
		if failure == nil {
			next.Passed = now
		}
		if cleared {
			next.Scratch = ""
		}
	})
	v := d.store.byID(drill.Volume)
	if v == nil {
		return
	}
	e := hangar.VolumeEvent{Type: hangar.VolumeEventDrill, Snapshot: drill.Snapshot, Fault: fault, Text: "A drill of a snapshot " + result}
	if failure == nil {
		e.Text = fmt.Sprintf("A drill restored the snapshot of %s to scratch, and all of it was there", takenAt(v.rec.Load(), drill.Snapshot))
	}
	v.failed("record a drill", v.recordEvents(e))
}

// record changes the record of an App's drills.
func (d *drills) record(ctx context.Context, of hangar.AppID, alter func(next *drillRecord)) {
	if err := d.change(of, alter); err != nil && ctx.Err() == nil {
		d.store.o.Log.Error("record how a drill went", keyApp, of, keyError, err)
	}
}

// takenAt is the time of a snapshot as text.
func takenAt(rec *journal.VolumeRecord, id hangar.SnapshotID) string {
	for _, s := range rec.Snapshots {
		if s.ID == id {
			return s.CreatedAt.Format(time.RFC3339)
		}
	}
	return "an unknown time"
}

// alert reports loudly when a snapshot cannot be restored: the operators of the server and of the
// App have to know before they need it.
func (d *drills) alert(of hangar.AppID, drill *hangar.VolumeDrill, result, fault string, failure error) {
	switch result {
	case resultPassed:
		d.store.o.Log.Info("drill of a snapshot passed", keyApp, drill.App, keyVolume, drill.Volume, keySnapshot, drill.Snapshot)
		return
	case resultPostponed:
		d.store.o.Log.Warn("drill of a snapshot postponed", keyApp, drill.App, keyVolume, drill.Volume, keySnapshot, drill.Snapshot, keyError, failure)
		return
	}
	d.store.o.Log.Error("DRILL FAILED: a snapshot cannot be restored", keyApp, drill.App, keyVolume, drill.Volume, keySnapshot, drill.Snapshot, keyError, failure)
	machine := d.witness(of, drill)
	if machine == "" {
		return // there is no log of the App
	}
	d.store.o.Logs.Append(hangar.MachineRef{AppID: of, ID: machine}, hangar.LogRunner, "error", fmt.Sprintf(
		"DRILL FAILED: snapshot %s of volume %s cannot be restored: %s", drill.Snapshot, drill.Volume, fault))
}

// witness returns the Machine whose log gets the lines about a drill: the one that has the volume,
// or any of the App; none if the App is destroyed.
func (d *drills) witness(of hangar.AppID, drill *hangar.VolumeDrill) hangar.MachineID {
	if v := d.store.byID(drill.Volume); v != nil {
		if by := v.rec.Load().Volume.AttachedMachine; by != "" {
			return by
		}
	}
	if !slices.ContainsFunc(d.store.recordsOf(of), func(rec *journal.VolumeRecord) bool { return !rec.Volume.State.Gone() }) {
		return ""
	}
	return d.store.o.Machines.First(of)
}

// clearScratch removes a scratch volume, even a partial one.
func (d *drills) clearScratch(ctx context.Context, id hangar.VolumeID) error {
	if id == "" {
		return nil
	}
	return finish.Do(ctx, closing, func(ctx finish.Context) error {
		if err := d.store.o.Devices.Release(ctx, id); err != nil {
			return err
		}
		return d.store.o.Devices.Remove(ctx, id)
	})
}

// cleared is clearScratch after a drill, even a failed one.
func (d *drills) cleared(ctx context.Context, rec *drillRecord) bool {
	err := d.clearScratch(ctx, rec.Scratch)
	if err != nil {
		d.store.o.Log.Error("remove the scratch volume of a drill", keyApp, rec.Latest.App, keyVolume, rec.Scratch, keyError, err)
	}
	return err == nil
}
