package state

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// compactor removes old revisions as new ones are made. etcd's own compactor runs every five
// minutes, in which a busy host makes more than a start should read.
type compactor struct {
	s       *Etcd
	history int64
	latest  chan int64 // capacity 1: a revision since run last checked
	cancel  context.CancelFunc
	ended   chan struct{} // closed when run has returned
}

// newCompactor returns a compactor that runs until stop is called.
func newCompactor(ctx context.Context, s *Etcd, history int64) *compactor {
	c := &compactor{s: s, history: history, latest: make(chan int64, 1), ended: make(chan struct{})}
	ctx, c.cancel = finish.Lifetime(ctx)
	go c.run(ctx)
	return c
}

func (c *compactor) stop() {
	c.cancel()
	<-c.ended
}

// made reports a new revision.
func (c *compactor) made(revision int64) {
	select {
	case c.latest <- revision:
	default:
	}
}

// run compacts until ctx ends, whenever there are twice as many revisions as are kept.
func (c *compactor) run(ctx context.Context) {
	defer close(c.ended)
	for due := 2 * c.history; ; {
		select {
		case now := <-c.latest:
			if now < due {
				continue
			}
			due = now + c.history
			if c.s.room.space.AdmitOwn(diskspace.CompactState) != nil {
				continue // a compaction writes as well; a later one with room frees more
			}
			if err := c.s.compact(ctx, now-c.history); err != nil && ctx.Err() == nil && !errors.Is(err, rpctypes.ErrCompacted) {
				c.s.log.Warn("old revisions of the state are kept", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}
