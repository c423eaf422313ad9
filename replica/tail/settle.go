package tail

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
)

// look is how often Settled looks.
const look = 100 * time.Microsecond

// note tells Settled that everything is captured up to what the index counted.
func (f *follower) note() {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.t.captured[f.name] = f.change
}

// Settled waits until everything is captured that programs had committed to a database when it was called. It
// returns at once for a database in rollback mode, which is not captured, and the cause of the end of ctx.
func (t *Tail) Settled(ctx context.Context, name string) error {
	committed, known := uint32(0), false
	for {
		db, err := t.c.Databases.Database(name, false)
		if err != nil {
			return err
		}
		if db != nil && !known {
			live := database.Live{DB: db}
			if wal, err := live.Mode(); err != nil || !wal {
				return nil //nolint:nilerr // an empty file is no database yet
			}
			_, committed, known = live.Peek()
		}
		t.mu.Lock()
		captured, attached := t.captured[name]
		wake := t.wake[name]
		t.mu.Unlock()
		// The counter may begin anew at 0.
		if known && attached && int32(captured-committed) >= 0 {
			return nil
		}
		if wake == nil && db == nil {
			return nil // there is no file of this name
		}
		select {
		case wake <- struct{}{}:
		default:
		}
		if pause.For(ctx, look) != nil {
			return context.Cause(ctx)
		}
	}
}
