package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/volumes"
)

// mounters are the Machines of an agent, as its volumes know them.
type mounters struct{ a *Agent }

// find returns a Machine that is not destroyed, or nil.
func (a *Agent) find(id hangar.MachineID) *machine {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.machines[id]
}

// Mount implements volumes.Machines.
func (u mounters) Mount(id hangar.MachineID, volume hangar.VolumeID) (hangar.Mount, bool) {
	if m := u.a.find(id); m != nil {
		for _, mount := range m.rec.Load().Machine.Config.Mounts {
			if mount.Volume == string(volume) {
				return mount, true
			}
		}
	}
	return hangar.Mount{}, false
}

// Describe implements volumes.Machines. That is not a new version of the Machine.
func (u mounters) Describe(volume *hangar.Volume) error {
	m := u.a.find(volume.AttachedMachine)
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec.Load().Machine.State.Answers(hangar.VerbAnnotate) != hangar.Accept {
		return nil
	}
	return m.annotate(func(next *journal.Record) []hangar.Event {
		next.Machine.Config.DescribeMount(volume)
		if next.Previous != nil {
			before := *next.Previous
			before.Config.DescribeMount(volume)
			next.Previous = &before
		}
		return nil
	})
}

// endPatience bounds how long a volume is waited for whose Machine is being destroyed.
const endPatience = 10 * time.Second

// AwaitEnd implements volumes.Machines.
func (u mounters) AwaitEnd(ctx context.Context, ref hangar.MachineRef) {
	if m, err := u.a.machine(ref); err != nil || m.rec.Load().Machine.State != hangar.MachineDestroying {
		return
	}
	// What came of it shows when the volume is asked for.
	_, _ = u.a.WaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: endPatience})
}

// Owns implements volumes.Machines.
func (u mounters) Owns(id hangar.MachineID) bool { return u.a.claims(id) }

// Uses implements volumes.Machines: the worker of a Machine may find that its sandbox still runs.
func (u mounters) Uses(id hangar.MachineID) bool {
	m := u.a.find(id)
	return u.a.unread[id] || m != nil && !m.clean
}

// First implements volumes.Machines.
func (u mounters) First(app hangar.AppID) hangar.MachineID {
	for _, m := range u.a.of(app) {
		return m.id
	}
	return ""
}

// FreeMemory implements volumes.Machines.
func (u mounters) FreeMemory() int64 { return u.a.room.Left().Memory }

// errRepaired makes a resume a cold boot: what memory knows of a file system that was
// repaired is wrong.
var errRepaired = errors.New("a volume was not closed when its machine was suspended")

// mountVolumes opens what the Machine mounts. While its memory is of use, nothing on the
// volumes is touched; else their roots become the run user's.
func (m *machine) mountVolumes(ctx context.Context, rec *journal.Record, user guest.Process) ([]driver.Mount, error) {
	var mounts []driver.Mount
	if len(rec.Machine.Config.Mounts) > 0 {
		m.clean, m.tidied = false, false
	}
	for i, mount := range rec.Machine.Config.Mounts {
		dir, repaired, err := m.agent.volumes.Mount(ctx, m.id, &rec.Machine.Config, i)
		if err != nil {
			return nil, err
		}
		if rec.Snapshot && repaired {
			return nil, errRepaired
		}
		if !rec.Snapshot {
			m.note("info", "Mounting %s at %s w/ uid: %d, gid: %d and chmod 0755", mount.Volume, mount.Path, user.UID, user.GID)
			if err := errors.Join(os.Chown(dir, int(user.UID), int(user.GID)), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // as everywhere
				return nil, fmt.Errorf("mount volume %s: %w", mount.Volume, err)
			}
		}
		mounts = append(mounts, driver.Mount{Source: dir, Target: mount.Path})
	}
	return mounts, nil
}

// withoutVolume ends a Machine that has lost a volume: what it goes on to do would be
// lost as well. The next boot repairs the volume.
func (m *machine) withoutVolume(ctx context.Context, rec *journal.Record, err error) error {
	var lost volumes.Lost
	if !errors.As(err, &lost) {
		return err
	}
	m.agent.o.Log.Error("machine lost a volume", keyMachine, m.id, keyVolume, lost.Volume(), keyError, lost.Unwrap())
	m.note("error", "Volume %s was lost, ending the machine", lost.Volume())
	if err := lost.Record(m.id); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, m.agent.limits.release)
	defer cancel()
	d := m.agent.o.Driver
	exit := lostExit(m.agent.o.Now())
	if err := d.Stop(bounded, rec.Handle, sigKill, 0); err == nil {
		if ended, err := d.Wait(bounded, rec.Handle); err == nil {
			exit = ended
		}
	}
	if ctx.Err() != nil {
		return errOvertaken
	}
	if exit.Code == 0 {
		exit.Code = 137 // whatever it says: its policy shall see a failure
	}
	return m.exitedBecause(rec, exit, lost.Error())
}
