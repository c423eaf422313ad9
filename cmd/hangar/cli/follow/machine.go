// Package follow waits for long work of the platform and shows its progress: starts of Machines,
// filling of volumes, snapshots and drills.
package follow

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Machine watches a new version of a Machine until it is in the wanted state, with a progress bar for
// its image. A Machine that has already run to its end is a success, too. Machine returns CodeTimeout
// after patience; the work on the Machine continues.
func Machine(
	ctx context.Context, p *client.Client, m *hangar.Machine, wanted hangar.MachineState, patience time.Duration, bar *cli.Progress,
) (*hangar.Machine, error) {
	timeout := hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "Machine %s is not %s after %s", m.ID, wanted, patience)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, timeout)
	defer cancel()
	defer bar.Close()

	ref := m.Ref()
	for change, err := range Watch(ctx, p, ref) {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return nil, cli.WithHint(err, fmt.Sprintf("hangar machine status %s %s; it continues by itself", ref.App, ref.ID))
		}
		if change.Progress != nil {
			bar.Update(change.Progress.Phase+" "+cli.ImageText(m.ImageRef, m.Config.ImageName()), change.Progress.Done, change.Progress.Total)
		}
		now := change.Machine
		if failure(change) != "" {
			bar.Close()
			return nil, Failed(ref, failure(change))
		}
		// The previous version is still running.
		if now == nil || now.InstanceID < m.InstanceID {
			continue
		}
		switch now.State {
		case wanted:
			return now, nil
		case hangar.MachineFailed, hangar.MachineStopped, hangar.MachineDestroyed:
			ended, err := outcome(ctx, p, now, wanted)
			if ended || err != nil {
				bar.Close()
				return now, err
			}
		default: // not settled yet
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return nil, errors.New("the platform ended the watch of Machine " + string(ref.ID))
}

// failure returns why a start or an update of a Machine failed, or "".
func failure(change hangar.MachineChange) string {
	if change.Event == nil || change.Event.Request == nil {
		return ""
	}
	switch change.Event.Type {
	case hangar.EventLaunch, hangar.EventStart, hangar.EventUpdate:
		return change.Event.Request.Error
	default:
		return ""
	}
}

// outcome reports whether a Machine in another state than the wanted one has run to its end. It returns an
// error if the Machine has failed. Otherwise the Machine has not started yet.
func outcome(ctx context.Context, p *client.Client, m *hangar.Machine, wanted hangar.MachineState) (ended bool, err error) {
	if m.State == hangar.MachineFailed {
		return true, WhyFailed(ctx, p, m.Ref())
	}
	events, err := p.MachineEvents(ctx, m.Ref(), 0)
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		return true, err
	}
	for _, e := range events {
		if e.Type == hangar.EventExit {
			return true, nil
		}
		if reason := failure(hangar.MachineChange{Event: &e}); reason != "" {
			return true, Failed(m.Ref(), reason)
		}
	}
	if m.State == hangar.MachineDestroyed {
		return true, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "Machine %s was destroyed before it was %s", m.ID, wanted)
	}
	return false, nil
}

// reconnectPause is the time between attempts to reconnect to a restarting daemon.
const reconnectPause = 300 * time.Millisecond

// Watch watches a Machine across restarts of the daemon.
func Watch(ctx context.Context, p *client.Client, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		for {
			var failed error
			for change, err := range p.WatchMachine(ctx, ref) {
				if err != nil {
					failed = err
					break
				}
				if !yield(change, nil) {
					return
				}
			}
			if failed == nil {
				return
			}
			if ctx.Err() != nil || hangar.CodeOf(failed) != hangar.CodeUnavailable && !cli.Unreachable(failed) {
				yield(hangar.MachineChange{}, failed)
				return
			}
			if pause.For(ctx, reconnectPause) != nil {
				yield(hangar.MachineChange{}, failed)
				return
			}
		}
	}
}

// WhyFailed returns an error with the reason of the newest failure in a Machine's events.
func WhyFailed(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
	cause := "it failed"
	if m, err := p.Machine(ctx, ref); err == nil {
		for _, e := range m.Events {
			if e.Request != nil && e.Request.Error != "" {
				cause = e.Request.Error
				break
			}
		}
	}
	return Failed(ref, cause)
}

// Failed returns the error of a Machine that did not start, with advice.
func Failed(ref hangar.MachineRef, cause string) error {
	return cli.WithHint(cli.AboutMachine(ref.ID, errors.New(cause)),
		fmt.Sprintf("see `hangar logs %s %s` and `hangar machine status %s %s`", ref.App, ref.ID, ref.App, ref.ID))
}
