package daemon

import (
	"errors"

	guest "github.com/hangar-platform/hangar/host/guest/program"
	"github.com/hangar-platform/hangar/internal/embedprog"
	"github.com/hangar-platform/hangar/replica/program"
)

// databaseProgram returns the path of hangar-db, which Machines may run, or "" where there is none. It is
// unpacked for the first Machine that runs it.
func (c Config) databaseProgram() (string, error) {
	return ifThere(program.Locate(c.Dir))
}

// guestProgram returns the path of hangar-guest, which serves SSH sessions in Machines, or "" where there is
// none.
func (c Config) guestProgram() (string, error) {
	return ifThere(guest.Locate(c.Dir))
}

func ifThere(path string, err error) (string, error) {
	if errors.Is(err, embedprog.ErrNotFound) {
		return "", nil
	}
	return path, err
}
