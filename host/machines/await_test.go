package machines_test

import (
	"context"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

// outcome is the result of a wait.
type outcome struct {
	hangar.MachineReached
	err error
}

// await waits without a goroutine.
func (r *rig) await(ref hangar.MachineRef, in hangar.MachineWait) (ends chan outcome, forget func()) {
	r.Helper()
	ends = make(chan outcome, 2)
	forget, err := r.AwaitMachine(r.Context(), ref, in, func(reached hangar.MachineReached, err error) { ends <- outcome{reached, err} })
	r.must(err)
	return ends, forget
}

// ended returns the result of a wait, once.
func (r *rig) ended(ends chan outcome) outcome {
	r.Helper()
	select {
	case o := <-ends:
		return o
	case <-time.After(patience):
		r.Fatal("told was not called")
	}
	return outcome{}
}

func TestAwait(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	var all []chan outcome
	await := func(in hangar.MachineWait) chan outcome {
		ends, forget := r.await(ref, in)
		t.Cleanup(forget)
		all = append(all, ends)
		return ends
	}
	if o := r.ended(await(hangar.MachineWait{})); o.err != nil || o.State != hangar.MachineStarted {
		t.Errorf("wait for what is = %+v", o)
	}
	if o := r.ended(await(hangar.MachineWait{States: []hangar.MachineState{hangar.MachineCreated}})); hangar.ReasonOf(o.err) != hangar.ReasonOutOfReach {
		t.Errorf("wait for what cannot be = %+v", o)
	}
	stopped := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}
	short := stopped
	short.Timeout = time.Millisecond
	if o := r.ended(await(short)); hangar.ReasonOf(o.err) != hangar.ReasonWaitTimeout {
		t.Errorf("wait for too long = %+v", o)
	}
	for name, bad := range map[string]func() error{
		"no state": func() error { return r.refused(ref, hangar.MachineWait{States: []hangar.MachineState{"flying"}}) },
		"no machine": func() error {
			return r.refused(hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "00000000000000"}, stopped)
		},
	} {
		if err := bad(); err == nil {
			t.Errorf("wait for %s is taken", name)
		}
	}
	later, gone := await(stopped), await(hangar.MachineWait{States: []hangar.MachineState{hangar.MachineSuspended}})
	forgotten, forget := r.await(ref, stopped)
	forget()
	forget()
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{Signal: 9}))
	if o := r.ended(later); o.err != nil || o.State != hangar.MachineStopped {
		t.Errorf("wait for what comes = %+v", o)
	}
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	if o := r.ended(gone); hangar.ReasonOf(o.err) != hangar.ReasonOutOfReach {
		t.Errorf("wait for what can no longer be = %+v", o)
	}
	for _, ends := range append(all, forgotten) {
		if len(ends) > 0 {
			t.Errorf("told again, or although forgotten: %+v", <-ends)
		}
	}
	if n := machines.Waiting(r.machines(), ref); n != 0 {
		t.Errorf("%d waiters are left behind", n)
	}
}

// refused is the error of a wait that does not begin.
func (r *rig) refused(ref hangar.MachineRef, in hangar.MachineWait) error {
	_, err := r.AwaitMachine(r.Context(), ref, in, func(hangar.MachineReached, error) { r.Error("told of a wait that was refused") })
	return err
}

// TestAwaitSeesStatesThatPass: a Machine that has finished and is gone was started.
func TestAwaitSeesStatesThatPass(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@0ms"}, func(s *hangar.MachineSpec) {
		s.SkipLaunch = true
		s.Config.AutoDestroy = true
	})
	r.wait(ref, hangar.MachineStopped)
	started, forget := r.await(ref, hangar.MachineWait{})
	defer forget()
	never, leave := r.await(ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineSuspended}})
	defer leave()
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	if o := r.ended(started); o.err != nil || o.State != hangar.MachineStarted {
		t.Errorf("wait for what passes = %+v", o)
	}
	if o := r.ended(never); hangar.ReasonOf(o.err) != hangar.ReasonOutOfReach {
		t.Errorf("wait for what it never was = %+v", o)
	}
}

func TestAwaitMeetsTheEnd(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan outcome, 1)
	forget, err := r.AwaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}, func(reached hangar.MachineReached, err error) {
		ends <- outcome{reached, err}
	})
	r.must(err)
	cancel() // of the asking
	r.close()
	if o := r.ended(ends); hangar.CodeOf(o.err) != hangar.CodeUnavailable {
		t.Errorf("a wait that the end of the daemon met = %+v", o)
	}
	forget()
	if n := machines.Waiting(r.machines(), ref); n != 0 {
		t.Errorf("%d waiters are left behind", n)
	}
}
