package full

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	app     = hangar.AppName("victim")
	attacks = hangar.AppName("tenant")
	size    = 1536 << 20 // bytes of the disk
)

// world is a daemon on a small disk, with a Machine of another tenant that is not to be disturbed,
// and the writes that were acknowledged to it.
type world struct {
	*testing.T
	d     *daemon.Daemon
	c     *client.Client
	rng   *rand.Rand
	image string
	ref   hangar.MachineRef
	acked map[string]string // metadata of the Machine
	fills []string          // files of programs that run
	n     int
	took  map[string]int
}

// TestTenantFillsTheDisk fills the disk with what a running program may write, with images,
// volumes and Machines, in any order, kills the daemon meanwhile and makes room again. The daemon
// never ends by itself and starts on the full disk; acknowledged data is there, and a refusal
// says why.
func TestTenantFillsTheDisk(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) >> 1
	if text := os.Getenv("FULL_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	limit := 8 * time.Second // FULL_TIME=10m is a long run
	if testing.Short() {
		limit = 3 * time.Second
	}
	if text := os.Getenv("FULL_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		limit = d
	}
	for _, kind := range []string{disktest.Ext4, disktest.XFS} { // what data directories may be on
		t.Run(kind, func(t *testing.T) {
			t.Logf("FULL_SEED=%d", seed)
			_ = t.TempDir() // on the disk of the server, with what tests keep there
			disk := disktest.Mount(t, kind, size)
			t.Setenv("TMPDIR", disk)
			w := begin(t, seed)
			w.nothing("before anything is full")
			for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
				w.act()
				w.check()
			}
			w.end()
			t.Logf("done: %v", w.took)
		})
	}
}

// TestStartOnAFullDisk fills the disk to the last byte, while the daemon has its ballast and
// again after that is gone, and kills the daemon: it starts.
func TestStartOnAFullDisk(t *testing.T) {
	for _, kind := range []string{disktest.Ext4, disktest.XFS} { // not on btrfs: see ADR 31
		t.Run(kind, func(t *testing.T) {
			_ = t.TempDir()
			disk := disktest.Mount(t, kind, size)
			t.Setenv("TMPDIR", disk)
			w := begin(t, 1)
			w.check()
			spare := filepath.Join(w.d.Dir(), "ballast-start")
			for deadline := time.Now().Add(time.Minute); ; {
				if _, err := os.Stat(spare); err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("there is no room for a start")
				}
			}
			for range 2 {
				if f, err := os.CreateTemp(disk, "fill"); err == nil { // else there is no room for it
					err = errors.Join(disktest.FillFile(f, 0), f.Close())
					if err != nil {
						t.Fatal(err)
					}
				}
				w.check() // and so the ballast goes
			}
			w.d.Kill()
			w.d.Up()
			w.nothing("after a start on the full disk")
		})
	}
}

func begin(t *testing.T, seed uint64) *world {
	t.Helper()
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--acme", "off"}})
	w := &world{
		T: t, d: d, c: d.Client(), rng: rand.New(rand.NewPCG(seed, 1)), acked: map[string]string{}, took: map[string]int{},
	}
	for _, name := range []hangar.AppName{app, attacks} {
		if _, err := w.c.CreateApp(t.Context(), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal}); err != nil {
			t.Fatal(err)
		}
	}
	w.image = d.Push(w.blob(1), "sleep:1", "--cmd", "guest", "--cmd", "sleep")
	m, err := w.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: w.image}})
	if err != nil {
		t.Fatal(err)
	}
	w.ref = m.Ref()
	wait := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}, Timeout: time.Minute}
	if _, err := w.c.WaitMachine(t.Context(), w.ref, wait); err != nil {
		t.Fatal(err)
	}
	return w
}

// blob returns a directory with a file that cannot be compressed.
func (w *world) blob(mib int) string {
	w.Helper()
	dir := filepath.Join(w.TempDir(), "blob")
	b := make([]byte, mib<<20)
	for i := 0; i+8 <= len(b); i += 8 {
		v := w.rng.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sleep"), b, 0o755); err != nil {
		w.Fatal(err)
	}
	return dir
}

// act does one thing that takes or gives room.
func (w *world) act() {
	w.Helper()
	actions := []struct {
		name string
		do   func() error
	}{
		{"fill", w.fill},
		{"fill", w.fill},
		{"push", func() error {
			_, err := w.d.Try("image", "push", w.blob(16), fmt.Sprintf("big:%d", w.n), "--cmd", "guest", "--cmd", "sleep")
			return err
		}},
		{"volume", func() error {
			_, err := w.c.CreateVolume(w.Context(), attacks, hangar.VolumeCreate{Name: "big", SizeGB: 1})
			return err
		}},
		{"machine", func() error {
			_, err := w.c.CreateMachine(w.Context(), attacks, hangar.MachineCreate{Config: hangar.MachineConfig{Image: w.image}})
			return err
		}},
		{"kill", func() error { w.d.Kill(); w.d.Up(); return nil }},
		{"room", w.makeRoom},
	}
	a := actions[w.rng.IntN(len(actions))]
	w.n++
	w.took[a.name]++
	if err := a.do(); err != nil {
		w.took[a.name+" refused"]++
		w.mustSayWhy(a.name, err)
	}
}

// fill writes as a running program does, without asking.
func (w *world) fill() error {
	f, err := os.CreateTemp(w.d.Dir(), "fill")
	if err != nil {
		return nil // there is no room for it
	}
	defer f.Close()
	w.fills = append(w.fills, f.Name())
	return disktest.FillFile(f, []int64{0, 0, 32 << 20, 128 << 20}[w.rng.IntN(4)])
}

func (w *world) makeRoom() error {
	for _, name := range w.fills {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	w.fills = nil
	return nil
}

// mustSayWhy fails unless a refusal names the disk.
func (w *world) mustSayWhy(what string, err error) {
	w.Helper()
	if reason := hangar.ReasonOf(err); reason == hangar.ReasonDiskFull || reason == hangar.ReasonVolumeCapacity || reason == hangar.ReasonInsufficientCapacity {
		return
	}
	if text := err.Error(); strings.Contains(text, "disk of the server is full") || strings.Contains(text, "no space left") {
		return
	}
	w.Fatalf("%s was refused without the reason: %v\n%s", what, err, w.d.Output())
}

// check looks with the eyes of the other tenant.
func (w *world) check() {
	w.Helper()
	key, value := fmt.Sprintf("k%d", w.n%16), strconv.Itoa(w.n)
	err := w.c.SetMachineMetadata(w.Context(), w.ref, hangar.MetadataPair{Key: key, Value: value})
	if err == nil {
		w.acked[key] = value
	} else {
		w.took["write refused"]++
		w.mustSayWhy("a write", err)
	}
	w.nothing("after step " + strconv.Itoa(w.n))
}

// nothing fails if the other tenant noticed anything.
func (w *world) nothing(when string) {
	w.Helper()
	res, err := http.Get(w.d.URL() + "/healthz")
	if err != nil {
		w.Fatalf("%s: the daemon does not answer: %v\n%s", when, err, w.d.Output())
	}
	_ = res.Body.Close()
	m, err := w.c.Machine(w.Context(), w.ref)
	if err != nil || m.State != hangar.MachineStarted {
		w.Fatalf("%s: the Machine is %+v, %v\n%s", when, m, err, w.d.Output())
	}
	have, err := w.c.MachineMetadata(w.Context(), w.ref)
	if err != nil {
		w.Fatalf("%s: %v", when, err)
	}
	for key, value := range w.acked {
		if have[key] != value {
			w.Fatalf("%s: %s is %q, and %q was acknowledged", when, key, have[key], value)
		}
	}
	if _, err := w.c.Apps(w.Context(), hangar.AppFilter{Org: hangar.OrgPersonal}); err != nil {
		w.Fatalf("%s: %v", when, err)
	}
}

// end makes room, after which everything is possible again.
func (w *world) end() {
	w.Helper()
	if err := w.fill(); err != nil {
		w.Fatal(err)
	}
	w.d.Kill()
	w.d.Up()
	w.nothing("after a start on the full disk")
	if err := w.makeRoom(); err != nil {
		w.Fatal(err)
	}
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if _, err = w.c.CreateApp(w.Context(), hangar.AppCreate{Name: hangar.AppName(fmt.Sprintf("again-%d", w.n)), Org: hangar.OrgPersonal}); err == nil {
			return
		}
		w.n++
	}
	w.Fatalf("there is room, and still: %v", err)
}
