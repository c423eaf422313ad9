package gvisor

import (
	"context"

	"github.com/hangar-platform/hangar/host/driver"
)

var _ driver.RootHolder = (*Driver)(nil)

// Root implements driver.RootHolder. What the Machine has written is there at once, as
// nothing of the root file system is kept in the sandbox.
func (d *Driver) Root(_ context.Context, h driver.Handle) (string, error) {
	s, err := d.running(h)
	if err != nil {
		return "", err
	}
	return rootfsDir(s.Dir), nil
}
