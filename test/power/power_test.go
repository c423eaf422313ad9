// Package power cuts the power of a server under a volume, again and again, without a
// server: every write and flush that reaches the disk under the image is logged, and images
// are made of what a disk may have kept at any moment.
//
// A disk keeps all that was written before a flush which it completed, and any part of later
// writes, in any order, down to sectors. From each such image a volume is opened as after a crash;
// everything that a program had synced by then must be there.
package power

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
)

const (
	volumeMB = 256
	// batches are written under the log; cuts are made of it.
	batches, cuts = 150, 6
)

// asGuard makes this program the one that thaws a file system; see volume.Guard.
const asGuard = "guard"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == asGuard {
		if err := volume.Guard(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestPowerCuts(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: file systems are mounted")
	}
	if testing.Short() {
		t.Skip("it writes much")
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SIM_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rounds := 1
	if text := os.Getenv("POWER_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for round := range uint64(rounds) {
		t.Run("plain", func(t *testing.T) {
			t.Parallel()
			cutPower(t, seed+round, nil)
		})
		t.Run("encrypted", func(t *testing.T) {
			t.Parallel()
			cutPower(t, seed+round, []byte("this key of the test is 32 bytes"))
		})
	}
}

// promise is what was acknowledged when so many entries were in the log.
type promise struct {
	entries int
	acked   []uint64
}

func cutPower(t *testing.T, seed uint64, key []byte) {
	t.Helper()
	t.Logf("SIM_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newServer(t)
	spec := volume.Spec{ID: hangar.NewVolumeID(), Size: volumeMB << 20, Key: key}
	s.format(t, spec)
	before := filepath.Join(t.TempDir(), "before")
	copyFile(t, s.image(spec), before)

	log, promises := s.write(t, spec)
	defer log.Close()
	entries, err := readLog(log)
	if err != nil {
		t.Fatal(err)
	}
	var flushes []int // entries before which all is durable
	for i := range entries {
		if entries[i].durable() && i >= promises[0].entries {
			flushes = append(flushes, i)
		}
	}
	t.Logf("%d writes and flushes, %d flushes after the first promise, %d promises", len(entries), len(flushes), len(promises))
	if len(flushes) < cuts {
		t.Fatalf("of %d flushes too few are left to cut after", len(flushes))
	}
	at := make([]int, cuts)
	for i := range at {
		at[i] = flushes[random.IntN(len(flushes))]
	}
	slices.Sort(at)
	kept, err := os.OpenFile(before, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	done := 0
	for n, flush := range at {
		for ; done < flush; done++ {
			if err := entries[done].replay(log, kept, nil); err != nil {
				t.Fatal(err)
			}
		}
		cut := filepath.Join(t.TempDir(), "cut")
		copyFile(t, before, cut)
		lost := loseSome(t, random, entries[flush:], log, cut)
		if err := os.Rename(cut, s.image(spec)); err != nil {
			t.Fatal(err)
		}
		acked := promisedBy(promises, flush+1)
		t.Logf("cut %d: after flush %d, with %d later writes of which %d are lost; promised: %v", n, flush, lost.later, lost.lost, acked)
		s.verify(t, spec, acked)
	}
}

// promisedBy returns what was acknowledged before the log had so many entries.
func promisedBy(promises []promise, entries int) (acked []uint64) {
	for _, p := range promises {
		if p.entries <= entries {
			acked = p.acked
		}
	}
	return acked
}

type loss struct{ later, lost int }

// loseSome does some of the writes after a flush to an image: a random number of them, of which
// each may be missing, torn or there; except for those that must be there.
func loseSome(t *testing.T, random *rand.Rand, later []entry, log *os.File, file string) (l loss) {
	t.Helper()
	image, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	likely := random.IntN(4) // how many of four are kept
	for i := range later {
		e := &later[i]
		if i > 0 && e.durable() {
			break // that flush had not completed
		}
		l.later++
		switch {
		case e.flags&flagFUA != 0 || random.IntN(4) < likely:
			err = e.replay(log, image, nil)
		case random.IntN(2) == 0:
			l.lost++
			err = e.replay(log, image, random)
		default:
			l.lost++
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// server has the volumes of a host, which has no daemon.
type server struct {
	dir     string
	volumes *volume.Volumes
	binary  string // of blocks
}

func newServer(t *testing.T) *server {
	t.Helper()
	// Short, because sockets live below it.
	runDir, err := os.MkdirTemp("", "hgp") //nolint:usetesting // a TempDir is too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(runDir); err != nil {
			t.Error(err)
		}
	})
	s := &server{dir: t.TempDir(), binary: blockstest.Build(t)}
	s.volumes = volume.New(volume.Options{
		Dir: s.dir, Run: runDir, Instance: filepath.Base(runDir), Backend: volume.BackendDaemon,
		Guard: []string{"/proc/self/exe", asGuard}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err := s.volumes.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) image(spec volume.Spec) string {
	return filepath.Join(s.dir, string(spec.ID), "image")
}

func (s *server) format(t *testing.T, spec volume.Spec) {
	t.Helper()
	if err := s.volumes.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	device := s.attach(t, spec)
	if err := device.Format(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := device.Close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

func (s *server) attach(t *testing.T, spec volume.Spec) *volume.Device {
	t.Helper()
	device, err := s.volumes.Attach(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.volumes.Release(finishtest.Context(t), spec.ID); err != nil {
			t.Error(err)
		}
	})
	return device
}

// write lets blocks write on the volume, and returns the log of what reached the disk and
// what was promised when.
func (s *server) write(t *testing.T, spec volume.Spec) (*os.File, []promise) {
	t.Helper()
	path, end := record(t, s.image(spec))
	device := s.attach(t, spec)
	mounted, err := device.Mount(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, kill := blockstest.Start(t, s.binary, filepath.Join(mounted.Dir, "ledger"))
	log, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var promises []promise
	for range batches {
		now, err := w.Run(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := lengthOf(log)
		if err != nil {
			t.Fatal(err)
		}
		promises = append(promises, promise{entries: entries, acked: now.Batches})
	}
	kill()
	if err := device.Close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	end()
	return log, promises
}

// verify opens the volume as after a crash.
func (s *server) verify(t *testing.T, spec volume.Spec, acked []uint64) {
	t.Helper()
	device := s.attach(t, spec)
	mounted, err := device.Mount(t.Context())
	if err != nil {
		t.Fatalf("mount: %v", err)
	}
	w, kill := blockstest.Start(t, s.binary, filepath.Join(mounted.Dir, "ledger"))
	found, err := w.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lost := found.Lost(acked); lost != "" {
		t.Errorf("lost, after %+v: %s", mounted, lost)
	}
	kill()
	if err := device.Close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
}
