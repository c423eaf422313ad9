package daemon

import (
	"errors"

	"github.com/hangar-platform/hangar/internal/embedprog"
	"github.com/hangar-platform/hangar/replica/program"
)

// databaseProgram returns the path of hangar-db, which Machines may run, or "" where there is none.
func databaseProgram(cfg Config) (string, error) {
	path, err := program.Locate(cfg.Dir)
	if errors.Is(err, embedprog.ErrNotFound) {
		return "", nil
	}
	return path, err
}
