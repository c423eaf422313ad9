package machines

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// awaiting is a wait without a goroutine: the goroutine that learns the result calls done.
type awaiting struct {
	waiter

	m     *machine
	done  func(hangar.MachineReached, error)
	ended atomic.Bool

	mu       sync.Mutex // guards the fields below
	deadline *time.Timer
	detach   func() bool // from the end of the Store
}

var _ hangar.MachineAwaiter = (*Store)(nil)

// AwaitMachine implements hangar.MachineAwaiter.
func (s *Store) AwaitMachine(
	_ context.Context, ref hangar.MachineRef, in hangar.MachineWait, done func(hangar.MachineReached, error),
) (func(), error) {
	m, err := s.waitFor(ref, &in)
	if err != nil {
		return nil, err
	}
	w := &awaiting{waiter: waiter{want: in}, m: m, done: done}
	w.deliver = w.judged
	w.mu.Lock() // held until all ends of the wait are set up
	defer w.mu.Unlock()
	v, err := m.register(&w.waiter)
	switch {
	case err != nil:
		return nil, err
	case v != nil:
		done(v.reached, v.err)
		return func() {}, nil
	}
	w.deadline = time.AfterFunc(in.Timeout, func() { w.end(hangar.MachineReached{}, m.timedOut(in.States)) })
	w.detach = context.AfterFunc(s.work.Context, func() { w.end(hangar.MachineReached{}, errShutDown()) })
	return w.forget, nil
}

// end calls done, unless the wait has already ended.
func (w *awaiting) end(reached hangar.MachineReached, err error) {
	if !w.ended.Swap(true) {
		w.done(reached, err)
	}
}

func (w *awaiting) forget() {
	w.ended.Store(true)
	w.m.watchers.unregister(&w.waiter)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline.Stop()
	w.detach()
}

// judged takes the verdict from the goroutine that changed the Machine, which holds its lock.
func (w *awaiting) judged(v *verdict) {
	if v.look {
		w.m.store.work.Go(w.lookAgain)
		return
	}
	w.end(v.reached, v.err)
}

// lookAgain searches the Machine's history, or keeps waiting.
func (w *awaiting) lookAgain() {
	v, err := w.m.register(&w.waiter)
	switch {
	case err != nil:
		w.end(hangar.MachineReached{}, err)
	case v != nil:
		w.end(v.reached, v.err)
	case w.ended.Load():
		w.m.watchers.unregister(&w.waiter)
	}
}
