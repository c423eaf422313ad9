package machine

import (
	"context"
	"fmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

// lastLines is how many log lines printEnded shows.
const lastLines = 10

// settled watches a new Machine until c.Settling has passed or its program has ended. It returns nil if the
// program still runs. A Machine that is not started is not watched: settled returns how its program ended.
func (c commands) settled(ctx context.Context, p *client.Client, m *hangar.Machine) (*hangar.ExitEvent, error) {
	if m.State != hangar.MachineStarted {
		return ended(ctx, p, m.Ref())
	}
	watching, cancel := context.WithTimeout(ctx, c.Settling)
	defer cancel()
	for change, err := range follow.Watch(watching, p, m.Ref()) {
		if watching.Err() != nil {
			break
		}
		if err != nil {
			return nil, err
		}
		if exit := exitOf(change.Event); exit != nil {
			return exit, nil
		}
		if change.Event != nil || change.Progress != nil {
			continue
		}
		// Only the list has the events from before the watch began.
		if exit, err := ended(ctx, p, m.Ref()); exit != nil || err != nil {
			return exit, err
		}
	}
	return nil, ctx.Err()
}

// ended returns how the program of a Machine ended, or nil if it did not end by itself.
func ended(ctx context.Context, p *client.Client, ref hangar.MachineRef) (*hangar.ExitEvent, error) {
	events, err := p.MachineEvents(ctx, ref, 0)
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		return nil, err
	}
	for i := range events {
		if exit := exitOf(&events[i]); exit != nil {
			return exit, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// exitOf returns the exit that an event reports, or nil if it reports none or one that was requested.
func exitOf(e *hangar.Event) *hangar.ExitEvent {
	if e == nil || e.Type != hangar.EventExit || e.Request == nil || e.Request.ExitEvent == nil || e.Request.ExitEvent.RequestedStop {
		return nil
	}
	return e.Request.ExitEvent
}

// printEnded prints how the program of a new Machine ended, and its last log lines. The end of a job is not an error.
func (c commands) printEnded(ctx context.Context, p *client.Client, m *hangar.Machine, f *launchFlags, exit *hangar.ExitEvent) error {
	if now, err := p.Machine(ctx, m.Ref()); err == nil {
		m = now
	}
	page, err := p.Logs(ctx, m.App, hangar.LogQuery{Instance: m.ID, Limit: lastLines})
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		return err
	}
	for _, e := range page.Entries {
		fmt.Fprintf(c.Stderr, "  | %s\n", e.Message)
	}
	done := exit.ExitCode == 0 && exit.Error == "" && !exit.Restarting && len(m.Config.Services) == 0
	switch {
	case f.asJSON:
		err = c.PrintJSON(m)
	case f.quiet:
		_, err = fmt.Fprintln(c.Stdout, m.ID)
	case done:
		fmt.Fprintf(c.Stdout, "Machine %s (%s) is %s: its program ended with %s.\n", m.ID, m.Name, m.State, exitText(exit))
		err = c.PrintFields(reach(m))
	default:
		err = nil
	}
	if done || err != nil {
		return err
	}
	return follow.Failed(m.Ref(), "its program ended with "+exitText(exit))
}
