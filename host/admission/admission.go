// Package admission decides which Machines a host has memory and processors for.
//
// A Ledger knows the promise to each Machine that is not at rest. The sum never grows beyond the
// capacity, however many callers there are: checking and taking are one step under one lock. A
// promise that shrinks, or that is found when the daemon starts, is always taken. The cost of a
// call does not grow with the number of Machines.
//
// Nothing is durable: a promise follows from the record of its Machine.
package admission

import (
	"sync"

	"github.com/hangar-platform/hangar"
)

// Load is the promise to one Machine, or the sum of all.
type Load struct {
	Memory int64 // bytes
	CPUs   int64
}

// covers reports whether l has at least as much of everything as o.
func (l Load) covers(o Load) bool { return l.Memory >= o.Memory && l.CPUs >= o.CPUs }

// Max is the larger of two loads, in each of their parts.
func Max(a, b Load) Load { return Load{Memory: max(a.Memory, b.Memory), CPUs: max(a.CPUs, b.CPUs)} }

// Ledger keeps the promises of a host. It is safe for concurrent use.
type Ledger struct {
	capacity Load

	mu       sync.Mutex
	promised Load                      // sum of byID; guarded by mu
	byID     map[hangar.MachineID]Load // guarded by mu
}

// NewLedger returns a Ledger without promises, whose sum stays within capacity.
func NewLedger(capacity Load) *Ledger {
	return &Ledger{capacity: capacity, byID: make(map[hangar.MachineID]Load)}
}

// Admit promises a Machine at least as much as load, and returns its promise before. It answers
// CodeConflict with ReasonInsufficientCapacity when that does not fit.
func (l *Ledger) Admit(id hangar.MachineID, load Load) (before Load, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.byID[id]
	if before.covers(load) {
		return before, nil
	}
	more := Load{Memory: max(0, load.Memory-before.Memory), CPUs: max(0, load.CPUs-before.CPUs)}
	switch {
	case more.Memory > 0 && l.promised.Memory+more.Memory > l.capacity.Memory:
		return before, full("insufficient memory available to fulfill request: %d MB asked, %d MB of %d MB are promised to machines that run",
			load.Memory>>20, (l.promised.Memory-before.Memory)>>20, l.capacity.Memory>>20)
	case more.CPUs > 0 && l.promised.CPUs+more.CPUs > l.capacity.CPUs:
		return before, full("insufficient CPUs available to fulfill request: %d asked, %d of %d are promised to machines that run",
			load.CPUs, l.promised.CPUs-before.CPUs, l.capacity.CPUs)
	}
	l.set(id, Max(before, load))
	return before, nil
}

// Fits refuses a load that exceeds the capacity with nothing else promised, as Admit does.
func (l *Ledger) Fits(load Load) error {
	switch {
	case load.Memory > l.capacity.Memory:
		return full("insufficient memory available to fulfill request: %d MB asked, the host has %d MB for machines", load.Memory>>20, l.capacity.Memory>>20)
	case load.CPUs > l.capacity.CPUs:
		return full("insufficient CPUs available to fulfill request: %d asked, the host has %d for machines", load.CPUs, l.capacity.CPUs)
	default:
		return nil
	}
}

// Has refuses a load for which there is no room at this moment, as Admit does.
func (l *Ledger) Has(load Load) error {
	if err := l.Fits(load); err != nil {
		return err
	}
	switch left := l.Left(); {
	case load.Memory > left.Memory:
		return full("insufficient memory available to fulfill request: %d MB asked, %d MB are left", load.Memory>>20, max(0, left.Memory)>>20)
	case load.CPUs > left.CPUs:
		return full("insufficient CPUs available to fulfill request: %d asked, %d are left", load.CPUs, max(0, left.CPUs))
	default:
		return nil
	}
}

func full(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "could not reserve resource for machine: "+format, args...)
}

// Set makes load the promise to a Machine, whether or not it fits.
func (l *Ledger) Set(id hangar.MachineID, load Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(id, load)
}

// set is Set. l.mu is held.
func (l *Ledger) set(id hangar.MachineID, load Load) {
	before := l.byID[id]
	l.promised.Memory += load.Memory - before.Memory
	l.promised.CPUs += load.CPUs - before.CPUs
	if load == (Load{}) {
		delete(l.byID, id)
		return
	}
	l.byID[id] = load
}

// Left is the capacity without promises. It is negative where promises were found that exceed the
// capacity.
func (l *Ledger) Left() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Load{Memory: l.capacity.Memory - l.promised.Memory, CPUs: l.capacity.CPUs - l.promised.CPUs}
}

// Capacity is the largest sum of promises.
func (l *Ledger) Capacity() Load { return l.capacity }
