package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/cgroup"
)

// Usage implements driver.UsageReader. It only reads files of the sandbox's groups.
//
// The memory of a guest is one file in the memory of the host, which the processes of its sandbox
// share, so it is the shared memory of the group. The other files of the group are the page cache of
// the guest's file systems, which the host keeps for it. The rest is the engine's own memory and is
// not counted.
func (d *Driver) Usage(_ context.Context, h driver.Handle) (driver.Usage, error) {
	s, err := d.running(h)
	if err != nil {
		return driver.Usage{}, err
	}
	u, err := d.cgroup.usage(string(s.ID))
	if errors.Is(err, fs.ErrNotExist) {
		err = s.goneError()
	}
	if err != nil {
		return driver.Usage{}, fmt.Errorf("measure machine %s: %w", s.ID, err)
	}
	return u, nil
}

func (c cgroups) usage(id string) (u driver.Usage, err error) {
	if err := c.usageOfCPU(id, &u); err != nil {
		return u, err
	}
	fields := []string{"total_shmem", "total_cache", "total_dirty", "total_writeback", "total_swap"}
	if c.v2 {
		fields = []string{"shmem", "file", "file_dirty", "file_writeback"}
	}
	stat, err := c.fields(c.file(id, "memory", "memory.stat"))
	if err != nil {
		return u, err
	}
	values := make([]int64, len(fields))
	for i, name := range fields {
		n, ok := stat[name]
		if values[i] = n; !ok {
			values[i] = driver.NotKnown
		}
	}
	u.Memory = driver.MemoryUsage{
		Used: values[0], Cached: max(values[1]-values[0], 0), Dirty: values[2], Writeback: values[3],
	}
	if values[0] == driver.NotKnown || values[1] == driver.NotKnown {
		u.Memory.Cached = driver.NotKnown
	}
	u.Memory.SwapTotal, u.Memory.SwapUsed = c.swap(id, stat)
	return u, nil
}

// usageOfCPU reads the processor time.
func (c cgroups) usageOfCPU(id string, u *driver.Usage) error {
	stat, err := c.fields(c.file(id, "cpu", "cpu.stat"))
	if err != nil {
		return err
	}
	u.Throttled = driver.NotKnown
	if c.v2 {
		u.User, u.System = time.Duration(stat["user_usec"])*time.Microsecond, time.Duration(stat["system_usec"])*time.Microsecond
		if n, ok := stat["throttled_usec"]; ok {
			u.Throttled = time.Duration(n) * time.Microsecond
		}
		return nil
	}
	if n, ok := stat["throttled_time"]; ok {
		u.Throttled = time.Duration(n)
	}
	times, err := c.fields(c.file(id, "cpuacct", "cpuacct.stat"))
	const tick = time.Second / 100 // USER_HZ, see time(7)
	u.User, u.System = time.Duration(times["user"])*tick, time.Duration(times["system"])*tick
	return err
}

// swap returns how many bytes of the Machine's memory may be swapped out beyond its limit, and how
// many are.
func (c cgroups) swap(id string, stat map[string]int64) (total, used int64) {
	if c.v2 {
		total, err := number(filepath.Join(cgroup.Root, c.parent, id, "memory.swap.max"))
		if err != nil {
			return 0, 0 // the value is max, or the host has no swap
		}
		used, _ := number(c.file(id, "", "memory.swap.current"))
		return total, used
	}
	both, err := number(c.file(id, "memory", "memory.memsw.limit_in_bytes"))
	limit, limitErr := c.memoryLimit(id)
	if err != nil || limitErr != nil || both >= math.MaxInt64/2 || both <= limit {
		return 0, 0
	}
	return both - limit, max(stat["total_swap"], 0)
}

// fields reads a file of "key number" lines.
func (c cgroups) fields(path string) (map[string]int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := make(map[string]int64)
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				all[k] = n
			}
		}
	}
	return all, nil
}
