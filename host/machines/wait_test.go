package machines_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

// TestTenThousandWaiters waits for the starts of a hundred Machines. The waiters may cost 200 MB,
// and none may miss its Machine.
func TestTenThousandWaiters(t *testing.T) {
	const many, each, budget = 100, 100, 200 << 20
	r := newRig(t)
	r.overcommit = 100
	r.restart()
	refs := make([]hangar.MachineRef, many)
	for i := range refs {
		refs[i] = r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	}
	for _, ref := range refs {
		r.wait(ref, hangar.MachineStopped)
	}
	before := memory()
	var done sync.WaitGroup
	errs := make(chan error, many*each)
	for _, ref := range refs {
		for range each {
			done.Go(func() {
				got, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{Timeout: hangar.MaxWaitTimeout})
				if err == nil && got.State != hangar.MachineStarted {
					err = fmt.Errorf("reached %+v", got)
				}
				errs <- err
			})
		}
	}
	for _, ref := range refs {
		for machines.Waiting(r.machines(), ref) < each {
			runtime.Gosched()
		}
	}
	if used := memory() - before; used > budget {
		t.Errorf("%d waiters take %d MB", many*each, used>>20)
	} else {
		t.Logf("%d waiters take %d MB", many*each, used>>20)
	}
	for _, ref := range refs {
		_, err := r.StartMachine(t.Context(), ref)
		r.must(err)
	}
	done.Wait()
	for range cap(errs) {
		r.must(<-errs)
	}
}

// memory is the size of this process's heap and stacks.
func memory() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

func TestWaitsThatCannotComeTrue(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	for name, wish := range map[string]hangar.MachineWait{
		"to be created again": {States: []hangar.MachineState{hangar.MachineCreated}},
		"for no version":      {Instance: "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"},
	} {
		if _, err := r.WaitMachine(t.Context(), ref, wish); hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
			t.Errorf("wait %s = %v", name, err)
		}
	}
	for name, wish := range map[string]hangar.MachineWait{
		"for no state": {States: []hangar.MachineState{"flying"}},
		"for too long": {Timeout: time.Hour},
		"for -1s":      {Timeout: -time.Second},
		"from nothing": {FromEvent: "zzz"},
	} {
		if _, err := r.WaitMachine(t.Context(), ref, wish); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("wait %s = %v", name, err)
		}
	}

	// The waiter learns of the decision, not of the completion.
	destroying := r.hangAt(fake.OpDestroy)
	told := make(chan error, 2)
	for range cap(told) {
		go func() {
			_, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{
				States: []hangar.MachineState{hangar.MachineStopped, hangar.MachineSuspended}, Instance: m.InstanceID,
			})
			told <- err
		}()
	}
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	<-destroying
	for range cap(told) {
		if err := <-told; hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
			t.Errorf("wait for a machine that is being destroyed to stop = %v", err)
		}
	}
}

// TestWaitForWhatFailed: no wait for a failed Machine hangs, whether it began before or afterwards.
func TestWaitForWhatFailed(t *testing.T) {
	r := newRig(t)
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStart {
			return 0, os.ErrPermission
		}
		return 0, nil
	})
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	wish := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineSuspended}, Timeout: patience}
	early := make(chan error)
	go func() {
		_, err := r.WaitMachine(t.Context(), ref, wish)
		early <- err
	}()
	r.until(func() bool { return machines.Waiting(r.machines(), ref) == 1 })
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	if err := <-early; hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
		t.Errorf("waited until it failed: %v", err)
	}
	for _, state := range []hangar.MachineState{hangar.MachineStarted, hangar.MachineStopped} {
		wish.States = []hangar.MachineState{state}
		if _, err := r.WaitMachine(t.Context(), ref, wish); hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
			t.Errorf("wait until what failed is %s: %v", state, err)
		}
	}
	r.wait(ref, hangar.WaitSettled)
}

// TestWaitSeesStatesThatPass waits for a state that is left as soon as it is reached.
func TestWaitSeesStatesThatPass(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@0ms"}, func(s *hangar.MachineSpec) {
		s.SkipLaunch = true
		s.Config.AutoDestroy = true
	})
	r.wait(ref, hangar.MachineStopped)
	got := make(chan error, 16)
	for range cap(got) {
		go func() {
			_, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{Timeout: patience})
			got <- err
		}()
	}
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	for range cap(got) {
		r.must(<-got)
	}
	r.wait(ref, hangar.MachineDestroyed)
	r.wait(ref, hangar.MachineStarted) // it was
	if _, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineSuspended}}); hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
		t.Errorf("wait for what it never was = %v", err)
	}
}

func TestWaitersLeave(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	stopped := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := r.WaitMachine(ctx, ref, stopped)
		left <- err
	}()
	cancel()
	if err := <-left; err == nil {
		t.Error("a wait whose caller has left succeeded")
	}
	go func() {
		_, err := r.WaitMachine(t.Context(), ref, stopped)
		left <- err
	}()
	for machines.Waiting(r.machines(), ref) == 0 {
		runtime.Gosched()
	}
	r.close()
	if err := <-left; hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("a wait that the end of the daemon met = %v", err)
	}
	if n := machines.Waiting(r.machines(), ref); n != 0 {
		t.Errorf("%d waiters are left behind", n)
	}
}

// BenchmarkWait measures how long after the commit of a transition its last waiter has the answer:
// with a goroutine each, without, and with one waiter while there are as many Machines with one
// each. "broadcast" is the time that Go needs to wake as many goroutines by closing a channel.
func BenchmarkWait(b *testing.B) {
	starting := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarting}}
	blocked := func(r *rig, ref hangar.MachineRef, answered chan<- time.Time) {
		go func() {
			if _, err := r.WaitMachine(b.Context(), ref, starting); err != nil {
				b.Error(err)
			}
			answered <- time.Now()
		}()
	}
	awaited := func(r *rig, ref hangar.MachineRef, answered chan<- time.Time) {
		_, err := r.AwaitMachine(b.Context(), ref, starting, func(hangar.MachineReached, error) { answered <- time.Now() })
		r.must(err)
	}
	for _, test := range []struct {
		name           string
		machines, each int
		wait           func(*rig, hangar.MachineRef, chan<- time.Time)
	}{
		{"waiters=1", 1, 1, blocked},
		{"waiters=100", 1, 100, blocked},
		{"waiters=10000", 1, 10_000, blocked},
		{"waiters=10000,goroutines=0", 1, 10_000, awaited},
		{"waiters=1,machines=10000", 10_000, 1, awaited},
	} {
		b.Run(test.name, func(b *testing.B) {
			r := newRig(b)
			var refs []hangar.MachineRef
			for range test.machines {
				refs = append(refs, r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true }))
			}
			for _, ref := range refs {
				r.wait(ref, hangar.MachineStopped)
			}
			ref := refs[len(refs)/2]
			for _, other := range refs {
				if other != ref {
					test.wait(r, other, make(chan time.Time, 1))
				}
			}
			var delays []time.Duration
			for b.Loop() {
				answered := make(chan time.Time, test.each)
				for range test.each {
					test.wait(r, ref, answered)
				}
				for machines.Waiting(r.machines(), ref) < test.each {
					runtime.Gosched()
				}
				_, err := r.StartMachine(b.Context(), ref) // returns with the commit
				committed := time.Now()
				r.must(err)
				delays = append(delays, latest(answered, test.each).Sub(committed))
				r.wait(ref, hangar.MachineStarted)
				r.must(r.StopMachine(b.Context(), ref, hangar.MachineStop{}))
				r.wait(ref, hangar.MachineStopped)
			}
			reportDelays(b, delays)
		})
	}
	b.Run("broadcast=10000", func(b *testing.B) {
		var delays []time.Duration
		for b.Loop() {
			const waiters = 10_000
			gate, answered := make(chan struct{}), make(chan time.Time, waiters)
			var ready sync.WaitGroup
			ready.Add(waiters)
			for range waiters {
				go func() {
					ready.Done()
					<-gate
					answered <- time.Now()
				}()
			}
			ready.Wait()
			runtime.Gosched()
			closed := time.Now()
			close(gate)
			delays = append(delays, latest(answered, waiters).Sub(closed))
		}
		reportDelays(b, delays)
	})
}

// latest takes n times and returns the last.
func latest(times <-chan time.Time, n int) (last time.Time) {
	for range n {
		if at := <-times; at.After(last) {
			last = at
		}
	}
	return last
}

func reportDelays(b *testing.B, delays []time.Duration) {
	b.Helper()
	slices.Sort(delays)
	for unit, d := range map[string]time.Duration{"ms-median": delays[len(delays)/2], "ms-worst": delays[len(delays)-1]} {
		b.ReportMetric(float64(max(0, d).Microseconds())/1000, unit) // less than none: before the caller had the answer
	}
	b.ReportMetric(0, "ns/op")
}
