package host

import (
	"context"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
)

// LocalAPI is the API as Machines reach it by a socket inside themselves;
// localapi.Sockets has it.
type LocalAPI interface {
	// Open makes the socket of a Machine in dir. It may be repeated.
	Open(dir string, org hangar.OrgSlug, ref hangar.MachineRef) error
	// Settle returns when the Machine has read the answers to what it asked so far, or
	// does not do it in a second.
	Settle(ctx context.Context, id hangar.MachineID)
	// Close takes the socket away. It may be repeated.
	Close(id hangar.MachineID)
}

// openLocal makes the directory of the platform inside a Machine and the socket in it,
// and returns how they are mounted. The Machine only reads there: whatever it does, the
// host writes where it means to.
func (m *machine) openLocal(rec *journal.Record) ([]driver.Mount, error) {
	dir := m.path(localDir)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // every user of the Machine passes through
		return nil, err
	}
	if err := m.agent.o.Local.Open(dir, rec.Org, rec.Machine.Ref()); err != nil {
		return nil, err
	}
	return []driver.Mount{
		{Source: dir, Target: hangar.GuestDir.Original, ReadOnly: true},
		{Source: dir, Target: hangar.GuestDir.Neutral, ReadOnly: true},
	}, nil
}

// reopenLocal makes the socket of a Machine that has run on without a daemon. What goes
// wrong must not keep the Machine from being taken back.
func (m *machine) reopenLocal(rec *journal.Record) {
	if _, err := m.openLocal(rec); err != nil {
		m.agent.o.Log.Error("local API of a machine", keyMachine, m.id, keyError, err)
	}
}
