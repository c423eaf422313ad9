package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
)

const (
	app = hangar.AppName("volumes")
	// snapshotWithin bounds a snapshot or a restore.
	snapshotWithin = 10 * time.Minute
	// look is how often a volume is asked for whether it is done.
	look = 2 * time.Millisecond
	// onVolume is where Machines have their volume.
	onVolume = "/data"
)

// platform is a daemon with one App.
type platform struct{ *harness.Platform }

func startPlatform(ctx context.Context, o options, guest string, undo *harness.Undo) (*platform, error) {
	p, err := harness.StartPlatform(ctx, harness.Options{Program: filepath.Join(o.bin, "hangar")}, guest, undo)
	if err != nil {
		return nil, err
	}
	_, err = p.Client.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	return &platform{p}, err
}

// machine is a Machine with a volume.
type machine struct {
	p      *platform
	ref    hangar.MachineRef
	volume hangar.VolumeRef
}

// volume makes a volume and waits until it is usable.
func (p *platform) volume(ctx context.Context, in hangar.VolumeCreate) (hangar.VolumeRef, error) {
	in.Name = "bench"
	off := false
	in.AutoBackup = &off
	v, err := p.Client.CreateVolume(ctx, app, in)
	if err != nil {
		return hangar.VolumeRef{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	for {
		now, err := p.Client.Volume(ctx, v.Ref())
		switch {
		case err != nil:
			return v.Ref(), err
		case now.State == hangar.VolumeCreated:
			return v.Ref(), nil
		case now.State == hangar.VolumeFailed:
			return v.Ref(), fmt.Errorf("volume %s failed", v.ID)
		}
		time.Sleep(look)
	}
}

// machine makes a volume and a Machine with it.
func (p *platform) machine(ctx context.Context, in hangar.VolumeCreate) (*machine, error) {
	volume, err := p.volume(ctx, in)
	if err != nil {
		return nil, err
	}
	made, err := p.Client.CreateMachine(ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{
		Image: p.Image, Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 2, MemoryMB: 512},
		Mounts: []hangar.Mount{{Volume: string(volume.ID), Path: onVolume}},
	}})
	if err != nil {
		return nil, err
	}
	m := &machine{p: p, ref: made.Ref(), volume: volume}
	_, err = p.Client.WaitMachine(ctx, m.ref, hangar.MachineWait{})
	return m, err
}

// run executes the guest in the Machine.
func (m *machine) run(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	result, err := m.p.Client.ExecMachine(ctx, m.ref, hangar.ExecRequest{Command: append([]string{"/guest"}, args...)},
		hangar.ExecStreams{Stdout: &stdout, Stderr: &stderr})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("guest %s ended with %d: %s", strings.Join(args, " "), result.ExitCode, stderr.String())
	}
	return stdout.String(), err
}

func (m *machine) stop(ctx context.Context) error {
	if err := m.p.Client.StopMachine(ctx, m.ref, hangar.MachineStop{Timeout: 10 * time.Second}); err != nil {
		return err
	}
	_, err := m.p.Client.WaitMachine(ctx, m.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
	return err
}

func (m *machine) start(ctx context.Context) error {
	if _, err := m.p.Client.StartMachine(ctx, m.ref); err != nil {
		return err
	}
	_, err := m.p.Client.WaitMachine(ctx, m.ref, hangar.MachineWait{})
	return err
}

// remove destroys the Machine and the volume.
func (m *machine) remove(ctx context.Context) error {
	err := m.p.Client.DestroyMachine(ctx, m.ref, hangar.MachineDestroy{Force: true})
	if err == nil {
		_, err = m.p.Client.WaitMachine(ctx, m.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}})
	}
	if err != nil {
		return err
	}
	_, err = m.p.Client.DestroyVolume(ctx, m.volume)
	return err
}

// snapshot takes one and returns it complete.
func (p *platform) snapshot(ctx context.Context, volume hangar.VolumeRef) (*hangar.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotWithin)
	defer cancel()
	asked, err := p.Client.CreateSnapshot(ctx, volume)
	if err != nil {
		return nil, err
	}
	for {
		all, err := p.Client.Snapshots(ctx, volume)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			switch {
			case s.ID != asked.ID:
			case s.State == hangar.SnapshotCreated:
				return s, nil
			case s.State == hangar.SnapshotFailed:
				return nil, errors.New("the snapshot failed: " + s.Fault)
			}
		}
		time.Sleep(look)
	}
}

// imageOf is the file of a volume.
func (p *platform) imageOf(volume hangar.VolumeRef) string {
	return filepath.Join(p.Dir(), "volumes", string(volume.ID), "image")
}

// mountOf is where this host has mounted a volume that a Machine uses, or nothing.
func mountOf(volume hangar.VolumeRef) string {
	mounts, _ := os.ReadFile("/proc/self/mounts") // is always there
	for line := range strings.Lines(string(mounts)) {
		words := strings.Fields(line)
		if strings.HasPrefix(words[0], "/dev/") && words[2] == string(hangar.FSExt4) && strings.Contains(words[1], string(volume.ID)) {
			return words[1]
		}
	}
	return ""
}
