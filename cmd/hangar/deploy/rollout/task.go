package rollout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// lastLines is how many lines of the log of a failed program are shown.
const lastLines = 20

// releaseCommand runs the release command. If it fails, the deploy changes nothing.
func (d *Deploy) releaseCommand(ctx context.Context) error {
	config, limit, err := d.file.ReleaseCommand(d.image)
	if err != nil || config == nil {
		return err
	}
	return d.task(ctx, "release command", *config, limit)
}

// machineChecks runs the machine checks of a group against its first new Machine.
func (d *Deploy) machineChecks(ctx context.Context, group string, id hangar.MachineID) error {
	d.mu.Lock()
	g, tried := d.groups[group], d.tried[group]
	d.tried[group] = true
	d.mu.Unlock()
	if tried || len(g.Checks) == 0 {
		return nil
	}
	m, err := d.p.Machine(ctx, d.ref(id))
	if err != nil {
		return err
	}
	for i, check := range g.Checks {
		config, limit, err := d.file.MachineCheck(check, d.image, m.PrivateIP.String())
		if err != nil {
			return err
		}
		if err := d.task(ctx, fmt.Sprintf("machine check %d of %s", i+1, group), *config, limit); err != nil {
			return err
		}
	}
	return nil
}

// task runs a Machine until its program ends, and removes it. It fails unless the exit code is 0.
func (d *Deploy) task(ctx context.Context, name string, config hangar.MachineConfig, limit time.Duration) (err error) {
	config.Metadata = map[string]string{
		keyPlatform: platformManaged, keyRelease: string(d.Release.ID), keyVersion: strconv.Itoa(d.Release.Version), keyTemporary: name,
		hangar.MetadataProcessGroup.Original: taskGroup, hangar.MetadataProcessGroup.Neutral: taskGroup,
	}
	m, err := d.p.CreateMachine(ctx, d.o.App, hangar.MachineCreate{Region: d.region, Config: config, MinSecretsVersion: d.secrets})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d.report(Event{Group: name, Machine: m.ID, Text: "runs"})
	defer func() {
		gone := finish.Do(ctx, tidying, func(ctx finish.Context) error {
			return d.p.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true})
		})
		if gone != nil {
			err = errors.Join(err, fmt.Errorf("remove the Machine of the %s: %w", name, gone))
		}
	}()
	exit, err := d.ended(ctx, m, limit)
	switch {
	case err != nil:
	case exit == nil:
		err = errors.New("it was stopped")
	case exit.ExitCode != 0:
		err = fmt.Errorf("it ended with exit code %d", exit.ExitCode)
	default:
		d.report(Event{Group: name, Machine: m.ID, Text: "succeeded", Done: true})
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.report(Event{Group: name, Machine: m.ID, Text: cli.Message(err), Done: true, Failed: true})
	if page, logs := d.p.Logs(ctx, d.o.App, hangar.LogQuery{Instance: m.ID, Limit: lastLines}); logs == nil {
		for _, line := range page.Entries {
			d.report(Event{Group: name, Text: "| " + line.Message})
		}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// ended waits until the program of a Machine has ended, and returns its exit, or nil if the Machine was stopped.
func (d *Deploy) ended(ctx context.Context, m *hangar.Machine, limit time.Duration) (*hangar.ExitEvent, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "it has not ended after %s", limit))
	defer cancel()
	for {
		now, err := d.p.Machine(ctx, m.Ref())
		switch {
		case err == nil:
			if m.Config.Image == d.image {
				d.pin(now)
			}
			exit, _, _ := sinceLaunch(now)
			switch now.State {
			case hangar.MachineStopped, hangar.MachineSuspended:
				if exit != nil || reason(now) == "" {
					return exit, nil
				}
				return nil, fmt.Errorf("it does not start%s", reason(now))
			case hangar.MachineFailed, hangar.MachineDestroyed, hangar.MachineDestroying:
				return nil, fmt.Errorf("it is %s%s", now.State, reason(now))
			default:
			}
		case context.Cause(ctx) != nil:
			return nil, context.Cause(ctx)
		case hangar.CodeOf(err) != hangar.CodeUnavailable && !cli.Unreachable(err):
			return nil, err
		}
		if pause.For(ctx, d.o.Poll) != nil {
			return nil, context.Cause(ctx)
		}
	}
}
