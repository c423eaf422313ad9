package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/client"
)

// app holds the Machines that are measured.
const app = hangar.AppName("bench")

// port is where the program serves.
const port = "8080"

// exited is what exec runs: the program itself, which ends at once.
var exited = []string{"/guest", "exit"}

// platform is hangar, driven through its API as any client does.
type platform struct {
	api   *client.Client
	image string
	cpus  int
}

// newPlatform makes the App and the image on a daemon.
func newPlatform(ctx context.Context, d *harness.Daemon, program string, cpus int) (*platform, error) {
	api, err := newClient(d)
	if err != nil {
		return nil, err
	}
	if _, err := api.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		return nil, fmt.Errorf("create app: %w", err)
	}
	image, err := d.Push(ctx, program, "guest:bench")
	if err != nil {
		return nil, err
	}
	return &platform{api: api, image: image, cpus: cpus}, nil
}

// close ends the connections of the clients, which the daemon would wait for.
func (p *platform) close() error {
	p.api.Close()
	return nil
}

// Name implements system.
func (*platform) Name() string { return nameHangar }

// Suspends implements system.
func (*platform) Suspends() bool { return true }

// Restarts implements system.
func (*platform) Restarts() bool { return true }

// config is that of a Machine in which the program may use memoryMB. What Go's
// runtime needs beside it, and the steps that memory comes in, are added.
func (p *platform) config(memoryMB int) hangar.MachineConfig {
	const room = 64
	steps := (memoryMB + room + hangar.MemoryStepMB - 1) / hangar.MemoryStepMB
	return hangar.MachineConfig{
		Image:   p.image,
		Guest:   &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: p.cpus, MemoryMB: steps * hangar.MemoryStepMB},
		Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
	}
}

// Boot implements system.
func (p *platform) Boot(ctx context.Context, _, memoryMB int) (instance, boot, error) {
	began := time.Now()
	m, err := p.api.CreateMachine(ctx, app, hangar.MachineCreate{Config: p.config(memoryMB)})
	if err != nil {
		return nil, boot{}, err
	}
	b := boot{Answered: time.Since(began)}
	in := &machine{api: p.api, ref: m.Ref(), address: net.JoinHostPort(m.PrivateIP.String(), port)}
	b.Started, b.Replied, err = untilReply(ctx, began, in.address, func(ctx context.Context) error {
		return in.wait(ctx, hangar.MachineStarted)
	})
	if err != nil {
		err = in.explain(ctx, err)
	}
	return in, b, err
}

// machine is one instance of hangar.
type machine struct {
	api     *client.Client
	ref     hangar.MachineRef
	address string
}

// Address implements instance.
func (m *machine) Address() string { return m.address }

// wait returns when the Machine is in state, and complains when it settles in
// another one.
func (m *machine) wait(ctx context.Context, state hangar.MachineState) error {
	_, err := m.api.WaitMachine(ctx, m.ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: hangar.MaxWaitTimeout})
	if err != nil {
		return m.explain(ctx, fmt.Errorf("wait for %s: %w", state, err))
	}
	return nil
}

// explain adds to an error what the Machine has gone through.
func (m *machine) explain(ctx context.Context, cause error) error {
	now, err := m.api.Machine(context.WithoutCancel(ctx), m.ref)
	if err != nil {
		return errors.Join(cause, err)
	}
	var events strings.Builder
	for _, e := range now.Events {
		request, err := json.Marshal(e.Request)
		if err != nil {
			return errors.Join(cause, err)
		}
		fmt.Fprintf(&events, "\n%s %s %s %s", time.UnixMilli(e.Timestamp).Format(time.StampMilli), e.Type, e.Status, request)
	}
	return fmt.Errorf("machine %s is %s: %w%s", m.ref.ID, now.State, cause, events.String())
}

// Exec implements instance.
func (m *machine) Exec(ctx context.Context) error {
	result, err := m.api.ExecMachine(ctx, m.ref, hangar.ExecRequest{Command: exited}, hangar.ExecStreams{})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exec ended with %d", result.ExitCode)
	}
	return err
}

// Stop implements instance.
func (m *machine) Stop(ctx context.Context) error {
	if err := m.api.StopMachine(ctx, m.ref, hangar.MachineStop{}); err != nil {
		return err
	}
	return m.wait(ctx, hangar.MachineStopped)
}

// Start implements instance.
func (m *machine) Start(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	_, replied, err := untilReply(ctx, began, m.address, func(ctx context.Context) error {
		_, err := m.api.StartMachine(ctx, m.ref)
		return err
	})
	if err != nil {
		return 0, m.explain(ctx, err)
	}
	// The next steps need a Machine that knows that it runs.
	return replied, m.wait(ctx, hangar.MachineStarted)
}

// Suspend implements instance.
func (m *machine) Suspend(ctx context.Context) error {
	if err := m.api.SuspendMachine(ctx, m.ref); err != nil {
		return err
	}
	return m.wait(ctx, hangar.MachineSuspended)
}

// Resume implements instance. A Machine is resumed as it is started.
func (m *machine) Resume(ctx context.Context) (time.Duration, error) { return m.Start(ctx) }

// Destroy implements instance.
func (m *machine) Destroy(ctx context.Context) error {
	if err := m.api.DestroyMachine(ctx, m.ref, hangar.MachineDestroy{Force: true}); err != nil {
		return err
	}
	return m.wait(ctx, hangar.MachineDestroyed)
}
