package machines

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/usage"
)

// countersFile has the counters of a Machine's devices at the time of their attachment.
const countersFile = "counters"

// Device names in the series of a Machine. Further volumes are vdd, vde and so on.
const (
	rootDevice  = "vdb"
	firstVolume = 'c'
)

// meter is the state of a Machine's series between samples.
type meter struct {
	mu        sync.Mutex // guards the fields below
	handle    string     // of the sandbox that the state belongs to
	processor usage.Processor
	disks     usage.Disks // nil: not read yet
}

// networkCounter is a network that counts what Machines receive and send.
type networkCounter interface {
	Counters() (map[hangar.MachineID]network.Counters, error)
}

// Metrics implements hangar.MetricSource: it yields all series of started Machines that need no
// question to the Machine, and the last exit of the others.
func (s *Store) Metrics(yield func(hangar.Metric) bool) {
	var counters map[hangar.MachineID]network.Counters
	if counter, ok := s.o.Network.(networkCounter); ok {
		var err error
		if counters, err = counter.Counters(); err != nil {
			s.o.Log.Warn("read the network counters of machines", keyError, err)
		}
	}
	for _, m := range s.all() {
		rec := m.rec.Load()
		e := &series{app: rec.Machine.AppID, machine: m.id, yield: yield}
		m.exitSeries(e)
		if rec.Machine.State == hangar.MachineStarted && rec.Handle != nil && !rec.Ended {
			m.runningSeries(s.work.Context, e, rec)
			if c, ok := counters[m.id]; ok {
				networkSeries(e, c)
			}
		}
		if e.over {
			return
		}
	}
}

// MetricsEndpoints yields the endpoints at which started Machines expose metrics of their own.
func (s *Store) MetricsEndpoints(yield func(hangar.MetricsEndpoint) bool) {
	for _, m := range s.all() {
		rec := m.rec.Load()
		exposed := rec.Machine.Config.Metrics
		if exposed == nil || rec.Machine.State != hangar.MachineStarted || rec.Handle == nil || rec.Ended {
			continue
		}
		boot := fnv.New64a()
		_, _ = boot.Write(rec.Handle)
		if !yield(hangar.MetricsEndpoint{
			Machine: rec.Machine.Ref(), Org: rec.OrgID, Region: rec.Machine.Region, Metrics: *exposed, Boot: boot.Sum64(),
		}) {
			return
		}
	}
}

// series emits the series of one Machine.
type series struct {
	app     hangar.AppID
	machine hangar.MachineID
	yield   func(hangar.Metric) bool
	over    bool // yield has returned false
}

// emit takes labels as names and values.
func (e *series) emit(name string, value float64, labels ...string) {
	if e.over {
		return
	}
	metric := hangar.Metric{App: e.app, Machine: e.machine, Name: "instance_" + name, Value: value}
	for pair := range slices.Chunk(labels, 2) {
		metric.Labels = append(metric.Labels, hangar.MetricLabel{Name: pair[0], Value: pair[1]})
	}
	e.over = !e.yield(metric)
}

// known is emit for values that a driver may not know.
func (e *series) known(name string, value int64) {
	if value != driver.NotKnown {
		e.emit(name, float64(value))
	}
}

// exitSeries emits the Machine's last exit, if there was one. The sandbox ends with the exit code
// of its main process, so both codes are the same.
func (m *machine) exitSeries(e *series) {
	exit, err := m.lastExit()
	if err != nil {
		m.store.o.Log.Warn("read events", keyMachine, m.id, keyError, err)
		return
	}
	if exit == nil {
		return
	}
	oom := 0.0
	if exit.OOMKilled {
		oom = 1
	}
	e.emit("exit_code", float64(exit.GuestExitCode))
	e.emit("exit_oom", oom)
	e.emit("exit_vm_code", float64(exit.ExitCode))
}

// runningSeries emits the series of a started Machine.
func (m *machine) runningSeries(ctx context.Context, e *series, rec *journal.Record) {
	guest := rec.Machine.Config.Guest
	if reader, ok := m.store.o.Driver.(driver.UsageReader); ok {
		used, err := reader.Usage(ctx, rec.Handle)
		if errors.Is(err, driver.ErrNotFound) {
			return // it has just ended
		}
		if err != nil {
			m.store.o.Log.Warn("measure machine", keyMachine, m.id, keyError, err)
			return
		}
		memorySeries(e, used.Memory, int64(guest.Memory())<<20)
		m.processorSeries(e, rec, used)
	}
	e.emit("up", 1)
	m.deviceSeries(e, rec)
}

func memorySeries(e *series, used driver.MemoryUsage, total int64) {
	e.emit("memory_mem_total", float64(total))
	if used.Used != driver.NotKnown {
		available := max(total-used.Used, 0)
		e.emit("memory_mem_available", float64(available))
		if used.Cached != driver.NotKnown {
			e.emit("memory_mem_free", float64(max(available-used.Cached, 0)))
		}
	}
	e.known("memory_cached", used.Cached)
	e.known("memory_dirty", used.Dirty)
	e.known("memory_writeback", used.Writeback)
	e.known("memory_swap_total", used.SwapTotal)
	if used.SwapTotal != driver.NotKnown && used.SwapUsed != driver.NotKnown {
		e.emit("memory_swap_free", float64(max(used.SwapTotal-used.SwapUsed, 0)))
	}
}

// processorSeries emits the sum of the Machine's processors, which cannot be distinguished.
func (m *machine) processorSeries(e *series, rec *journal.Record, used driver.Usage) {
	cpus := rec.Machine.Config.Guest.CPUs
	m.meter.mu.Lock()
	defer m.meter.mu.Unlock()
	m.meter.about(rec)
	p := &m.meter.processor
	p.Sample(m.store.o.Now(), rec.Since, used.User+used.System, cpus)
	for _, mode := range []struct {
		name string
		time time.Duration
	}{{"user", used.User}, {"system", used.System}, {"idle", p.Idle()}} {
		e.emit("cpu", centiseconds(mode.time), "cpu_id", "all", "mode", mode.name)
	}
	e.emit("cpu_baseline", float64(cpus))
	if used.Throttled != driver.NotKnown {
		e.emit("cpu_throttle", centiseconds(used.Throttled))
	}
	if load, ok := p.Load(); ok {
		for i, minutes := range usage.LoadMinutes {
			e.emit("load_average", load[i], "minutes", strconv.Itoa(minutes))
		}
	}
}

func centiseconds(d time.Duration) float64 { return float64(d / (10 * time.Millisecond)) }

// about resets the state if it belongs to another sandbox. mu is held.
func (m *meter) about(rec *journal.Record) {
	if handle := string(rec.Handle); m.handle != handle {
		m.handle, m.processor, m.disks = handle, usage.Processor{}, nil
	}
}

// deviceSeries emits the series of the Machine's mounted file systems and their devices.
func (m *machine) deviceSeries(e *series, rec *journal.Record) {
	m.meter.mu.Lock()
	defer m.meter.mu.Unlock()
	m.meter.about(rec)
	if m.meter.disks == nil {
		m.meter.disks = usage.ReadDisks(m.path(countersFile))
	}
	for device, at := range m.mounted(rec) {
		if fs, err := usage.ReadFileSystem(at.dir); err == nil {
			e.emit("filesystem_blocks", float64(fs.Blocks), "mount", at.mount)
			e.emit("filesystem_block_size", float64(fs.BlockSize), "mount", at.mount)
			e.emit("filesystem_blocks_free", float64(fs.Free), "mount", at.mount)
			e.emit("filesystem_blocks_avail", float64(fs.Avail), "mount", at.mount)
		}
		disk, err := usage.ReadDisk(at.dir)
		if err != nil {
			continue // a directory of the host, or gone
		}
		for i, n := range m.meter.disks.Since(device, disk) {
			e.emit("disk_"+usage.DiskFields[i], float64(n), "device", device)
		}
	}
}

// place is the path of a file system in the Machine and on the host.
type place struct{ mount, dir string }

// mounted yields the mounts of the Machine by device name.
func (m *machine) mounted(rec *journal.Record) func(yield func(string, place) bool) {
	return func(yield func(string, place) bool) {
		if !yield(rootDevice, place{"/", m.store.o.Layers.Path(m.id)}) {
			return
		}
		for i, mount := range rec.Machine.Config.Mounts {
			dir, ok := m.store.o.Volumes.MountedAt(hangar.VolumeID(mount.Volume))
			if ok && !yield("vd"+string(rune(firstVolume+i)), place{mount.Path, dir}) {
				return
			}
		}
	}
}

// noteCounters records the initial counters of a Machine's devices, which are not the Machine's
// activity. If it fails, the series count from the first sample.
func (w *worker) noteCounters(rec *journal.Record) {
	disks := usage.Disks{}
	for device, at := range w.mounted(rec) {
		if disk, err := usage.ReadDisk(at.dir); err == nil {
			disks[device] = disk
		}
	}
	if err := disks.Write(w.path(countersFile)); err != nil {
		w.store.o.Log.Warn("note the counters of devices", keyMachine, w.id, keyError, err)
	}
}

// networkSeries emits the counters of the host's end of the Machine's device.
func networkSeries(e *series, c network.Counters) {
	for _, way := range []struct {
		name string
		network.Direction
	}{{"recv", c.Received}, {"sent", c.Sent}} {
		for _, count := range []struct {
			name  string
			value uint64
		}{
			{"bytes", way.Bytes}, {"packets", way.Packets}, {"errs", way.Errors}, {"drop", way.Dropped}, {"fifo", way.FIFO}, {"compressed", way.Compressed},
		} {
			e.emit("net_"+way.name+"_"+count.name, float64(count.value), "device", "eth0")
		}
	}
}
