package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// onVolume is where tests mount volumes.
const onVolume = "/data"

// disk is a volume under test.
type disk struct {
	p   *platform
	ref hangar.VolumeRef
}

// volume creates a volume and waits until it is usable.
func (p *platform) volume(t *testing.T, in hangar.VolumeCreate) *disk {
	t.Helper()
	if in.Name == "" {
		in.Name = "data"
	}
	if in.SizeGB == 0 && in.Snapshot == "" && in.Source == "" {
		in.SizeGB = 1
	}
	v, err := p.c.CreateVolume(t.Context(), app, in)
	if err != nil {
		t.Fatalf("create a volume: %v", err)
	}
	d := &disk{p: p, ref: v.Ref()}
	d.until(t, "created", func(v *hangar.Volume) bool {
		if v.State == hangar.VolumeFailed {
			t.Fatalf("the volume failed\n%s", d.history(t))
		}
		return v.State == hangar.VolumeCreated
	})
	return d
}

// now is the volume as the API reports it.
func (d *disk) now(t *testing.T) *hangar.Volume {
	t.Helper()
	v, err := d.p.c.Volume(t.Context(), d.ref)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// until waits until the API reports something of the volume.
func (d *disk) until(t *testing.T, what string, ok func(*hangar.Volume) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(d.now(t)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s after %s: %+v\n%s", what, patience, d.now(t), d.history(t))
		}
	}
}

// history is what happened to the volume, for people.
func (d *disk) history(t *testing.T) string {
	t.Helper()
	events, err := d.p.c.VolumeEvents(t.Context(), d.ref)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "  %s %s %s %s %s\n", time.UnixMilli(e.Timestamp).UTC().Format("15:04:05.000"), e.Type, e.Machine, e.Text, e.Fault)
	}
	return b.String()
}

// snapshot takes a snapshot and waits until it is complete.
func (d *disk) snapshot(t *testing.T) *hangar.Snapshot {
	t.Helper()
	asked, err := d.p.c.CreateSnapshot(t.Context(), d.ref)
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	var found *hangar.Snapshot
	until(t, "snapshot "+string(asked.ID), func() error {
		all, err := d.p.c.Snapshots(t.Context(), d.ref)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.ID == asked.ID {
				found = s
			}
		}
		switch {
		case found == nil:
			return fmt.Errorf("it is not among %d", len(all))
		case found.State == hangar.SnapshotFailed:
			t.Fatalf("the snapshot failed: %s", found.Fault)
		case found.State != hangar.SnapshotCreated:
			return fmt.Errorf("it is %s", found.State)
		}
		return nil
	})
	return found
}

// mount is a config with the volume in it.
func (d *disk) mount(config hangar.MachineConfig) hangar.MachineConfig {
	config.Mounts = []hangar.Mount{{Volume: string(d.ref.ID), Path: onVolume}}
	if config.Restart == nil {
		config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	}
	return config
}

// pushBlocks pushes the image of blocks.
func (p *platform) pushBlocks(t *testing.T) string {
	t.Helper()
	return p.d.Push(blockstest.Build(t), "blocks:1")
}

// runBlocks runs blocks in a Machine with the volume, with its first ledger on that and
// the others in directories of the root file system.
func (d *disk) runBlocks(t *testing.T, image, name string, others ...string) (*machine, *blockstest.Writer) {
	t.Helper()
	m := d.p.run(t, name, d.mount(hangar.MachineConfig{Image: image, Env: blockstest.Env(append([]string{onVolume + "/ledger"}, others...)...)}))
	w, found := m.blocks(t)
	if lost := found.Lost(nil); lost != "" {
		t.Fatal(lost)
	}
	return m, w
}

// blocks waits until the program has read what it found.
func (m *machine) blocks(t *testing.T) (*blockstest.Writer, blockstest.State) {
	t.Helper()
	w := blockstest.New(t, m.addr(blockstest.Port))
	found, err := w.Ready(t.Context())
	if err != nil {
		now, _ := m.p.c.Machine(t.Context(), m.ref)
		t.Fatalf("%v\n%s", err, describe(now))
	}
	return w, found
}

// mustHave starts the Machine if it does not run, and fails if anything is missing of
// what was acknowledged.
func (m *machine) mustHave(t *testing.T, acked []uint64) *blockstest.Writer {
	t.Helper()
	if state := m.wait(t, hangar.WaitSettled); state != hangar.MachineStarted {
		m.start(t)
	}
	w, _ := m.blocks(t)
	found, err := w.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lost := found.Lost(acked); lost != "" {
		t.Fatalf("of %v acknowledged: %s", acked, lost)
	}
	return w
}

// writeOn lets the program write until stop is called or the program ends.
func writeOn(t *testing.T, w *blockstest.Writer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Write(ctx) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		return <-ended
	}
}

// progress waits until so many more batches were acknowledged.
func progress(t *testing.T, w *blockstest.Writer, more uint64) {
	t.Helper()
	var from uint64
	if acked := w.Acked(); len(acked) > 0 {
		from = acked[0]
	}
	until(t, "progress", func() error {
		if acked := w.Acked(); len(acked) == 0 || acked[0] < from+more {
			return fmt.Errorf("at %v, from %d", acked, from)
		}
		return nil
	})
}

// killSandbox ends the Machine as a crash of its kernel would.
func (m *machine) killSandbox(t *testing.T) {
	t.Helper()
	pids, err := daemon.SandboxPIDs(m.p.d.Dir())
	if err != nil || pids[m.ref.ID] == 0 {
		t.Fatalf("the Machine has no sandbox: %v, %v", pids, err)
	}
	if err := syscall.Kill(pids[m.ref.ID], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// storage returns the process that has the image of the volume open; 0: none.
func (d *disk) storage(t *testing.T) int {
	t.Helper()
	pids, err := daemon.StorageDaemons(d.p.d.Dir())
	if err != nil {
		t.Fatal(err)
	}
	switch open := pids[d.ref.ID]; len(open) {
	case 0:
		return 0
	case 1:
		return open[0]
	default:
		t.Fatalf("the image is open %d times", len(open))
		return 0
	}
}

func (d *disk) image() string { return daemon.Image(d.p.d.Dir(), d.ref.ID) }

// TestVolumeLife takes volumes through everything that users do to them, while a program
// keeps account of every byte.
func TestVolumeLife(t *testing.T) {
	p := start(t)
	image := p.pushBlocks(t)
	d := p.volume(t, hangar.VolumeCreate{})
	if v := d.now(t); v.Usage.Blocks != 0 || v.Usage.FSType != "" {
		t.Errorf("a volume that was never used has %+v", v.Usage)
	}
	m, w := d.runBlocks(t, image, "first")
	run := func(n int) {
		t.Helper()
		if _, err := w.Run(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	run(20)
	d.until(t, "attached and formatted", func(v *hangar.Volume) bool {
		return v.AttachedMachine == m.ref.ID && v.Usage.FSType == hangar.FSExt4 && v.Usage.Total() > 900<<20
	})
	t.Run("one Machine", func(t *testing.T) {
		_, err := p.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: d.mount(hangar.MachineConfig{Image: image})})
		if hangar.CodeOf(err) != hangar.CodeFailedPrecondition || hangar.ReasonOf(err) != hangar.ReasonVolumeAttached {
			t.Errorf("a second Machine got the volume: %v", err)
		}
		if _, err := p.c.DestroyVolume(t.Context(), d.ref); hangar.ReasonOf(err) != hangar.ReasonVolumeAttached {
			t.Errorf("destroyed while it is attached: %v", err)
		}
	})
	t.Run("at rest", func(t *testing.T) {
		m.suspend(t)
		d.mustBeClosed(t)
		m.resume(t)
		run(5)
		m.stop(t)
		d.mustBeClosed(t)
		w = m.mustHave(t, w.Acked())
		run(5)
	})
	t.Run("extend", func(t *testing.T) {
		e, err := p.c.ExtendVolume(t.Context(), d.ref, 2)
		if err != nil {
			t.Fatal(err)
		}
		run(5)
		if _, err := p.c.ExtendVolume(t.Context(), d.ref, 1); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("made smaller: %v", err)
		}
		d.until(t, "extended", func(v *hangar.Volume) bool { return v.State == hangar.VolumeCreated && v.SizeGB == 2 })
		t.Logf("needs a restart: %t", e.NeedsRestart)
		m.stop(t)
		w = m.mustHave(t, w.Acked())
		d.until(t, "grown", func(v *hangar.Volume) bool { return v.Usage.Total() > 1900<<20 && !v.NeedsRestart })
		run(5)
		m.stop(t)
		if e, err := p.c.ExtendVolume(t.Context(), d.ref, 3); err != nil || e.NeedsRestart && e.Volume.AttachedMachine == "" {
			t.Errorf("extended at rest: %+v, %v", e, err)
		}
		w = m.mustHave(t, w.Acked())
		d.until(t, "grown at rest", func(v *hangar.Volume) bool { return v.Usage.Total() > 2900<<20 && !v.NeedsRestart })
	})
	t.Run("fork", func(t *testing.T) {
		stop := writeOn(t, w)
		progress(t, w, 5)
		acked := w.Acked()
		fork := p.volume(t, hangar.VolumeCreate{Source: d.ref.ID})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if v := fork.now(t); v.SizeGB != 3 || v.AttachedMachine != "" {
			t.Errorf("the fork is %+v", v)
		}
		n, other := fork.runBlocks(t, image, "fork")
		found, err := other.State(t.Context())
		if lost := found.Lost(acked); err != nil || lost != "" {
			t.Errorf("the fork lost: %v %s", err, lost)
		}
		if _, err := other.Run(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		// One Machine releases its volume while another one runs that was started with it there.
		m.stop(t)
		d.mustBeClosed(t)
		w = m.mustHave(t, w.Acked())
		n.destroy(t)
		m.mustHave(t, w.Acked())
	})
	t.Run("destroy and undelete", func(t *testing.T) {
		m.destroy(t)
		d.until(t, "detached", func(v *hangar.Volume) bool { return v.AttachedMachine == "" })
		d.mustBeClosed(t)
		v, err := p.c.DestroyVolume(t.Context(), d.ref)
		if err != nil || v.State.Usable() {
			t.Fatalf("destroyed: %+v, %v", v, err)
		}
		if _, err := p.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: d.mount(hangar.MachineConfig{Image: image})}); err == nil {
			t.Error("a Machine got a volume that was destroyed")
		}
		if _, err := p.c.UndeleteVolume(t.Context(), d.ref); err != nil {
			t.Fatal(err)
		}
		m, _ = d.runBlocks(t, image, "again")
		m.mustHave(t, w.Acked())
	})
}

// mustBeClosed fails unless nothing of the volume is open on this host any more.
func (d *disk) mustBeClosed(t *testing.T) {
	t.Helper()
	until(t, "closed", func() error {
		if pid := d.storage(t); pid != 0 {
			return fmt.Errorf("process %d has the image open", pid)
		}
		for thing := range inventory(t) {
			if !strings.HasPrefix(thing, "process ") && strings.Contains(thing, string(d.ref.ID)) {
				return fmt.Errorf("there is still %s", thing)
			}
		}
		return nil
	})
}

// TestAutoExtend fills a volume over its threshold, which must grow within half a minute
// and never beyond its limit.
func TestAutoExtend(t *testing.T) {
	p := start(t)
	image := p.pushBlocks(t)
	d := p.volume(t, hangar.VolumeCreate{})
	config := d.mount(hangar.MachineConfig{Image: image, Env: blockstest.Env(onVolume + "/ledger")})
	config.Mounts[0].ExtendThresholdPercent, config.Mounts[0].AddSizeGB, config.Mounts[0].SizeGBLimit = 60, 1, 2
	m := p.run(t, "grows", config)
	w, _ := m.blocks(t)
	if _, err := w.Run(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if v := d.now(t); v.SizeGB != 1 {
		t.Fatalf("it grew to %d GB without need", v.SizeGB)
	}
	fill := func(mb int) {
		t.Helper()
		if err := w.Fill(t.Context(), mb); err != nil {
			t.Fatal(err)
		}
	}
	fill(700)
	crossed := time.Now()
	d.until(t, "extended", func(v *hangar.Volume) bool { return v.SizeGB == 2 })
	took := time.Since(crossed)
	t.Logf("extended after %s", took)
	if took > 30*time.Second {
		t.Errorf("that took %s", took)
	}
	m.stop(t)
	w = m.mustHave(t, w.Acked())
	d.until(t, "grown", func(v *hangar.Volume) bool { return v.Usage.Total() > 1900<<20 })
	fill(700)
	for deadline := time.Now().Add(time.Duration(times(35, 5)) * time.Second); time.Now().Before(deadline); time.Sleep(time.Second) {
		if v := d.now(t); v.SizeGB != 2 {
			t.Fatalf("it grew beyond its limit, to %d GB", v.SizeGB)
		}
	}
	m.mustHave(t, w.Acked())
}

// TestStorageDaemonKilled: a volume that goes away under a Machine is noticed, and comes
// back with everything that was acknowledged.
func TestStorageDaemonKilled(t *testing.T) {
	p := start(t)
	image := p.pushBlocks(t)
	d := p.volume(t, hangar.VolumeCreate{})
	m, w := d.runBlocks(t, image, "bereft")
	if d.storage(t) == 0 {
		t.Skip("no process stands between the volume and its image")
	}
	for kills := range times(5, 2) {
		_ = writeOn(t, w)
		progress(t, w, 10)
		if err := syscall.Kill(d.storage(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "event of the loss", func() error {
			events, err := p.c.VolumeEvents(t.Context(), d.ref)
			lost := 0
			for _, e := range events {
				if e.Type == hangar.VolumeEventLost {
					lost++
				}
			}
			if err == nil && lost != kills+1 {
				err = fmt.Errorf("it was lost %d times", lost)
			}
			return err
		})
		m.wait(t, hangar.MachineStopped)
		d.mustBeClosed(t)
		w = m.mustHave(t, w.Acked())
	}
}

// TestPowerCut copies the image at one moment while the program writes, as a loss of power
// would leave it, and opens the copy.
func TestPowerCut(t *testing.T) {
	p := start(t)
	image := p.pushBlocks(t)
	d := p.volume(t, hangar.VolumeCreate{})
	m, w := d.runBlocks(t, image, "cut")
	for range times(10, 2) {
		stop := writeOn(t, w)
		progress(t, w, 10)
		storage := d.storage(t)
		if storage == 0 {
			t.Skip("no process stands between the volume and its image")
		}
		acked := w.Acked()
		if err := syscall.Kill(storage, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		local(t, "cp", "--sparse=always", d.image(), d.image()+".cut")
		if err := syscall.Kill(storage, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		m.stop(t)
		d.mustBeClosed(t)
		if err := os.Rename(d.image()+".cut", d.image()); err != nil {
			t.Fatal(err)
		}
		w = m.mustHave(t, acked)
	}
	t.Log("\n" + d.history(t))
}
