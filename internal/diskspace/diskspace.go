// Package diskspace decides whether a write may still go to the disk of the platform, so
// that a full disk stops what tenants ask for and never the platform.
//
// A Space watches one data directory. It keeps a reserve of the file system, in bytes and inodes.
// Admit refuses a tenant's request that would use the reserve, with hangar.ReasonDiskFull and a text
// that says what is full. AdmitOwn admits the platform's own writes until little is left. A quarter
// of the reserve is a file, the ballast. Running programs write without asking and may fill the disk
// to the last block; then the ballast is removed, which leaves the platform some room. It is made
// again once the reserve is free.
//
// Each decision measures the disk (statfs, about a microsecond). Methods may be called from many
// goroutines. A nil Space admits everything.
//
// The package does not count what each tenant uses, and frees nothing but the ballast.
package diskspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// Bounds of the default reserve, which is 1/16 of the disk.
const (
	minReserve = 256 << 20
	maxReserve = 1 << 30
)

// Shares of the reserve.
const (
	ballastShare = 4  // 1/4 of the reserve is the ballast
	restShare    = 16 // 1/16 of the reserve is kept free even from the platform's own writes
)

// Reserved inodes: 1/64 of all, within bounds.
const (
	minInodes = 512
	maxInodes = 50_000
	ownInodes = 64 // kept free even from the platform's own writes
)

// Files in the data directory.
const (
	ballastFile = "ballast"
	startFile   = "ballast-start" // removed only while a daemon starts, so that the next start has room, too
	fullFile    = "disk-full"     // empty; exists while the disk is full
)

// pause is the time between two measurements of an idle disk.
const pause = time.Second

// Options of a Space.
type Options struct {
	Dir     string // the data directory
	Reserve int64  // bytes; 0: 1/16 of the disk, from 256 MiB to 1 GiB
	Log     *slog.Logger
	Now     func() time.Time
}

// Space is the room on the disk of a data directory.
type Space struct {
	o       Options
	reserve int64 // bytes
	inodes  int64 // reserved; 0: the file system does not count them

	mu      sync.Mutex // guards what follows
	ballast int64      // bytes that the file takes
	none    bool       // the file system cannot allocate, so there is no ballast
	spare   bool       // startFile exists
	held    int64      // bytes that Hold has admitted
	started bool       // Run was called
	level   Level
	since   time.Time // when the level last changed from or to LevelOK

	refused *prometheus.CounterVec
}

// Level is how full a disk is.
type Level string

// The levels.
const (
	LevelOK   Level = "ok"
	LevelLow  Level = "low"  // the reserve is in use: requests of tenants are refused
	LevelFull Level = "full" // the ballast or the reserved inodes are used up, too
)

// Status is the state of the disk.
type Status struct {
	Level      Level
	Since      time.Time // when the disk became full or had room again
	Free       int64     // bytes, without the ballast
	Total      int64     // bytes
	Ballast    int64     // bytes
	Reserve    int64     // bytes
	FreeInodes int64
	Inodes     int64 // 0: the file system does not count them
}

// Full describes what is short, in a few words; empty: nothing.
func (s Status) Full() string {
	switch {
	case s.Level == LevelOK || s.Level == "":
		return ""
	case s.Free+s.Ballast < s.Reserve:
		return fmt.Sprintf("%d of %d MiB are free", s.Free>>20, s.Total>>20)
	default:
		return fmt.Sprintf("%d of %d inodes are free", s.FreeInodes, s.Inodes)
	}
}

// New returns a Space that Open makes usable.
func New(o Options) *Space {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "hangar_disk_refusals_total", Help: "Requests that were refused because the disk of the server has too little room, by what for",
	}, []string{"what"})
	for _, what := range Purposes() {
		refused.WithLabelValues(string(what))
	}
	return &Space{o: o, refused: refused}
}

// Open measures the disk. It makes the ballast if there is room, and removes it if there is none. A
// full disk is not an error.
func (s *Space) Open() error {
	st, err := s.statfs()
	if err != nil {
		return err
	}
	if s.reserve = s.o.Reserve; s.reserve == 0 {
		s.reserve = min(max(int64(st.Blocks)*st.Bsize/16, minReserve), maxReserve)
	}
	s.inodes = reservedInodes(int64(st.Files))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level, s.since = LevelOK, s.o.Now()
	if since, ok := FullSince(s.o.Dir); ok {
		s.level, s.since = LevelLow, since
	}
	if fi, err := os.Stat(s.ballastPath()); err == nil {
		s.ballast = fi.Size()
	}
	if _, err := os.Lstat(filepath.Join(s.o.Dir, startFile)); err == nil {
		s.spare = true
	}
	if s.spare && int64(st.Bavail)*st.Bsize < s.rest() {
		s.remove(startFile)
		s.spare = false
	}
	_, err = s.look()
	return err
}

func reservedInodes(all int64) int64 {
	if all == 0 {
		return 0
	}
	return min(max(all/64, min(minInodes, all/4)), maxInodes)
}

// Run checks the disk every second. So even without requests, it removes and restores the ballast and
// logs changes of the level.
func (s *Space) Run(ctx context.Context) error {
	s.mu.Lock()
	s.started = true
	_, err := s.look()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if _, err := s.Status(); err != nil {
				s.o.Log.WarnContext(ctx, "measure the disk", "error", err)
			}
		}
	}
}

// Admit refuses a request for a number of bytes, or for an unknown number that is bounded elsewhere
// (0), if the reserve is or would be in use. what names the request in the text and in the metric.
func (s *Space) Admit(what Purpose, bytes int64) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admit(what, bytes)
}

// admit is Admit. s.mu is held.
func (s *Space) admit(what Purpose, bytes int64) error {
	st, err := s.look()
	if err != nil {
		return err
	}
	room := st.Free + st.Ballast - s.reserve - s.held
	switch {
	case room < bytes || room <= 0:
		return s.refuse(what, fmt.Sprintf("%d of %d MiB are free, %d MiB are reserved for the platform, and %d MiB are requested",
			(st.Free+st.Ballast-s.held)>>20, st.Total>>20, s.reserve>>20, bytes>>20))
	case s.inodes > 0 && st.FreeInodes < s.inodes:
		return s.refuse(what, fmt.Sprintf("%d of %d inodes are free, and %d are reserved for the platform", st.FreeInodes, st.Inodes, s.inodes))
	}
	return nil
}

// Hold is Admit for work that uses its room gradually: until release is called, no other request gets
// these bytes. Bytes that were already written count twice until then.
func (s *Space) Hold(what Purpose, bytes int64) (release func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.admit(what, bytes); err != nil {
		return nil, err
	}
	s.held += bytes
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held -= bytes
	}), nil
}

// Reserved returns how many of the free bytes are reserved for the platform.
func (s *Space) Reserved() int64 {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve - s.ballast
}

// AdmitOwn refuses a write of the platform itself if the disk has too little room even for that.
func (s *Space) AdmitOwn(what Purpose) error {
	if s == nil {
		return nil
	}
	st, err := s.Status()
	if err != nil {
		return err
	}
	if st.Free < s.rest()/2 || s.inodes > 0 && st.FreeInodes < ownInodes {
		return s.refuse(what, st.Full())
	}
	return nil
}

// Writer returns a writer to w for data of unknown length. It admits each write, and fails when the
// disk has no room.
func (s *Space) Writer(what Purpose, w io.Writer) io.Writer {
	if s == nil {
		return w
	}
	return writer{s, what, w}
}

type writer struct {
	space *Space
	what  Purpose
	w     io.Writer
}

func (w writer) Write(b []byte) (int, error) {
	if err := w.space.Admit(w.what, int64(len(b))); err != nil {
		return 0, err
	}
	return w.w.Write(b)
}

func (s *Space) refuse(what Purpose, why string) error {
	s.refused.WithLabelValues(string(what)).Inc()
	return hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonDiskFull,
		"cannot %s: the disk of the server is full (%s); remove images, volumes or Machines that are not needed, or have the operator make room", what, why)
}

// Explain turns the kernel's error for a full disk into the error that Admit would have returned. It
// returns other errors, and those that have a reason already, unchanged.
func Explain(err error) error {
	if hangar.ReasonOf(err) != "" || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return &hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonDiskFull, Message: "the disk of the server is full", Err: err}
}

// Status measures the disk.
func (s *Space) Status() (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look()
}

// measure is Status with the level of the previous measurement. s.mu is held.
func (s *Space) measure() (Status, error) {
	st, err := s.statfs()
	if err != nil {
		return Status{}, err
	}
	return Status{
		Level: s.level, Since: s.since, Free: int64(st.Bavail) * st.Bsize, Total: int64(st.Blocks) * st.Bsize,
		Ballast: s.ballast, Reserve: s.reserve, FreeInodes: int64(st.Ffree), Inodes: int64(st.Files),
	}, nil
}

// look measures the disk, adjusts the ballast and updates the level. It measures again only if the
// ballast has changed. s.mu is held.
func (s *Space) look() (Status, error) {
	st, err := s.measure()
	if err == nil && s.tend(st.Free) {
		st, err = s.measure()
	}
	if err != nil {
		return Status{}, err
	}
	level := LevelOK
	switch {
	case st.Ballast == 0 && st.Free < s.reserve, s.inodes > 0 && st.FreeInodes < ownInodes:
		level = LevelFull
	case st.Free+st.Ballast < s.reserve, s.inodes > 0 && st.FreeInodes < s.inodes:
		level = LevelLow
	}
	if level == s.level {
		return st, nil
	}
	before := s.level
	if level == LevelOK || before == LevelOK {
		s.since = s.o.Now()
		s.mark(level)
	}
	s.level = level
	st.Level, st.Since = s.level, s.since
	if level == LevelOK {
		s.o.Log.Info("the disk has room again", "dir", s.o.Dir, "free_mib", st.Free>>20, "was", string(before))
	} else {
		s.o.Log.Error("the disk is full", "dir", s.o.Dir, "level", string(level), "full", st.Full(), "ballast_mib", st.Ballast>>20)
	}
	return st, nil
}

// tend removes or restores the ballast, depending on the free bytes, and reports whether it has.
// s.mu is held.
func (s *Space) tend(free int64) (changed bool) {
	switch {
	case free < s.rest() && s.ballast > 0:
		s.remove(ballastFile)
		s.ballast, changed = 0, true
	case free >= s.reserve && s.ballast == 0 && !s.none:
		if size := s.reserve / ballastShare; s.allocate(ballastFile, size) {
			s.ballast, changed = size, true
			free -= size
		}
	}
	if s.started && !s.spare && !s.none && free >= s.rest() && s.allocate(startFile, s.rest()) {
		s.spare, changed = true, true
	}
	return changed
}

// rest is how many bytes the platform's own writes leave free while there is a ballast.
func (s *Space) rest() int64 { return s.reserve / restShare }

// mark writes a file that records since when the disk is full, even across restarts.
func (s *Space) mark(level Level) {
	path := filepath.Join(s.o.Dir, fullFile)
	if level == LevelOK {
		_ = os.Remove(path) // if it stayed, the next full disk would seem to be full since then
		return
	}
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err == nil { // without a free inode there is no file
		_ = f.Close()
	}
}

// FullSince returns since when the disk of a data directory has been too full. full is false if it is
// not.
func FullSince(dir string) (since time.Time, full bool) {
	fi, err := os.Stat(filepath.Join(dir, fullFile))
	if err != nil {
		return time.Time{}, false
	}
	return fi.ModTime(), true
}

func (s *Space) ballastPath() string { return filepath.Join(s.o.Dir, ballastFile) }

// remove removes a file that only takes room. It truncates the file first, because some file systems
// free the blocks of removed files later.
func (s *Space) remove(name string) {
	path := filepath.Join(s.o.Dir, name)
	_ = os.Truncate(path, 0)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.o.Log.Error("remove the ballast", "error", err)
		return
	}
	if st, err := s.statfs(); err != nil || st.Type != unix.BTRFS_SUPER_MAGIC {
		return
	}
	// btrfs frees the room with its next transaction.
	if dir, err := os.Open(s.o.Dir); err == nil {
		_ = unix.Syncfs(int(dir.Fd()))
		_ = dir.Close()
	}
}

// allocate makes a file of size bytes, completely or not at all, and reports whether there was room.
// It does not try again on a file system without support.
func (s *Space) allocate(name string, size int64) bool {
	f, err := os.OpenFile(filepath.Join(s.o.Dir, name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return false
	}
	if err := errors.Join(durable.Allocate(int(f.Fd()), 0, size), f.Close()); err != nil {
		s.none = errors.Is(err, errors.ErrUnsupported)
		s.remove(name)
		return false
	}
	return true
}

func (s *Space) statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Dir, &st); err != nil {
		return st, &fs.PathError{Op: "statfs", Path: s.o.Dir, Err: err}
	}
	return st, nil
}

// Extend allocates the blocks of the first size bytes of a file, so that writing there needs no room.
// It does not change the size of the file. It returns errors.ErrUnsupported if the file system cannot
// do so.
func Extend(f *os.File, size int64) error {
	if err := durable.Allocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, size); err != nil {
		return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return nil
}

// noCow is FS_NOCOW_FL of linux/fs.h.
const noCow = 0x00800000

// InPlace makes btrfs overwrite an empty file, or future files of a directory, in place. Otherwise
// every write would need room, even in allocated blocks. Other file systems overwrite in place
// anyway.
func InPlace(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.BTRFS_SUPER_MAGIC {
		return err
	}
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|noCow)
	}
	if err != nil {
		return fmt.Errorf("set %s to be overwritten in place: %w", f.Name(), err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (s *Space) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Space) Collect(ch chan<- prometheus.Metric) {
	s.refused.Collect(ch)
	st, err := s.Status()
	if err != nil {
		return
	}
	gauge := func(name, help string, value float64) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value)
	}
	gauge("hangar_disk_free_bytes", "Bytes that are free on the disk of the data directory, without the ballast.", float64(st.Free))
	gauge("hangar_disk_size_bytes", "Size of the disk of the data directory.", float64(st.Total))
	gauge("hangar_disk_ballast_bytes", "Bytes that the ballast holds for the platform.", float64(st.Ballast))
	gauge("hangar_disk_reserve_bytes", "Bytes that are refused to tenants.", float64(st.Reserve))
	gauge("hangar_disk_free_inodes", "Inodes that are free on the disk of the data directory.", float64(st.FreeInodes))
	full := 0.0
	if st.Level != LevelOK {
		full = float64(st.Since.Unix())
	}
	gauge("hangar_disk_full_since_timestamp_seconds", "Since when the disk has been too full for requests of tenants; 0: it is not.", full)
}
