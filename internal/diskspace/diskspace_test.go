package diskspace_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
)

const (
	mib     = 1 << 20
	reserve = 64 * mib
)

func open(t *testing.T, dir string, log *bytes.Buffer) *diskspace.Space {
	t.Helper()
	return openWith(t, dir, reserve, log)
}

func openWith(t *testing.T, dir string, reserve int64, log *bytes.Buffer) *diskspace.Space {
	t.Helper()
	s := diskspace.New(diskspace.Options{Dir: dir, Reserve: reserve, Log: slog.New(slog.NewTextHandler(log, nil)), Now: time.Now})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	return s
}

// syncDisk does not wait for other disks.
func syncDisk(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, text string) {
	t.Helper()
	if hangar.CodeOf(err) != hangar.CodeUnavailable || hangar.ReasonOf(err) != hangar.ReasonDiskFull {
		t.Fatalf("not refused for a full disk: %v", err)
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("%q does not say %q", err, text)
	}
}

func level(t *testing.T, s *diskspace.Space, want diskspace.Level) diskspace.Status {
	t.Helper()
	st, err := s.Status()
	if err != nil {
		t.Fatal(err)
	}
	if st.Level != want {
		t.Fatalf("the level is %s, not %s: %+v", st.Level, want, st)
	}
	return st
}

// TestFullDisk fills a disk below a Space, to the reserve and then to the last byte, and empties it
// again.
func TestFullDisk(t *testing.T) {
	for _, kind := range disktest.Kinds() {
		reserve, size := int64(reserve), int64(320*mib)
		if kind == disktest.Btrfs { // keeps some 16 MiB for itself, which it takes of what is freed first
			reserve, size = 256*mib, 1<<30
		}
		t.Run(kind, func(t *testing.T) { fillDisk(t, disktest.Mount(t, kind, size), reserve) })
	}
}

func fillDisk(t *testing.T, dir string, reserve int64) {
	t.Helper()
	var log bytes.Buffer
	s := openWith(t, dir, reserve, &log)
	st := level(t, s, diskspace.LevelOK)
	if st.Ballast != reserve/4 {
		t.Fatalf("the ballast has %d bytes", st.Ballast)
	}
	if err := s.Admit("pull an image", 1*mib); err != nil {
		t.Error(err)
	}
	refused(t, s.Admit("pull an image", st.Free), "cannot pull an image")

	low := disktest.Fill(t, dir, reserve/2)
	level(t, s, diskspace.LevelLow)
	refused(t, s.Admit("start a Machine", 0), "MiB are free")
	if err := s.AdmitOwn("write the state"); err != nil {
		t.Errorf("the platform has no room in its reserve: %v", err)
	}

	full := disktest.Fill(t, dir, 0)
	if st := level(t, s, diskspace.LevelFull); st.Ballast != 0 || st.Full() == "" || st.Free < reserve/8 {
		t.Errorf("after the disk was filled: %+v", st)
	}
	if err := s.AdmitOwn("write the state"); err != nil {
		t.Errorf("the platform has no room in its ballast: %v", err)
	}
	more := disktest.Fill(t, dir, 0)
	refused(t, s.AdmitOwn("write the state"), "MiB are free")
	// A new process on the full disk finds its way.
	since, marked := diskspace.FullSince(dir)
	restarted := openWith(t, dir, reserve, &log)
	if st := level(t, restarted, diskspace.LevelFull); !marked || !st.Since.Equal(since) {
		t.Errorf("full since %s, not %s", st.Since, since)
	}
	refused(t, restarted.Admit("pull an image", 0), "disk of the server is full")

	for _, name := range []string{low, full, more} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	syncDisk(t, dir) // btrfs frees later
	if st := level(t, s, diskspace.LevelOK); st.Ballast != reserve/4 {
		t.Errorf("the ballast has %d bytes again", st.Ballast)
	}
	if err := s.Admit("pull an image", 1*mib); err != nil {
		t.Error(err)
	}
	for _, said := range []string{"the disk is full", "level=full", "the disk has room again"} {
		if !strings.Contains(log.String(), said) {
			t.Errorf("the log does not say %q:\n%s", said, log.String())
		}
	}
}

// TestNoInodes uses up the inodes of a disk with plenty of room.
func TestNoInodes(t *testing.T) {
	dir := disktest.Mount(t, disktest.Ext4, 128*mib)
	var log bytes.Buffer
	s := open(t, dir, &log)
	level(t, s, diskspace.LevelOK)
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			break
		}
		_ = f.Close()
	}
	if st := level(t, s, diskspace.LevelFull); !strings.Contains(st.Full(), "inodes are free") {
		t.Errorf("%q does not name the inodes", st.Full())
	}
	refused(t, s.Admit("pull an image", 0), "inodes are free")
	refused(t, s.AdmitOwn("write the state"), "inodes are free")
}

// TestRun notices a full disk by itself.
func TestRun(t *testing.T) {
	dir := disktest.Mount(t, disktest.Ext4, 320*mib)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := open(t, dir, &log)
		go func() { _ = s.Run(t.Context()) }()
		disktest.Fill(t, dir, 0)
		time.Sleep(2 * time.Second) // of the bubble
		synctest.Wait()
		if !strings.Contains(log.String(), "the disk is full") {
			t.Errorf("nothing was said: %q", log.String())
		}
	})
}

// TestExtend reserves room for a file, which it has even on a full disk.
func TestExtend(t *testing.T) {
	for _, kind := range []string{disktest.Ext4, disktest.XFS} {
		t.Run(kind, func(t *testing.T) {
			dir := disktest.Mount(t, kind, 320*mib)
			f, err := os.Create(filepath.Join(dir, "file"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := diskspace.Extend(f, 32*mib); err != nil {
				t.Fatal(err)
			}
			if fi, err := f.Stat(); err != nil || fi.Size() != 0 {
				t.Fatalf("the file has %d bytes, %v", fi.Size(), err)
			}
			disktest.Fill(t, dir, 0)
			block := bytes.Repeat([]byte{1}, mib)
			for at := range int64(32) {
				if _, err := f.WriteAt(block, at*mib); err != nil {
					t.Fatalf("write at %d MiB: %v", at, err)
				}
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNil admits everything.
func TestNil(t *testing.T) {
	var s *diskspace.Space
	if err := s.Admit("pull an image", 1<<60); err != nil {
		t.Error(err)
	}
	if err := s.AdmitOwn("write the state"); err != nil {
		t.Error(err)
	}
}

// TestParts shows which directory fills the disk.
func TestParts(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"images": 3 * mib, "volumes": 5 * mib, "logs": 1} {
		path := filepath.Join(dir, name, "below", "file")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	syncDisk(t, dir) // blocks count when they are there
	parts, err := diskspace.Parts(dir)
	if err != nil || len(parts) != 3 {
		t.Fatalf("%+v, %v", parts, err)
	}
	for i, want := range []string{"volumes", "images", "logs"} {
		if parts[i].Name != want || parts[i].Inodes != 3 {
			t.Errorf("part %d is %+v, not %s with 3 inodes", i, parts[i], want)
		}
	}
	if parts[0].Bytes < 5*mib || parts[1].Bytes < 3*mib {
		t.Errorf("the sizes are %+v", parts)
	}
}

// TestHold does not admit two to the same room.
func TestHold(t *testing.T) {
	var log bytes.Buffer
	s := open(t, disktest.Mount(t, disktest.Ext4, 320*mib), &log)
	st := level(t, s, diskspace.LevelOK)
	room := st.Free + st.Ballast - st.Reserve
	release, err := s.Hold("suspend a Machine", room-8*mib)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Hold("suspend a Machine", 16*mib)
	refused(t, err, "cannot suspend a Machine")
	refused(t, s.Admit("pull an image", 16*mib), "16 MiB are requested")
	if err := s.Admit("pull an image", 4*mib); err != nil {
		t.Error(err)
	}
	level(t, s, diskspace.LevelOK) // nothing is written yet
	release()
	release()
	if again, err := s.Hold("suspend a Machine", room-8*mib); err != nil {
		t.Error(err)
	} else {
		again()
	}
}

// TestExplain gives the same reason for a full disk to every program that met it.
func TestExplain(t *testing.T) {
	for _, cause := range []error{unix.ENOSPC, unix.EDQUOT} {
		refused(t, diskspace.Explain(&os.PathError{Op: "write", Path: "/x", Err: cause}), "the disk of the server is full")
	}
	known := hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken, "taken: %w", unix.ENOSPC)
	for _, err := range []error{nil, os.ErrNotExist, known} {
		if got := diskspace.Explain(err); got != err { //nolint:errorlint // the same, not one that wraps it
			t.Errorf("%v became %v", err, got)
		}
	}
}
