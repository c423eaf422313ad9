// Package access streams lines about requests at the edge to live followers.
//
// Nothing is kept, and an App without a follower costs nothing: Wanted is then one load of an
// atomic number. A slow follower holds up no request; it loses lines, and its next line says how
// many.
//
// A Log may be used by any number of goroutines.
//
// It is not the log of an App, in which the edge writes errors: that is the host's.
package access

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// Backlog is how many lines a follower may lag behind.
const Backlog = 1024

// Log passes lines on. Use New.
type Log struct {
	followers atomic.Int64 // of all Apps

	mu   sync.RWMutex // guards the fields below
	apps map[hangar.AppID][]*follower
}

// follower is one reader of an App's lines.
type follower struct {
	lines chan hangar.LogEntry
	lost  atomic.Int64
}

var _ hangar.EdgeLog = (*Log)(nil)

// New returns a Log without followers.
func New() *Log { return &Log{apps: map[hangar.AppID][]*follower{}} }

// Wanted reports whether an App has a follower, so that lines are not built for no reader.
func (l *Log) Wanted(app hangar.AppID) bool {
	if l.followers.Load() == 0 {
		return false
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.apps[app]) > 0
}

// Publish passes a line on to all followers of an App. It does not wait.
func (l *Log) Publish(app hangar.AppID, e hangar.LogEntry) {
	if l.followers.Load() == 0 {
		return
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, f := range l.apps[app] {
		select {
		case f.lines <- e:
		default:
			f.lost.Add(1)
		}
	}
}

// FollowEdge implements hangar.EdgeLog.
func (l *Log) FollowEdge(ctx context.Context, app hangar.AppID) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		f := &follower{lines: make(chan hangar.LogEntry, Backlog)}
		l.enter(app, f)
		defer l.leave(app, f)
		for {
			select {
			case e := <-f.lines:
				if n := f.lost.Swap(0); n > 0 && !yield(gap(n, e.Time), nil) {
					return
				}
				if !yield(e, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// gap is the line that reports missing lines.
func gap(n int64, at time.Time) hangar.LogEntry {
	return hangar.LogEntry{
		Time: at, Level: "warn", Provider: hangar.LogProxy, Message: fmt.Sprintf("%d lines are left out: they came faster than they were read", n),
	}
}

func (l *Log) enter(app hangar.AppID, f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apps[app] = append(slices.Clone(l.apps[app]), f)
	l.followers.Add(1)
}

func (l *Log) leave(app hangar.AppID, f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(l.apps[app]), func(x *follower) bool { return x == f })
	if len(rest) == 0 {
		delete(l.apps, app)
	} else {
		l.apps[app] = rest
	}
	l.followers.Add(-1)
}
