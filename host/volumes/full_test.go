package volumes_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
)

// exhaust fills the disk, and the journal until it has no room for another value of eight pages.
func (r *rig) exhaust() (file string) {
	r.Helper()
	file = disktest.Fill(r, r.dir, 0)
	value := make([]byte, 28<<10)
	key := 0
	for _, values := range []int{64, 8, 1} {
		const inARow = 3 // the file system gives blocks of a refused commit back a moment later
		for refused := 0; refused < inARow; key += values {
			err := r.journal.Commit(func(tx *journal.Tx) error {
				for n := range values {
					if err := tx.SetSetting(fmt.Sprintf("filler-%06d", key+n), value); err != nil {
						return err
					}
				}
				return nil
			})
			switch {
			case err == nil:
				refused = 0
			case hangar.ReasonOf(err) == hangar.ReasonDiskFull:
				refused++
			default:
				r.Fatal(err)
			}
		}
	}
	return file
}

// TestEndOnAFullDisk: what ends while the journal has no room is recorded once there is some.
func TestEndOnAFullDisk(t *testing.T) {
	r := newRig(t)
	r.close()
	r.dir = disktest.Mount(t, disktest.Ext4, 160<<20)
	r.open()
	good, bad := r.NewVolume(volumestest.Raw, volumestest.OnDemand), r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	source := r.TakeSnapshot(bad)
	// A record with this text needs more pages in a row than the full journal has.
	long := hangar.Errorf(hangar.CodeInvalid, "", "%s", strings.Repeat("x", 256<<10))
	r.store.SetAway(long)
	r.TakeSnapshot(good)
	r.store.SetAway(nil)

	const three = 3
	reached, full := make(chan struct{}, three), make(chan struct{})
	faults := map[hangar.SnapshotID]error{source.ID: long} // complete once full is closed
	r.store.Intercept(func(_ context.Context, op string, id hangar.SnapshotID) error {
		if op != "write" && op != "read" {
			return nil
		}
		reached <- struct{}{}
		<-full
		return faults[id]
	})
	taken, err := r.CreateSnapshot(t.Context(), good)
	r.must(err)
	failed, err := r.CreateSnapshot(t.Context(), bad)
	r.must(err)
	faults[failed.ID] = long
	restored := r.Restored(source.ID)
	for range three {
		<-reached
	}
	fill := r.exhaust()
	refused := r.journal.Stats().Failures
	close(full)
	r.until(func() bool { return r.journal.Stats().Failures >= refused+three })
	r.must(os.Remove(fill))
	if s := r.Finished(good, taken.ID); s.State != hangar.SnapshotCreated {
		t.Errorf("the snapshot that was taken on the full disk is %s", s.State)
	}
	if s := r.Finished(bad, failed.ID); s.State != hangar.SnapshotFailed {
		t.Errorf("the snapshot that failed on the full disk is %s", s.State)
	}
	if v := r.Usable(restored); v.State != hangar.VolumeFailed {
		t.Errorf("the volume that could not be filled on the full disk is %s", v.State)
	}
}

// TestExtensionEndsOnAFullDisk: likewise an extension, after its request has ended.
func TestExtensionEndsOnAFullDisk(t *testing.T) {
	r := newRig(t)
	r.close()
	r.dir = disktest.Mount(t, disktest.Ext4, 160<<20)
	r.open()
	ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	var fill string
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op != "extend" {
			return nil
		}
		fill = r.exhaust()
		return hangar.Errorf(hangar.CodeInvalid, "", "%s", strings.Repeat("x", 256<<10)) // the end takes more than is left
	})
	if _, err := r.ExtendVolume(t.Context(), ref, 3); err == nil {
		t.Fatal("it was extended")
	}
	if v := r.Look(ref); v.State != hangar.VolumeExtending {
		t.Fatalf("the volume is %s: the disk was not full", v.State)
	}
	r.disk.Inject(nil)
	r.must(os.Remove(fill))
	r.until(func() bool { return r.Look(ref).State == hangar.VolumeCreated })
	if _, err := r.ExtendVolume(t.Context(), ref, 3); err != nil {
		t.Error(err)
	}
}

// TestCreationFailsOnAFullDisk: nothing is left of a volume that could not be made, once the disk has room for that.
func TestCreationFailsOnAFullDisk(t *testing.T) {
	r := newRig(t)
	r.close()
	r.dir = disktest.Mount(t, disktest.Ext4, 160<<20)
	r.open()
	other := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op != "extend" {
			return nil
		}
		return hangar.Errorf(hangar.CodeInvalid, "", "%s", strings.Repeat("x", 256<<10)) // makes the record large
	})
	if _, err := r.ExtendVolume(t.Context(), other, 3); err == nil {
		t.Fatal("it was extended")
	}
	var fill string
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op != "create" {
			return nil
		}
		fill = r.exhaust()
		return unix.ENOSPC
	})
	// When this record is removed, the journal writes the large one beside it again.
	spec := volumestest.Spec()
	ref := hangar.VolumeRef{AppID: spec.AppID, ID: spec.ID}
	_, err := r.CreateVolume(t.Context(), spec)
	r.Declined(err, hangar.CodeUnavailable, hangar.ReasonDiskFull)
	if _, err := r.VolumeRow(t.Context(), ref); err != nil {
		t.Fatalf("the disk was not full: %v", err)
	}
	r.must(os.Remove(fill))
	r.until(func() bool { _, err := r.VolumeRow(t.Context(), ref); return hangar.CodeOf(err) == hangar.CodeNotFound })
}

// TestCreationCannotBeUndone: the image of a volume that could not be made is removed before its record is.
func TestCreationCannotBeUndone(t *testing.T) {
	r := newRig(t)
	removed := 0
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		switch op {
		case "create":
			return unix.ENOSPC
		case "remove":
			if removed++; removed == 1 {
				return unix.EIO
			}
		}
		return nil
	})
	spec := volumestest.Spec()
	_, err := r.CreateVolume(t.Context(), spec)
	r.Declined(err, hangar.CodeUnavailable, hangar.ReasonDiskFull)
	r.until(func() bool {
		_, err := r.VolumeRow(t.Context(), hangar.VolumeRef{AppID: spec.AppID, ID: spec.ID})
		return hangar.CodeOf(err) == hangar.CodeNotFound
	})
	r.close()
	if removed != 2 {
		t.Errorf("the image was removed %d times", removed)
	}
}
