package machines

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/localapi"
)

// LocalAPI makes the sockets inside Machines by which they reach the API; localapi.Sockets
// implements it.
type LocalAPI interface {
	// Open makes the socket of a Machine in dir, where the Machine may write. It makes it in the
	// parent of dir, where the Machine may not write, and moves it. The socket keeps the mode and
	// the owner of one that it replaces. It may be repeated.
	Open(dir string, org hangar.OrgSlug, orgID hangar.OrgID, ref hangar.MachineRef) error
	// Settle returns when the Machine has read the answers to all its requests, or after a
	// second.
	Settle(ctx context.Context, id hangar.MachineID)
	// Close removes the socket. It may be repeated.
	Close(id hangar.MachineID)
}

// prepareLocal makes the platform's directory inside a Machine that is about to run or resume, and
// the socket in it, and returns their mounts.
//
// The Machine may write there, as root: images change the mode of the socket. So the host only
// renames into the directory, never opens or follows anything in it, and removes from it only here,
// while there is no sandbox (ADR 16).
func (w *worker) prepareLocal(rec *journal.Record) ([]driver.Mount, error) {
	dir := w.layer(localDir)
	if err := w.clearLocal(rec); err != nil {
		return nil, err
	}
	if err := w.openLocal(rec); err != nil {
		return nil, err
	}
	return []driver.Mount{
		{Source: dir, Target: hangar.GuestDir.Original},
		{Source: dir, Target: hangar.GuestDir.Neutral},
	}, nil
}

// clearLocal removes leftovers before a boot. While a Machine runs, it removes only what a rename
// cannot replace.
func (w *worker) clearLocal(rec *journal.Record) error {
	dir := w.layer(localDir)
	w.store.o.Local.Close(w.id) // left by a failed start, or by a sandbox that was not cleaned up yet
	if !rec.Snapshot {
		return os.RemoveAll(dir)
	}
	for _, name := range []string{localapi.SocketName, guest.RoleToken} {
		path := filepath.Join(dir, name)
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// openLocal makes the socket of a Machine.
func (w *worker) openLocal(rec *journal.Record) error {
	dir := w.layer(localDir)
	// Parents are not created: without its layer the Machine has no socket.
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // every user of the Machine passes through
		return err
	}
	return w.store.o.Local.Open(dir, rec.Org, rec.OrgID, rec.Machine.Ref())
}

// reopenLocal makes the socket of a Machine that kept running without a daemon.
func (w *worker) reopenLocal(rec *journal.Record) {
	w.retake(func() error { return w.openLocal(rec) })
}
