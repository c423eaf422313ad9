package gate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
)

// step is one that the model takes.
type step struct {
	what string
	at   int // of a Machine, or of a visit
	n    int // seconds
}

func steps() *rapid.Generator[[]step] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			what: rapid.SampledFrom([]string{"enter", "enter", "leave", "leave", "wake", "stop", "cordon", "uncordon", "busy", "rest", "wait", "wait"}).Draw(t, "what"),
			at:   rapid.IntRange(0, 5).Draw(t, "at"), n: rapid.IntRange(0, 15).Draw(t, "n"),
		}
	}), 1, 80)
}

// TestModel takes steps at random. No visit is ever in a Machine that is stopped for being idle,
// or in one beyond its hard limit; the first Machines keep one of them running; a visit that
// wakes a Machine that is not cordoned gets in; and all idle Machines stop.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := steps().Draw(rt, "steps")
		hard := rapid.IntRange(0, 3).Draw(rt, "hard")
		var fault string
		synctest.Test(t, func(t *testing.T) { fault = play(t, plan, hard) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

func play(t *testing.T, plan []step, hard int) string {
	w := newWorld(t, gate.Options{})
	kept := func(s *hangar.Service) { s.MinMachinesRunning = new(1) }
	for range 3 {
		w.add(limits(2, hard), kept)
	}
	w.add(limits(2, hard), func(s *hangar.Service) {
		s.Autostop, s.AutostopAfter, s.Ports[0].Port = "suspend", new(hangar.Duration(25*time.Second)), 443
	})
	var inside []func()
	var waking sync.WaitGroup
	for _, s := range plan {
		m := w.machines[s.at%len(w.machines)]
		switch s.what {
		case "enter":
			before := m.in.Load()
			leave, err := m.Enter(8080)
			switch {
			case errors.Is(err, gate.ErrFull):
				if hard == 0 || before < int64(hard) {
					w.wrong("%d are in of %d, and no more may enter", before, hard)
				}
			case err == nil:
				if !w.serves(m) || hard > 0 && before >= int64(hard) {
					w.wrong("a visit got in, the machine serves: %t, %d are in of %d", w.serves(m), before, hard)
				}
				m.in.Add(1)
				inside = append(inside, func() { m.in.Add(-1); leave() })
			}
		case "leave":
			if len(inside) > 0 {
				i := s.at % len(inside)
				inside[i]()
				inside = append(inside[:i], inside[i+1:]...)
			}
		case "wake":
			waking.Go(func() { w.wake(m) })
		case "stop":
			w.set(m, func(t *gate.Terms) { m.Shut(); t.Open = false })
		case "cordon":
			w.set(m, func(t *gate.Terms) { t.Open = false })
		case "uncordon":
			w.set(m, func(t *gate.Terms) { t.Open = true })
		case "busy":
			w.set(m, func(t *gate.Terms) { t.Busy = time.Now().Add(time.Duration(s.n) * time.Second) })
		case "rest":
			w.set(m, func(t *gate.Terms) { t.Busy = time.Time{} })
		case "wait":
			time.Sleep(time.Duration(s.n) * time.Second)
		}
		synctest.Wait()
	}
	for _, leave := range inside {
		leave()
	}
	waking.Wait()
	served := 0
	for _, m := range w.machines[:3] {
		if w.serves(m) {
			served++
		}
	}
	time.Sleep(3 * time.Minute)
	synctest.Wait()
	left := 0
	for i, m := range w.machines {
		switch {
		case w.serves(m) && i == 3:
			w.wrong("an idle machine still runs")
		case w.serves(m):
			left++
		}
		if all, service := m.Load(8080); all != 0 || service != 0 {
			w.wrong("%d are counted in, %d by the service, and the machine is empty", all, service)
		}
	}
	if left != min(served, 1) {
		w.wrong("%d of %d machines that serve were left running, one has to", left, served)
	}
	return w.found()
}

// wake starts a Machine that does not serve, and gets in, as the agent does it.
func (w *world) wake(m *machine) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		if release, err := m.Hold(); err == nil {
			m.held.Add(1)
			time.Sleep(time.Millisecond)
			m.held.Add(-1)
			release()
			return
		}
		open, changed := m.Reopen()
		switch {
		case open:
			continue
		case changed == nil:
			w.set(m, func(t *gate.Terms) { t.Open = true })
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.wrong("a visit that has woken a machine has not got in")
			return
		}
	}
}
