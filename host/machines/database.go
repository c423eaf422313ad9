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
func databaseMounts(program string, processes []guest.Process) []driver.Mount {
	named := slices.ContainsFunc(processes, func(p guest.Process) bool {
		return slices.ContainsFunc(p.Args, func(arg string) bool { return strings.Contains(arg, hangar.DatabaseProgram) })
	})
	if program == "" || !named {
		return nil
	}
	return []driver.Mount{{Source: program, Target: hangar.DatabaseProgram, ReadOnly: true}}
}
