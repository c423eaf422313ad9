// Package background runs the goroutines of a component for as long as the component is open.
package background

import (
	"context"
	"sync"

	"github.com/hangar-platform/hangar/internal/finish"
)

// Group is the goroutines of one component. They may start more goroutines.
type Group struct {
	// Context ends when the group is stopped.
	Context context.Context //nolint:containedctx // of goroutines that outlive every request
	stop    context.CancelFunc

	starting sync.Mutex // held while a goroutine is started, and while Stop forbids further ones
	running  sync.WaitGroup
}

// New returns a group with the values of ctx, which lives until Stop.
func New(ctx context.Context) *Group {
	g := &Group{}
	g.Context, g.stop = finish.Lifetime(ctx)
	return g
}

// Go runs work in a goroutine. It reports false once the group was stopped.
func (g *Group) Go(work func()) bool {
	g.starting.Lock()
	defer g.starting.Unlock()
	if g.Context.Err() != nil {
		return false
	}
	g.running.Go(work)
	return true
}

// Stop ends the context. It may be repeated.
func (g *Group) Stop() {
	g.starting.Lock()
	defer g.starting.Unlock()
	g.stop()
}

// Wait returns when all goroutines have ended, after Stop.
func (g *Group) Wait() { g.running.Wait() }
