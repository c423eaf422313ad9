package host

import (
	"context"
	"errors"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

// The pauses while rows cannot be published.
const (
	minPublishPause = 50 * time.Millisecond
	maxPublishPause = 5 * time.Second
)

// publish sends the rows of Machines and volumes to the other planes, after each commit, for
// as long as it takes: while the cluster state is away they queue in the journal.
func (a *Agent) publish(ctx context.Context) {
	delay := minPublishPause
	next := func(ctx context.Context) (int, error) {
		return 1, errors.Join(a.machines.Republish(ctx), a.volumes.Republish(ctx))
	}
	for ctx.Err() == nil {
		sent, err := next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.o.Log.Warn("publish machines and volumes", keyError, err)
			}
			_ = pause.For(ctx, delay)
			delay = min(2*delay, maxPublishPause)
			continue
		}
		delay = minPublishPause
		next = a.publishSome
		if sent > 0 {
			continue
		}
		select {
		case <-a.o.Journal.Changed():
		case <-ctx.Done():
		}
	}
}

// publishSome publishes a batch of pending changes of either kind, and returns its size.
func (a *Agent) publishSome(ctx context.Context) (int, error) {
	sent, err := a.machines.PublishSome(ctx)
	more, verr := a.volumes.PublishSome(ctx)
	return sent + more, errors.Join(err, verr)
}
