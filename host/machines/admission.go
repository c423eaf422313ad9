package machines

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
	"github.com/hangar-platform/hangar/host/journal"
)

// Defaults of how many times its own resources a host promises to Machines that are not at rest. If
// memory is promised twice, one Machine can take another's, and the kernel kills one; processors
// are shared by time.
const (
	DefaultMemoryOvercommit = 1
	DefaultCPUOvercommit    = 32
)

// capacity is the most that the host promises to Machines.
func (o *Options) capacity() admission.Load {
	memory, cpus := o.MemoryOvercommit, o.CPUOvercommit
	if memory <= 0 {
		memory = DefaultMemoryOvercommit
	}
	if cpus <= 0 {
		cpus = DefaultCPUOvercommit
	}
	return admission.Load{
		Memory: int64(float64(o.Host.Memory-o.MemoryReserve) * memory),
		CPUs:   int64(float64(o.Host.CPUs) * cpus),
	}
}

// loadOf is the host's promise to a Machine. A Machine at rest has no process and no promise: its
// start is admitted instead, whether a user, a schedule or a request causes it (ADR 32). A Machine
// that is being replaced counts the larger of its two versions, because it may return to the
// previous one.
func loadOf(rec *journal.Record) admission.Load {
	m := &rec.Machine
	switch {
	case m.State.AtRest(), m.State == hangar.MachineCreated && rec.SkipLaunch:
		return admission.Load{}
	case m.State == hangar.MachineDestroying && (rec.Handle == nil || rec.Ended):
		return admission.Load{} // it was at rest: destroying it needs no room
	case m.State == hangar.MachineReplacing && rec.Previous != nil:
		if rec.Previous.State.AtRest() {
			return admission.Load{}
		}
		before := loadOfGuest(rec.Previous.Config.Guest)
		if rec.SkipLaunch {
			return before
		}
		return admission.Max(before, loadOfGuest(m.Config.Guest))
	default:
		return loadOfGuest(m.Config.Guest)
	}
}

func loadOfGuest(g *hangar.Guest) admission.Load {
	if g == nil {
		return admission.Load{}
	}
	return admission.Load{Memory: int64(g.Memory()) << 20, CPUs: int64(g.CPUs)}
}
