package gvisor

import (
	"context"
	"fmt"

	"github.com/hangar-platform/hangar/host/driver"
)

// Stats implements driver.StatsReader.
func (d *Driver) Stats(ctx context.Context, h driver.Handle) (driver.Stats, error) {
	s, err := d.running(h)
	if err != nil {
		return driver.Stats{}, err
	}
	id := string(s.ID)
	var listed []guestProcess
	if err := s.call(ctx, methodProcesses, &id, &listed); err != nil {
		return driver.Stats{}, fmt.Errorf("count processes of machine %s: %w", s.ID, err)
	}
	// All but the guest's init.
	stats := driver.Stats{Processes: max(0, len(listed)-1)}
	if stats.MemoryBytes, err = d.cgroup.memory(id); err != nil {
		return driver.Stats{}, fmt.Errorf("read memory of machine %s: %w", s.ID, err)
	}
	if stats.CPUTime, err = d.cgroup.cpuTime(id); err != nil {
		return driver.Stats{}, fmt.Errorf("read processor time of machine %s: %w", s.ID, err)
	}
	return stats, nil
}
