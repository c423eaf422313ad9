package tail

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// look is the polling interval of Settled.
const look = 100 * time.Microsecond

// captured is the progress of a database's capture.
type captured struct {
	attachment uint64 // number of the attachment; with each, the index may restart its counter
	change     uint32 // counter of the index when everything was captured
}

// note records that everything up to the index's counter is captured.
func (f *follower) note() {
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	f.t.captured[f.name] = captured{f.attachment, f.change}
}

// state returns the capture progress of an attached database, and the channel that wakes its
// follower.
func (t *Tail) state(name string) (at captured, attached bool, wake chan<- struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, attached = t.captured[name]
	return at, attached, t.wake[name]
}

// exists reports whether a file is a database, even if Run has not seen it yet.
func (t *Tail) exists(name string) bool {
	is, err := sqlite.IsDatabase(filepath.Join(t.c.Dir, name))
	return t.c.Databases.Named(name) && (is || err != nil)
}

// ErrNotCaptured is returned for a database in rollback mode.
var ErrNotCaptured = errors.New("the database is not in WAL mode, so it is not captured")

// Settled waits until everything is captured that programs had committed to a database when it was called. It returns
// ErrNotCaptured for a database that is not in WAL mode.
func (t *Tail) Settled(ctx context.Context, name string) error {
	first, attached, _ := t.state(name)
	committed, known := uint32(0), false
	for {
		db, err := t.c.Databases.Database(name, false)
		if err != nil {
			return err
		}
		if db != nil {
			live := database.Live{DB: db}
			wal, err := live.Mode()
			switch {
			case errors.Is(err, sqlite.ErrNotDatabase):
				return nil // an empty file, or none
			case err != nil:
				return err
			case !wal:
				return fmt.Errorf("%w: %s", ErrNotCaptured, name)
			}
			if attached && !known {
				_, committed, known = live.Peek()
			}
		}
		now, still, wake := t.state(name)
		switch {
		case still && (!attached || now.attachment != first.attachment):
			return nil // attaching has compared everything that was committed before
		case still && known && int32(now.change-committed) >= 0: // the counter may wrap to 0
			return nil
		case db == nil && !t.exists(name):
			return nil
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
