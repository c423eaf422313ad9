package gvisor

import (
	"context"

	"github.com/hangar-platform/hangar/host/driver"
)

var _ driver.RootHolder = (*Driver)(nil)

// Root implements driver.RootHolder. The Machine's writes are visible at once, because the sandbox
// does not cache the root file system.
func (d *Driver) Root(_ context.Context, h driver.Handle) (string, error) {
	s, err := d.running(h)
	if err != nil {
		return "", err
	}
	return rootfsDir(s.Dir), nil
}
