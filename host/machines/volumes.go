package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// The interface to Machines that the volumes of a host need.

// DescribeVolume updates a volume in the Machine that it is attached to. That is not a new
// version of the Machine.
func (s *Store) DescribeVolume(volume *hangar.Volume) error {
	m := s.find(volume.AttachedMachine)
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rec.Load().Machine.State.Answers(hangar.VerbAnnotate) != hangar.Accept {
		return nil
	}
	return m.annotate(func(next *journal.Record) []hangar.Event {
		next.Machine.Config.DescribeMount(volume)
		if next.Previous != nil {
			before := *next.Previous
			before.Config.DescribeMount(volume)
			next.Previous = &before
		}
		return nil
	})
}

// endPatience bounds the wait for a volume whose Machine is being destroyed.
const endPatience = 10 * time.Second

// AwaitEnd waits, within limits, for the end of a Machine that is being destroyed, and for no
// other.
func (s *Store) AwaitEnd(ctx context.Context, ref hangar.MachineRef) {
	if m, err := s.machine(ref); err != nil || m.rec.Load().Machine.State != hangar.MachineDestroying {
		return
	}
	// The state of the volume shows the result.
	_, _ = s.WaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: endPatience})
}
