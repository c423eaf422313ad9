package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// smallDisk has the data directory of a platform on a file system of its own.
func smallDisk(t *testing.T, kind string, size int64) (dir string) {
	t.Helper()
	_ = t.TempDir() // on the disk of the server, with what tests keep there
	dir = disktest.Mount(t, kind, size)
	t.Setenv("TMPDIR", dir)
	return dir
}

// fillAll fills a disk to the last byte, with the room of the platform's ballast, and returns
// what makes room again.
func fillAll(t *testing.T, p *platform, dir string) (makeRoom func()) {
	t.Helper()
	var fills []string
	until(t, "a full disk without a ballast", func() error {
		fills = append(fills, disktest.Fill(t, dir, 0))
		if _, err := os.Stat(filepath.Join(p.d.Dir(), "ballast")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the ballast is there: %w", err)
		}
		return nil
	})
	fills = append(fills, disktest.Fill(t, dir, 0))
	return func() {
		t.Helper()
		for _, name := range fills {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "room", func() error {
			_, err := os.Stat(filepath.Join(p.d.Dir(), "ballast"))
			return err
		})
	}
}

// TestFailedWritesAreErrors fills the disk below volumes that are promised more room than it has,
// and below the writable layers. In every way in which a program may have a write made durable it
// gets an error; and earlier acknowledged writes are there when there is room again.
func TestFailedWritesAreErrors(t *testing.T) {
	dir := smallDisk(t, disktest.Ext4, 2<<30)
	p := startWith(t, "--acme", "off", "--volume-overcommit", "20")
	image := p.pushBlocks(t)
	ways := []string{"fsync", "O_SYNC", "msync", "fdatasync", "O_DSYNC", "syncfs"}
	if short() {
		ways = ways[:3]
	}
	const onLayer = "/kept"
	var machines []*machine
	var writers []*blockstest.Writer
	for i := range ways {
		d := p.volume(t, hangar.VolumeCreate{Name: fmt.Sprint("data", i)})
		config := d.mount(hangar.MachineConfig{
			Image: image, Env: blockstest.Env(onVolume+"/ledger", onLayer+"/ledger"),
			Guest: &hangar.Guest{CPUs: 1, MemoryMB: 256}, Rootfs: &hangar.RootfsConfig{Persist: hangar.PersistAlways},
		})
		m := p.run(t, "", config)
		w, _ := m.blocks(t)
		if _, err := w.Run(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{onVolume, onLayer} { // with room
			m.exec(t, "/blocks", "durable", ways[i], path+"/before", "4")
		}
		machines, writers = append(machines, m), append(writers, w)
	}
	makeRoom := fillAll(t, p, dir)
	for i, way := range ways {
		for name, path := range map[string]string{"volume": onVolume, "layer": onLayer} {
			t.Run(way+" on a "+name, func(t *testing.T) {
				out, code, err := machines[i].tryExec(t.Context(), "/blocks", "durable", way, path+"/file", "24")
				if err != nil || code == 0 {
					t.Errorf("24 MiB are durable on a full disk: code %d, %v", code, err)
				}
				t.Logf("%s", strings.TrimSpace(out))
			})
		}
	}
	for i, m := range machines {
		if err := m.stopFull(t); err != nil {
			t.Errorf("stop on the full disk: %v", err)
		}
		_, err := p.c.StartMachine(t.Context(), m.ref)
		if hangar.ReasonOf(err) != hangar.ReasonDiskFull {
			t.Errorf("start %d on the full disk: %v", i, err)
		}
	}
	p.d.Kill()
	p.d.Up()
	makeRoom()
	for i, m := range machines {
		m.mustHave(t, writers[i].Acked())
	}
}

// stopFull stops a Machine that may have ended by itself.
func (m *machine) stopFull(t *testing.T) error {
	t.Helper()
	err := m.p.c.StopMachine(t.Context(), m.ref, hangar.MachineStop{Timeout: 30 * time.Second})
	if err == nil || hangar.ReasonOf(err) == hangar.ReasonWrongState {
		m.wait(t, hangar.MachineStopped)
		return nil
	}
	return err
}

// TestTenantFillsTheServer fills what a tenant can reach (its layer, its volume, images,
// uploads) in any order, with kills of the daemon in between, while a Machine of another one
// writes to its volume without a break: none of its writes fails, and none is lost; the daemon
// never ends by itself, says what is full, and does everything again once there is room.
func TestTenantFillsTheServer(t *testing.T) {
	kinds := []string{disktest.Ext4, disktest.XFS}
	if short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { tenantFillsTheServer(t, kind) })
	}
}

func tenantFillsTheServer(t *testing.T, kind string) {
	smallDisk(t, kind, 3<<30)
	p := startWith(t, "--acme", "off")
	guest := &hangar.Guest{CPUs: 1, MemoryMB: 256}
	victim := p.run(t, "victim", p.volume(t, hangar.VolumeCreate{Name: "victim"}).mount(hangar.MachineConfig{
		Image: p.pushBlocks(t), Env: blockstest.Env(onVolume + "/ledger"), Guest: guest,
	}))
	w, _ := victim.blocks(t)
	tools := p.d.Push(daemon.Busybox(t, "sh", "sleep", "dd", "rm", "sync"), "tools:1", "--cmd", "sleep", "--cmd", "100000")
	attacker := p.run(t, "attacker", p.volume(t, hangar.VolumeCreate{Name: "attacker"}).mount(hangar.MachineConfig{Image: tools, Guest: guest}))
	stop := writeOn(t, w)
	progress(t, w, 5)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	fill := func(path string) func() {
		return func() {
			out, code, err := attacker.tryExec(t.Context(), "dd", "if=/dev/zero", "of="+path, "bs=1M", "conv=fsync")
			if err == nil && code == 0 {
				t.Errorf("dd filled %s and met no end: %s", path, out)
			}
		}
	}
	acts := map[string]func(){
		"layer":  fill("/fill"),
		"volume": fill(onVolume + "/fill"),
		"images": func() {
			for i := range 100 {
				if _, err := p.d.Try("image", "push", randomFile(t, random, 32<<20), fmt.Sprintf("big%d:1", i), "--cmd", "fill"); err != nil {
					return // what has been kept by then shows in the end
				}
			}
			t.Error("pushes had no end")
		},
		"uploads": func() {
			for range 100 {
				if status := p.upload(t, 32<<20); status != http.StatusAccepted {
					return
				}
			}
			t.Error("uploads had no end")
		},
	}
	order := []string{"layer", "volume", "images", "uploads"}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, act := range order {
		t.Logf("fill %s", act)
		acts[act]()
		progress(t, w, 3)
		p.d.Kill()
		progress(t, w, 3) // while there is no daemon
		p.d.Up()
		progress(t, w, 3)
		if state := victim.wait(t, hangar.WaitSettled); state != hangar.MachineStarted {
			t.Fatalf("after %s the other Machine is %s", act, state)
		}
	}
	_, err := p.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: tools}})
	if hangar.ReasonOf(err) != hangar.ReasonDiskFull {
		t.Errorf("a Machine on a full disk: %v", err)
	}
	if out, err := p.d.Try("doctor"); !strings.Contains(out, "layers") {
		t.Errorf("doctor does not say what is full: %v\n%s", err, out)
	}
	if err := stop(); err != nil {
		t.Fatalf("a write of the other Machine: %v", err)
	}
	t.Logf("%v batches were acknowledged", w.Acked())
	attacker.destroy(t)
	victim.killSandbox(t)
	victim.wait(t, hangar.MachineStopped)
	until(t, "a start where there is room again", func() error {
		_, err := p.c.StartMachine(t.Context(), victim.ref)
		return err
	})
	victim.wait(t, hangar.MachineStarted)
	victim.mustHave(t, w.Acked())
}

// randomFile returns a file that cannot be compressed.
func randomFile(t *testing.T, random *rand.Rand, size int) string {
	t.Helper()
	b := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
	_, _ = source.Read(b)
	path := filepath.Join(t.TempDir(), "fill")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// upload sends part of a blob to the registry that is never finished, and returns the status.
func (p *platform) upload(t *testing.T, size int) int {
	t.Helper()
	send := func(method, url string, body []byte) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("anybody", p.d.Token())
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res
	}
	begun := send(http.MethodPost, p.d.URL()+"/v2/personal/upload/blobs/uploads/", nil)
	if begun.StatusCode != http.StatusAccepted {
		return begun.StatusCode
	}
	at := begun.Header.Get("Location")
	if strings.HasPrefix(at, "/") {
		at = p.d.URL() + at
	}
	return send(http.MethodPatch, at, make([]byte, size)).StatusCode
}
