// Package usage reads the kernel's counters of the devices of Machines, and derives the rest from
// them: what a block device has done since a Machine has it, how full a file system is, load
// averages, idle time.
//
// It starts no process, and waits for no device: everything is read from /sys and statfs(2).
package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/ext4"
)

// ErrNoDevice says that a directory is not the root of a file system on a block device of its own.
var ErrNoDevice = errors.New("no block device is mounted there")

// DiskFields are the names of a block device's counters, in the order of the kernel's
// Documentation/block/stat.rst: times are in milliseconds, sectors of 512 bytes.
//
//nolint:gochecknoglobals // it never changes
var DiskFields = [...]string{
	"reads_completed", "reads_merged", "sectors_read", "time_reading",
	"writes_completed", "writes_merged", "sectors_written", "time_writing",
	"io_in_progress", "time_io", "time_io_weighted",
}

// inProgress is the field that is no counter.
const inProgress = 8

// Disk has the counters of a block device.
type Disk struct {
	Device uint64                  `json:"device"`
	Seq    uint64                  `json:"seq"` // differs between uses of the device; 0: the kernel is older than 5.15
	Counts [len(DiskFields)]uint64 `json:"counts"`
}

// ReadDisk reads the counters of the device that is mounted at a directory. It answers ErrNoDevice.
func ReadDisk(dir string) (Disk, error) {
	mounted, err := ext4.IsMounted(dir)
	if err != nil {
		return Disk{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return Disk{}, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if !mounted || unix.Major(st.Dev) == 0 {
		return Disk{}, ErrNoDevice
	}
	d := Disk{Device: st.Dev}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(st.Dev), unix.Minor(st.Dev))
	raw, err := os.ReadFile(sys + "stat")
	if err != nil {
		return Disk{}, err
	}
	if d.Counts, err = parseDisk(string(raw)); err != nil {
		return Disk{}, fmt.Errorf("%sstat: %w", sys, err)
	}
	if raw, err := os.ReadFile(sys + "diskseq"); err == nil {
		d.Seq, _ = strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	}
	return d, nil
}

func parseDisk(text string) (counts [len(DiskFields)]uint64, err error) {
	fields := strings.Fields(text)
	if len(fields) < len(counts) {
		return counts, fmt.Errorf("%d fields", len(fields))
	}
	for i := range counts {
		if counts[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return counts, err
		}
	}
	return counts, nil
}

// Disks are the counters of a Machine's devices when it got them: a device continues its counts
// through all its uses, one after the other.
type Disks map[string]Disk

// ReadDisks reads what Disks.Write wrote. A missing or damaged file is empty.
func ReadDisks(file string) Disks {
	disks := Disks{}
	if raw, err := os.ReadFile(file); err != nil || json.Unmarshal(raw, &disks) != nil || disks == nil {
		return Disks{}
	}
	return disks
}

// Write keeps the counts for a later process. A crash leaves a file that Read refuses.
func (d Disks) Write(file string) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return os.WriteFile(file, raw, 0o600)
}

// Since returns what a device has counted since the Machine has it. An unknown device counts from
// now on.
func (d Disks) Since(name string, now Disk) (counts [len(DiskFields)]uint64) {
	before, ok := d[name]
	if !ok || before.Device != now.Device || before.Seq != now.Seq {
		d[name], before = now, now
	}
	for i := range counts {
		switch {
		case i == inProgress:
			counts[i] = now.Counts[i]
		case now.Counts[i] > before.Counts[i]:
			counts[i] = now.Counts[i] - before.Counts[i]
		}
	}
	return counts
}

// FileSystem is the usage of a file system, see statfs(2).
type FileSystem struct{ Blocks, BlockSize, Free, Avail uint64 }

// ReadFileSystem answers ErrNoDevice where no file system is mounted.
func ReadFileSystem(dir string) (FileSystem, error) {
	if mounted, err := ext4.IsMounted(dir); err != nil || !mounted {
		return FileSystem{}, errors.Join(ErrNoDevice, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FileSystem{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return FileSystem{Blocks: st.Blocks, BlockSize: uint64(max(st.Bsize, 0)), Free: st.Bfree, Avail: st.Bavail}, nil
}

// LoadMinutes are the times that load averages are of.
//
//nolint:gochecknoglobals // it never changes
var LoadMinutes = [...]int{1, 5, 15}

// Processor follows the processor time of a sandbox from sample to sample.
type Processor struct {
	at   time.Time // of the latest sample; zero: none
	busy time.Duration
	load [len(LoadMinutes)]float64
	seen bool // load says something
	idle time.Duration
}

// Sample takes the processor time that a sandbox of some CPUs has used since it was started.
//
// Load averages decay as Linux's do, but what they average is how many processors were in use
// since the sample before, as it cannot be seen how many threads wait for one. The load of a
// sandbox that was started less than a minute ago is 0 at its start; of another one there is none
// before the second sample.
func (p *Processor) Sample(now, started time.Time, busy time.Duration, cpus int) {
	if p.at.IsZero() || busy < p.busy {
		*p = Processor{at: now, busy: busy}
		if now.Sub(started) < time.Minute && now.After(started) {
			p.at, p.busy = started, 0
		}
	}
	if elapsed := now.Sub(p.at); elapsed > 0 {
		inUse := float64(busy-p.busy) / float64(elapsed)
		for i, minutes := range LoadMinutes {
			keep := math.Exp(-elapsed.Minutes() / float64(minutes))
			if !p.seen && p.busy > 0 { // there is no earlier average
				keep = 0
			}
			p.load[i] = p.load[i]*keep + inUse*(1-keep)
		}
		p.at, p.busy, p.seen = now, busy, true
	}
	p.idle = max(p.idle, time.Duration(cpus)*now.Sub(started)-busy)
}

// Load returns the averages of LoadMinutes; false: there are none yet.
func (p *Processor) Load() ([len(LoadMinutes)]float64, bool) { return p.load, p.seen }

// Idle is how much more the CPUs could have been in use. It does not go back.
func (p *Processor) Idle() time.Duration { return p.idle }
