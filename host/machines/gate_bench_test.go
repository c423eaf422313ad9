package machines_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// BenchmarkEnterMachine lets a request enter and leave, with ten thousand other Machines present.
func BenchmarkEnterMachine(b *testing.B) {
	r := newRig(b)
	ref := r.create(nil, serves(true, time.Hour), func(s *hangar.MachineSpec) { s.Config.Services[0].Concurrency.HardLimit = 0 })
	r.wait(ref, hangar.MachineStarted)
	b.ReportAllocs()
	for b.Loop() {
		leave, err := r.EnterMachine(ref, 8080)
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}

// BenchmarkWake wakes a Machine that is stopped or suspended, and compares that with a start and a
// wait for it.
func BenchmarkWake(b *testing.B) {
	for _, rest := range []hangar.MachineState{hangar.MachineStopped, hangar.MachineSuspended} {
		for _, how := range []string{"start and wait", "wake"} {
			b.Run(fmt.Sprintf("%s/%s", rest, how), func(b *testing.B) {
				r := newServingRig(b)
				ref := r.create(nil, serves(false, 0))
				r.wait(ref, hangar.MachineStarted)
				for b.Loop() {
					b.StopTimer()
					if rest == hangar.MachineStopped {
						r.must(r.StopMachine(b.Context(), ref, hangar.MachineStop{}))
					} else {
						r.must(r.SuspendMachine(b.Context(), ref))
					}
					r.wait(ref, rest)
					b.StartTimer()
					if how == "wake" {
						r.must(r.WakeMachine(b.Context(), ref, 0))
						continue
					}
					r.start(ref)
				}
			})
		}
	}
}

// BenchmarkAutostop stops Machines of an App that become idle all at once: five thousand, unless
// -short, because more need more open files than a process usually may have. The second of idle
// time is included.
func BenchmarkAutostop(b *testing.B) {
	n := 5_000
	if testing.Short() {
		n = 500
	}
	for range b.N {
		b.StopTimer()
		r := newRig(b)
		refs, leaves := make([]hangar.MachineRef, n), make([]func(), n)
		var group sync.WaitGroup
		slots := make(chan struct{}, 256)
		for i := range refs {
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()
				refs[i] = r.create(nil, serves(true, time.Second))
				r.must(r.WakeMachine(b.Context(), refs[i], 0))
				var err error
				leaves[i], err = r.EnterMachine(refs[i], 8080)
				r.must(err)
			})
		}
		group.Wait()
		if b.Failed() {
			return
		}
		b.StartTimer()
		for _, leave := range leaves {
			leave()
		}
		for _, ref := range refs {
			r.wait(ref, hangar.MachineStopped)
		}
	}
}
