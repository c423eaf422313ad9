package balance_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// TestStress has many requests come, give up and end at once while rows change: in the end,
// none is in flight, and no hard limit was exceeded.
func TestStress(t *testing.T) {
	const machines, clients, requests, hard = 4, 32, 300, 3
	w := newWorld(t, nil)
	defer w.run(t)()
	for n := range machines {
		w.put(n, limits(1, hard), state([]hangar.MachineState{hangar.MachineStarted, stopped}[n%2]))
	}
	w.await(machines - 1) // the last one
	ep := w.endpoint(80)
	done := make(chan struct{})
	var rows, all sync.WaitGroup
	rows.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				for n := range machines {
					w.put(n, cordoned(false))
				}
				return
			case <-time.After(100 * time.Microsecond):
				w.put(n/2%machines, cordoned(n%2 == 0))
			}
		}
	})
	for range clients {
		all.Go(func() {
			for range requests {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Microsecond)
				permit, err := w.b.Acquire(ctx, ep, balance.Selector{})
				if err == nil {
					if rand.IntN(50) == 0 {
						permit.Failed(context.DeadlineExceeded)
					}
					var twice sync.WaitGroup
					twice.Go(permit.Release)
					permit.Release()
					twice.Wait()
				}
				cancel()
			}
		})
	}
	all.Wait()
	close(done)
	rows.Wait()
	w.await(0, 1, 2, 3)
	inFlight, err := w.b.Verify(testApp)
	if err != nil {
		t.Error(err)
	}
	for id, n := range inFlight {
		if in := w.gate.in(id); n != 0 || in != 0 {
			t.Errorf("%d and %d are left in %s", n, in, id)
		}
		if most := w.gate.machines[id].most; most > hard {
			t.Errorf("%d were in %s at once", most, id)
		}
	}
}

// TestFirstUse: an App that many ask for at once while its rows change is taken up once, and
// no change is missed.
func TestFirstUse(t *testing.T) {
	w := newWorld(t, nil)
	defer w.run(t)()
	w.put(0)
	w.await(0)
	var all sync.WaitGroup
	all.Go(func() {
		for n := range 500 {
			w.put(n%5, cordoned(n%2 == 0))
		}
	})
	for range 8 {
		all.Go(func() {
			for range 100 {
				if _, ok := w.b.Endpoint(w.route, false, 80); !ok {
					t.Error("port 80 is not served")
				}
			}
		})
	}
	all.Wait()
	for n := range 5 {
		w.put(n, state(stopped))
	}
	w.put(3, cordoned(false), state(hangar.MachineStarted))
	for {
		permit, err := w.b.Acquire(t.Context(), w.endpoint(80), balance.Selector{Instance: id(3)})
		if err == nil {
			permit.Release()
			break
		}
		time.Sleep(time.Millisecond) // the last rows are on their way
	}
	if _, err := w.b.Verify(testApp); err != nil {
		t.Error(err)
	}
}
