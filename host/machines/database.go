package machines

import (
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
)

// databaseMounts returns the mount of the host's hangar-db for Machines with a command that names it. Others
// do not pay for it.
func databaseMounts(find func() (string, error), processes []guest.Process) ([]driver.Mount, error) {
	named := slices.ContainsFunc(processes, func(p guest.Process) bool {
		return slices.ContainsFunc(p.Args, func(arg string) bool { return strings.Contains(arg, hangar.DatabaseProgram) })
	})
	if !named || find == nil {
		return nil, nil
	}
	program, err := find()
	if err != nil || program == "" {
		return nil, err
	}
	return []driver.Mount{{Source: program, Target: hangar.DatabaseProgram, ReadOnly: true}}, nil
}
