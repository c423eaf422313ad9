package fake

import (
	"context"

	"github.com/hangar-platform/hangar/host/driver"
)

var _ driver.RootHolder = (*Driver)(nil)

// Root implements driver.RootHolder. It returns the lowest layer, because the fake makes no overlay.
func (d *Driver) Root(_ context.Context, h driver.Handle) (string, error) {
	s, err := d.running(h)
	if err != nil {
		return "", err
	}
	return s.Spec.Root.Layers[0], nil
}
