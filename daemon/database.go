package daemon

import (
	"errors"

	"github.com/hangar-platform/hangar/internal/embedprog"
	"github.com/hangar-platform/hangar/replica/program"
)

// databaseProgram returns the path of hangar-db, which Machines may run, or "" where there is none. It is
// unpacked for the first Machine that runs it.
func (c Config) databaseProgram() (string, error) {
	path, err := program.Locate(c.Dir)
	if errors.Is(err, embedprog.ErrNotFound) {
		return "", nil
	}
	return path, err
}
