package volumes

import (
	"context"
	"errors"
	"io/fs"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// None implements Devices for servers that cannot have volumes. Existing ones stay
// unchanged, also those that are being made or filled, and those that an earlier daemon has left open.
type None struct {
	Why string
	Run string // Options.Run of package volume
}

// Create makes nothing.
func (n None) Create(context.Context, devices.Spec) error { return n.err() }

// Verify finds nothing.
func (n None) Verify(context.Context, devices.Spec) error { return n.err() }

// Attach opens nothing.
func (n None) Attach(context.Context, devices.Spec) (Device, error) { return nil, n.err() }

// Release ends nothing.
func (n None) Release(finish.Context, hangar.VolumeID) error { return n.err() }

// List returns what an earlier daemon may have left open, which cannot be closed.
func (n None) List(context.Context) ([]hangar.VolumeID, error) {
	ids, err := devices.ListRun(n.Run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return ids, err
}

// Remove removes nothing.
func (n None) Remove(finish.Context, hangar.VolumeID) error { return n.err() }

// Room is none.
func (n None) Room(context.Context) (DiskRoom, error) { return DiskRoom{}, n.err() }

// errNone is the cause of every error of None. It says nothing of a volume.
var errNone = errors.New("no volumes")

func (n None) err() error {
	return &hangar.Error{
		Code: hangar.CodeUnimplemented, Reason: hangar.ReasonUnsupported, Err: errNone,
		Message: "this server cannot keep volumes: " + n.Why,
	}
}
