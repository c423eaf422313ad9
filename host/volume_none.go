package host

import (
	"context"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// NoVolumes is for servers that can keep no volumes. Those of before stay as they are.
type NoVolumes struct{ Why string }

// Create makes nothing.
func (n NoVolumes) Create(context.Context, devices.Spec) error { return n.err() }

// Verify finds nothing.
func (n NoVolumes) Verify(context.Context, devices.Spec) error { return n.err() }

// Attach opens nothing.
func (n NoVolumes) Attach(context.Context, devices.Spec) (Device, error) { return nil, n.err() }

// Release has nothing to end.
func (NoVolumes) Release(finish.Context, hangar.VolumeID) error { return nil }

// List is empty.
func (NoVolumes) List(context.Context) ([]hangar.VolumeID, error) { return nil, nil }

// Remove removes nothing.
func (n NoVolumes) Remove(finish.Context, hangar.VolumeID) error { return n.err() }

// Room is none.
func (n NoVolumes) Room(context.Context) (DiskRoom, error) { return DiskRoom{}, n.err() }

func (n NoVolumes) err() error {
	return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "this server cannot keep volumes: %s", n.Why)
}
