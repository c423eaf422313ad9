package volumes_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// TestRetakenAgain: a volume whose usage could not be read is not taken back until it is known where it is mounted.
func TestRetakenAgain(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	spec := hangar.MachineSpec{ID: "aaaaaaaaaaaaaa", App: ref.App, AppID: ref.AppID, Config: hangar.MachineConfig{Mounts: []hangar.Mount{{Volume: string(ref.ID), Path: "/data"}}}}
	claims, err := r.Claim(&spec)
	r.must(err)
	r.must(r.journal.Commit(func(tx *journal.Tx) error { return claims.Put(tx) }))
	claims.Settle()
	claims.Done()
	_, _, err = r.Mount(t.Context(), spec.ID, &spec.Config, 0, false)
	r.must(err)
	r.must(r.Unmount(t.Context(), spec.ID, &spec.Config))
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Mounted = true }) // as an earlier daemon leaves it under a running Machine

	fault := errors.New("it cannot be read")
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "usage" {
			return fault
		}
		return nil
	})
	if err := r.Retake(t.Context(), spec.ID, &spec.Config); !errors.Is(err, fault) {
		t.Errorf("while the usage cannot be read: %v", err)
	}
	r.disk.Inject(nil)
	r.must(r.Retake(t.Context(), spec.ID, &spec.Config))
	root, err := r.OpenRoot(ref.ID)
	r.must(err)
	r.check(unix.Close(root))
	r.must(r.Unmount(t.Context(), spec.ID, &spec.Config))
}
