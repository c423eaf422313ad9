package admission_test

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
)

func id(n int) hangar.MachineID { return hangar.MachineID(strconv.Itoa(n)) }

func TestOnlySoManyFit(t *testing.T) {
	for name, capacity := range map[string]admission.Load{
		"memory": {Memory: 10 << 20, CPUs: 1000},
		"CPUs":   {Memory: 1 << 40, CPUs: 10},
	} {
		t.Run(name, func(t *testing.T) {
			l := admission.NewLedger(capacity)
			var admitted atomic.Int64
			var all sync.WaitGroup
			for n := range 100 {
				all.Go(func() {
					if _, err := l.Admit(id(n), admission.Load{Memory: 1 << 20, CPUs: 1}); err == nil {
						admitted.Add(1)
					} else if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity || !strings.Contains(err.Error(), name) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if admitted.Load() != 10 {
				t.Errorf("%d were admitted where 10 fit", admitted.Load())
			}
		})
	}
}

func TestPromisesGrowAndShrink(t *testing.T) {
	l := admission.NewLedger(admission.Load{Memory: 100, CPUs: 4})
	if _, err := l.Admit("a", admission.Load{Memory: 60, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Admit("b", admission.Load{Memory: 41, CPUs: 1}); err == nil {
		t.Error("101 of 100 were promised")
	}
	if before, err := l.Admit("a", admission.Load{Memory: 100, CPUs: 1}); err != nil || before.Memory != 60 {
		t.Errorf("grow: %+v, %v", before, err)
	}
	if _, err := l.Admit("a", admission.Load{Memory: 10, CPUs: 1}); err != nil || l.Left().Memory != 0 {
		t.Errorf("Admit took something back: %+v, %v", l.Left(), err)
	}
	l.Set("a", admission.Load{Memory: 10, CPUs: 1})
	if l.Left() != (admission.Load{Memory: 90, CPUs: 3}) {
		t.Errorf("left after shrinking: %+v", l.Left())
	}
	if err := l.Fits(admission.Load{Memory: 100, CPUs: 4}); err != nil {
		t.Errorf("all of the capacity: %v", err)
	}
	for _, load := range []admission.Load{{Memory: 101}, {CPUs: 5}} {
		if err := l.Fits(load); hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
			t.Errorf("%+v: %v", load, err)
		}
	}
	// What is found at the start is there, whether or not it fits.
	l.Set("found", admission.Load{Memory: 500, CPUs: 9})
	if l.Left().Memory >= 0 {
		t.Errorf("left: %+v", l.Left())
	}
	if _, err := l.Admit("a", admission.Load{Memory: 5, CPUs: 1}); err != nil {
		t.Errorf("a promise that does not grow was refused: %v", err)
	}
	if _, err := l.Admit("c", admission.Load{Memory: 1}); err == nil {
		t.Error("a full host took another machine")
	}
	l.Set("found", admission.Load{})
	l.Set("a", admission.Load{})
	if l.Left() != l.Capacity() {
		t.Errorf("left when nothing is promised: %+v", l.Left())
	}
}
