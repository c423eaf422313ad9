package daemon

import (
	"errors"

	guest "github.com/hangar-platform/hangar/host/guest/program"
	"github.com/hangar-platform/hangar/internal/embedprog"
	"github.com/hangar-platform/hangar/replica/program"
)

// databaseProgram returns the path of hangar-db, which Machines may run, or "" where there is none.
func databaseProgram(cfg Config) (string, error) {
	return ifThere(program.Locate(cfg.Dir))
}

// guestProgram returns the path of hangar-guest, which serves those who sign in to Machines, or "" where there
// is none.
func guestProgram(cfg Config) (string, error) {
	return ifThere(guest.Locate(cfg.Dir))
}

func ifThere(path string, err error) (string, error) {
	if errors.Is(err, embedprog.ErrNotFound) {
		return "", nil
	}
	return path, err
}
