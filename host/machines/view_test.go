package machines_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hangar-platform/hangar"
)

// view is an edge that follows when the test allows it.
type view struct {
	asked chan uint64   // receives the seq that is waited for
	shown chan struct{} // a value for each that has come into view
}

func (v view) AwaitMachine(ctx context.Context, _ hangar.MachineRef, seq uint64) error {
	v.asked <- seq
	select {
	case <-v.shown:
		return nil
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // a test may be slower than the agent is patient
		<-v.shown
		return nil
	}
	return ctx.Err()
}

// TestAnswersWhenInView: a caller that starts or uncordons a Machine gets its answer once the edge
// routes accordingly.
func TestAnswersWhenInView(t *testing.T) {
	r := newRig(t)
	r.close()
	edge := view{make(chan uint64), make(chan struct{})}
	r.view = edge
	r.open()
	ref := r.create(nil, serves(false, 0), func(s *hangar.MachineSpec) { s.Cordoned = true })
	r.wait(ref, hangar.MachineStarted)
	r.must(r.CordonMachine(t.Context(), ref)) // the gate is closed: there is nothing to wait for
	follows := func(verb func() error) {
		t.Helper()
		before := r.rows.seq(ref.ID)
		done := make(chan error, 1)
		go func() { done <- verb() }()
		if seq := <-edge.asked; seq <= before {
			t.Errorf("it waits for %d, and %d is in view already", seq, before)
		}
		select {
		case err := <-done:
			t.Errorf("it was answered before the edge knew: %v", err)
		default:
		}
		edge.shown <- struct{}{}
		r.must(<-done)
	}
	follows(func() error { return r.UncordonMachine(t.Context(), ref) })
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	follows(func() error {
		_, err := r.StartMachine(t.Context(), ref)
		return err
	})
	r.wait(ref, hangar.MachineStarted)

	plain := r.create(nil) // the edge serves nothing of it
	r.wait(plain, hangar.MachineStarted)
	r.must(r.UncordonMachine(t.Context(), plain))

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- r.UncordonMachine(gone, ref) }()
	<-edge.asked
	r.must(<-done) // it is recorded, although the edge does not know
}
