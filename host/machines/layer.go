package machines

import (
	"context"
	"errors"
	"fmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/rootfs"
)

// mountLayer mounts the writable layer for a boot or a resume.
func (w *worker) mountLayer(ctx context.Context, rec *journal.Record) error {
	size := int64(rec.Machine.Config.RootfsGB()) << 30
	from := rootfs.Kept
	switch {
	case resetsRoot(rec):
		from = rootfs.Fresh
	case rec.HasRoot:
		from = rootfs.Existing
	}
	err := w.store.o.Layers.Mount(ctx, w.id, size, from)
	if errors.Is(err, rootfs.ErrDamaged) {
		return &hangar.Error{
			Code: hangar.CodeFailedPrecondition, Reason: hangar.ReasonRootfsDamaged, Err: err,
			Message: "the root file system that the machine has kept is missing, or damaged and cannot be mounted",
		}
	}
	return err
}

// unmountLayer ends the use of the writable layer, including the socket in it.
func (w *worker) unmountLayer() error {
	w.store.o.Local.Close(w.id)
	return w.onDisk(w.store.o.Layers.Unmount(w.id))
}

// onDisk logs data that did not reach the disk. The data is lost, but that must not keep the
// Machine from coming to rest: syncs by the Machine itself have already failed.
func (w *worker) onDisk(err error) error {
	if errors.Is(err, rootfs.ErrLost) {
		w.note("error", "Not all that was written to the root file system reached the disk")
		w.store.o.Log.Error("put a writable layer on the disk", keyMachine, w.id, keyError, err)
		return nil
	}
	return err
}

// reserveLayer makes sure that the next boot finds room for the platform's files, even if the
// Machine has filled its layer. A boot without the reserve may still succeed.
func (w *worker) reserveLayer() {
	if err := w.store.o.Layers.Reserve(w.id); err != nil {
		w.store.o.Log.Warn("reserve room for the next start", keyMachine, w.id, keyError, err)
	}
}

// layerMounted reports whether a layer is mounted. An unknown state counts as mounted, which
// makes the worker unmount it.
func layerMounted(layers *rootfs.Layers, id hangar.MachineID) bool {
	mounted, err := layers.Mounted(id)
	return mounted || err != nil
}

// sweepLayers removes the layers that no record claims.
func (s *Store) sweepLayers(ctx context.Context) error {
	ids, err := s.o.Layers.List()
	if err != nil {
		return fmt.Errorf("list writable layers: %w", err)
	}
	for _, id := range ids {
		if s.Owns(id) {
			continue
		}
		err := s.release(ctx, id) // in case it is mounted
		if err == nil {
			err = s.o.Layers.Remove(id)
		}
		s.swept(id, err)
	}
	return nil
}
