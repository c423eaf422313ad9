package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/network"
)

// bootDeadline bounds a boot or a resume once the image is on the host.
const bootDeadline = 2 * time.Minute

// boot brings a Machine from starting to started: from its memory if there is any,
// else from its image.
func (m *machine) boot(ctx context.Context, rec *journal.Record) error {
	began := m.agent.o.Now()
	if err := m.clear(ctx, rec); err != nil {
		return err
	}
	img, err := m.pull(ctx, rec)
	if err == nil {
		var cold string
		var handle driver.Handle
		bounded, cancel := context.WithTimeout(ctx, bootDeadline)
		handle, cold, rec, err = m.launch(bounded, rec, img)
		cancel()
		if err == nil {
			return m.booted(ctx, rec, handle, cold, m.agent.o.Now().Sub(began))
		}
	}
	if ctx.Err() != nil || errors.Is(err, errOvertaken) {
		return errOvertaken
	}
	m.note("error", "Machine failed to start: %s", userText(err))
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineFailed
		next.Handle = nil
		return []hangar.Event{failure(hangar.EventStart, err)}
	})
}

// clear makes sure that nothing of an earlier sandbox is left, be it one that has
// ended or one whose start was never recorded.
func (m *machine) clear(ctx context.Context, rec *journal.Record) error {
	if m.clean && rec.Handle == nil {
		return nil
	}
	if err := m.agent.o.Driver.Destroy(ctx, m.id, m.path(sandboxDir)); err != nil {
		return fmt.Errorf("release the sandbox of machine %s: %w", m.id, err)
	}
	m.clean = true
	return nil
}

// launch starts the sandbox. It returns why the boot is a cold one although the
// Machine was suspended, and the record that it left.
func (m *machine) launch(ctx context.Context, rec *journal.Record, img *image.Image) (driver.Handle, string, *journal.Record, error) {
	spec, err := m.spec(ctx, rec, img)
	if err != nil {
		return nil, "", rec, err
	}
	if err := m.agent.o.Logs.Capture(rec.Machine.Ref(), spec.Output); err != nil {
		return nil, "", rec, err
	}
	m.clean = false
	cold := rec.ColdBoot
	if rec.Snapshot {
		handle, resumed, err := m.resume(ctx, rec, spec)
		rec = resumed
		if !errors.Is(err, driver.ErrSnapshotUnusable) {
			return handle, "", rec, err
		}
		cold = err.Error()
		m.note("warn", "Cannot resume from memory, starting afresh: %s", cold)
		spec.Root.Reset = false
		// Addresses went into the sandbox that could not be resumed.
		if spec.NetNS, err = m.attach(ctx, rec); err != nil {
			return nil, "", rec, err
		}
	}
	handle, err := m.agent.o.Driver.Start(ctx, spec)
	return handle, cold, rec, err
}

// resume continues from the snapshot. That it does is journaled first: memory may
// be resumed only once, because the root file system moves on with it.
func (m *machine) resume(ctx context.Context, rec *journal.Record, spec driver.Spec) (driver.Handle, *journal.Record, error) {
	suspender, ok := m.agent.o.Driver.(driver.Suspender)
	if !ok {
		return nil, rec, fmt.Errorf("%w: the driver cannot resume", driver.ErrSnapshotUnusable)
	}
	if rec.Resuming {
		return nil, rec, fmt.Errorf("%w: the daemon was interrupted while resuming from it", driver.ErrSnapshotUnusable)
	}
	err := m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Resuming = true
		return nil
	})
	if err != nil {
		return nil, rec, err
	}
	rec = m.rec.Load()
	handle, err := suspender.Resume(ctx, spec, m.path(snapshotDir))
	return handle, rec, err
}

// booted records that the sandbox runs.
func (m *machine) booted(ctx context.Context, rec *journal.Record, handle driver.Handle, cold string, took time.Duration) error {
	resumed := rec.Snapshot && cold == ""
	err := m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		next.Handle = handle
		next.Prepared = true
		next.KeepRoot, next.FreshVersion = false, false
		dropSnapshot(next)
		e := hangar.Event{Type: hangar.EventStart, Source: hangar.SourceAgent}
		if cold != "" {
			e.Request = &hangar.EventRequest{ColdBoot: cold}
		}
		return []hangar.Event{e}
	})
	if err != nil {
		return err
	}
	how := "started"
	if resumed {
		how = "resumed"
	}
	m.note("info", "Machine %s in %s", how, took.Round(time.Millisecond))
	return os.RemoveAll(m.path(snapshotDir))
}

// attach gives the Machine its network namespace with its addresses, and returns
// the namespace's path.
func (m *machine) attach(ctx context.Context, rec *journal.Record) (string, error) {
	at, err := m.agent.o.Network.Attach(ctx, network.Endpoint{ID: m.id, IPv6: rec.Machine.PrivateIP, Number: rec.Number})
	return at.NetNS, err
}

// spec works out everything that the driver needs, and writes the files that the
// Machine finds in /etc.
func (m *machine) spec(ctx context.Context, rec *journal.Record, img *image.Image) (driver.Spec, error) {
	main, err := guest.Resolve(asGuest(img), &rec.Machine)
	if err != nil {
		return driver.Spec{}, err
	}
	if err := m.makeDirs(); err != nil {
		return driver.Spec{}, err
	}
	mounts, err := m.writeFiles(rec)
	if err != nil {
		return driver.Spec{}, err
	}
	netns, err := m.attach(ctx, rec)
	if err != nil {
		return driver.Spec{}, err
	}
	config := rec.Machine.Config
	return driver.Spec{
		ID: m.id, Instance: rec.Machine.InstanceID, Dir: m.path(sandboxDir), Hostname: string(m.id),
		Root:    driver.Root{Layers: img.Layers, Writable: m.path(writableDir), Reset: resetsRoot(rec)},
		Command: asCommand(main), Mounts: mounts, CPUs: config.Guest.CPUs, MemoryMB: config.Guest.MemoryMB,
		NetNS: netns, Output: m.path(outputFile), TTY: config.Init.TTY,
	}, nil
}

// resetsRoot says whether the boot begins with the image's root file system.
func resetsRoot(rec *journal.Record) bool {
	switch rec.Machine.Config.Persist() {
	case hangar.PersistAlways:
		return false
	case hangar.PersistRestart:
		return rec.FreshVersion
	case hangar.PersistNever:
		return !rec.KeepRoot && !rec.Snapshot
	default:
		return true
	}
}

func asGuest(img *image.Image) guest.Image {
	c := img.Config
	return guest.Image{
		Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, User: c.User, WorkDir: c.WorkingDir, Layers: img.Layers,
	}
}

func asCommand(p guest.Process) driver.Command {
	return driver.Command{Args: p.Args, Env: p.Env, Dir: p.Dir, UID: p.UID, GID: p.GID, Groups: p.Groups}
}

// process resolves the main process of a Machine that runs.
func (a *Agent) process(rec *journal.Record) (guest.Process, error) {
	img, err := a.o.Images.Get(rec.Machine.ImageRef.Digest)
	if err != nil {
		return guest.Process{}, err
	}
	return guest.Resolve(asGuest(img), &rec.Machine)
}

// writeFiles writes the files that the platform and the config put into the
// Machine, and returns how they are mounted. The set depends on the config alone,
// so that a resume finds the mounts of the suspend.
func (m *machine) writeFiles(rec *journal.Record) ([]driver.Mount, error) {
	etc := map[string]string{
		"hostname":    string(m.id) + "\n",
		"hosts":       guest.EtcHosts(&rec.Machine),
		"resolv.conf": guest.ResolvConf(&rec.Machine, m.agent.o.Nameservers),
	}
	var mounts []driver.Mount
	for name, content := range etc {
		path := filepath.Join(m.path(etcDir), name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil { //nolint:gosec // every user of the Machine reads it
			return nil, err
		}
		mounts = append(mounts, driver.Mount{Source: path, Target: "/etc/" + name})
	}
	for i, f := range rec.Machine.Config.Files {
		path := filepath.Join(m.path(filesDir), strconv.Itoa(i))
		mode := os.FileMode(f.Mode & 0o7777)
		if mode == 0 {
			mode = 0o644
		}
		if err := os.WriteFile(path, f.RawValue, mode); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, mode); err != nil {
			return nil, err
		}
		mounts = append(mounts, driver.Mount{Source: path, Target: f.GuestPath})
	}
	slices.SortFunc(mounts, func(x, y driver.Mount) int { return strings.Compare(x.Target, y.Target) })
	return mounts, nil
}
