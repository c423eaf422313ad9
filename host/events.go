package host

import (
	"context"

	"github.com/hangar-platform/hangar"
)

var _ hangar.MachineEventFeed = (*Agent)(nil)

// NextMachineEvents implements hangar.MachineEventFeed.
func (a *Agent) NextMachineEvents(ctx context.Context, after uint64, limit int) (events []hangar.MachineEvent, last uint64, err error) {
	for {
		events, last, err = a.o.Journal.FeedAfter(after, limit)
		if err != nil || last != after {
			return events, last, err
		}
		select {
		case <-a.o.Journal.Fed():
		case <-ctx.Done():
			return nil, after, context.Cause(ctx)
		}
	}
}

// TookMachineEvents implements hangar.MachineEventFeed.
func (a *Agent) TookMachineEvents(upTo uint64) error { return a.o.Journal.FeedTaken(upTo) }
