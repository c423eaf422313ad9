package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/pause"
)

// readyWithin bounds how long a sandbox may take to listen.
const readyWithin = time.Minute

// machines are two Machines of one network.
type machines struct {
	c        *client.Client
	from, to *hangar.Machine
}

func startMachines(ctx context.Context, program, guest string, undo *harness.Undo) (*machines, error) {
	p, err := harness.StartPlatform(ctx, harness.Options{Program: program}, guest, undo)
	if err != nil {
		return nil, err
	}
	m := &machines{c: p.Client}
	const app = "traffic"
	if _, err := m.c.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		return nil, err
	}
	for _, at := range []**hangar.Machine{&m.from, &m.to} {
		*at, err = m.c.CreateMachine(ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{
			Image: p.Image, Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 2, MemoryMB: 512},
		}})
		if err != nil {
			return nil, err
		}
		if _, err := m.c.WaitMachine(ctx, (*at).Ref(), hangar.MachineWait{}); err != nil {
			return nil, err
		}
	}
	return m, listening(ctx, m)
}

// listening waits until the server in the second place answers.
func listening(ctx context.Context, s system) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		_, err := s.run(ctx, "ping", 1)
		if err == nil {
			return nil
		}
		if pause.For(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

func (m *machines) run(ctx context.Context, command string, n int) (string, error) {
	var stdout, stderr bytes.Buffer
	result, err := m.c.ExecMachine(ctx, m.from.Ref(), hangar.ExecRequest{
		Command: []string{"/guest", command, m.to.PrivateIP.String(), fmt.Sprint(n)},
	}, hangar.ExecStreams{Stdout: &stdout, Stderr: &stderr})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("guest %s ended with %d: %s", command, result.ExitCode, stderr.String())
	}
	return stdout.String(), err
}
