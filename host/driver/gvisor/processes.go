package gvisor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// Processes implements driver.Driver.
func (d *Driver) Processes(ctx context.Context, h driver.Handle) ([]hangar.Process, error) {
	s, err := d.running(h)
	if err != nil {
		return nil, err
	}
	id := string(s.ID)
	var listed []guestProcess
	if err := s.call(ctx, methodProcesses, &id, &listed); err != nil {
		return nil, fmt.Errorf("list processes of machine %s: %w", s.ID, err)
	}
	var dumped []procfsEntry
	if err := s.call(ctx, methodProcfs, &struct{}{}, &dumped); err != nil {
		return nil, fmt.Errorf("list processes of machine %s: %w", s.ID, err)
	}
	details := make(map[int32]procfsEntry, len(dumped))
	for _, e := range dumped {
		details[e.Status.PID] = e
	}
	out := make([]hangar.Process, 0, len(listed))
	for _, p := range listed {
		e := details[p.PID]
		command := strings.Join(e.Args, " ")
		if command == "" {
			command = p.Cmd
		}
		out = append(out, hangar.Process{
			PID: int(p.PID), Command: command, Directory: e.CWD, RSS: int64(e.Status.VMRSS) << 10,
			StartedMS: systemTime(p.Time), RunMS: userTime(p, e),
			CPU:           float64(p.C) / 100,
			ListenSockets: []hangar.ListenSocket{},
		})
	}
	return out, nil
}

// systemTime reads the processor time that gVisor names, in milliseconds.
func systemTime(text string) int64 {
	t, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return t.Milliseconds()
}

// userTime is what remains of the share of a core that gVisor names, which counts
// both, over the life of the process.
func userTime(p guestProcess, e procfsEntry) int64 {
	if e.StartTime == 0 {
		return 0
	}
	total := time.Since(time.Unix(0, e.StartTime)).Milliseconds() * int64(p.C) / 100
	return max(0, total-systemTime(p.Time))
}
