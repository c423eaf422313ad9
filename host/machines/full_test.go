package machines_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
)

// fullRig is a rig with a small disk.
type fullRig struct {
	*rig
	dir   string
	fills []string
}

func newFullRig(t *testing.T) *fullRig {
	t.Helper()
	dir := disktest.Mount(t, disktest.Ext4, 1<<30)
	r := &fullRig{rig: newRig(t), dir: dir}
	r.close()
	r.space = diskspace.New(diskspace.Options{Dir: r.dir, Reserve: 64 << 20, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	r.must(r.space.Open())
	r.open()
	return r
}

// fill leaves a number of bytes of the disk free.
func (r *fullRig) fill(leave int64) {
	r.Helper()
	r.fills = append(r.fills, disktest.Fill(r, r.dir, leave))
}

// makeRoom removes what fill wrote.
func (r *fullRig) makeRoom() {
	r.Helper()
	for _, name := range r.fills {
		r.must(os.Remove(name))
	}
	r.fills = nil
	d, err := os.Open(r.dir)
	r.must(err)
	defer d.Close()
	r.must(unix.Syncfs(int(d.Fd())))
}

// TestFullDisk makes every request that needs room. Each is refused with the reason, and works when
// there is room again. Running Machines continue and may be stopped.
func TestFullDisk(t *testing.T) {
	r := newFullRig(t)
	running, stopped, suspended := r.create(nil), r.create(nil), r.create(nil)
	for _, m := range []hangar.MachineRef{running, stopped, suspended} {
		r.wait(m, hangar.MachineStarted)
	}
	r.must(r.StopMachine(t.Context(), stopped, hangar.MachineStop{}))
	r.suspend(suspended)
	r.wait(stopped, hangar.MachineStopped)
	source := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(source.ID, 0, "data")
	taken := r.TakeSnapshot(source)

	verbs := map[string]func() error{
		"create a Machine": func() error {
			_, err := r.CreateMachine(t.Context(), hangar.MachineSpec{
				ID: hangar.NewMachineID(), Name: "new", App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: volumestest.Org, Network: 1, Region: "loc",
				Config: hangar.MachineConfig{Image: "web", Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256}},
			})
			return err
		},
		"start":            func() error { _, err := r.StartMachine(t.Context(), stopped); return err },
		"restart":          func() error { return r.RestartMachine(t.Context(), stopped, hangar.MachineRestart{}) },
		"resume":           func() error { _, err := r.StartMachine(t.Context(), suspended); return err },
		"suspend":          func() error { return r.SuspendMachine(t.Context(), running) },
		"snapshot":         func() error { _, err := r.CreateSnapshot(t.Context(), source); return err },
		"create a volume":  func() error { return r.tryVolume(func(*hangar.VolumeSpec) {}) },
		"fork a volume":    func() error { return r.tryVolume(func(s *hangar.VolumeSpec) { s.Source, s.SizeGB = source.ID, 0 }) },
		"restore a volume": func() error { return r.tryVolume(func(s *hangar.VolumeSpec) { s.Snapshot, s.SizeGB = taken.ID, 0 }) },
	}
	for _, leave := range []int64{32 << 20, 0} { // half of the reserve, and nothing
		r.fill(leave)
		for what, verb := range verbs {
			t.Run(what, func(t *testing.T) {
				r.Declined(verb(), hangar.CodeUnavailable, hangar.ReasonDiskFull, "the disk of the server is full")
			})
		}
	}
	if list, err := r.VolumeRows(t.Context(), ""); err != nil || len(list) != 1 {
		t.Errorf("%d volumes, %v", len(list), err)
	}
	r.must(r.StopMachine(t.Context(), running, hangar.MachineStop{}))
	r.wait(running, hangar.MachineStopped)
	r.makeRoom()
	r.start(running)
	for _, what := range []string{"start", "resume", "suspend", "snapshot", "create a volume", "fork a volume", "restore a volume", "create a Machine"} {
		if err := verbs[what](); err != nil {
			t.Errorf("with room, %s: %v", what, err)
		}
	}
	r.wait(suspended, hangar.MachineStarted)
	r.wait(running, hangar.MachineSuspended)
}

// tryVolume makes a volume, which may fail.
func (r *rig) tryVolume(edit func(*hangar.VolumeSpec)) error {
	spec := hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: "new", App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: volumestest.Org, Region: "loc", SizeGB: 1, FSType: hangar.FSRaw,
	}
	edit(&spec)
	_, err := r.CreateVolume(r.Context(), spec)
	return err
}

// TestSuspendsShareTheRoom suspends two Machines when there is room for one's memory.
func TestSuspendsShareTheRoom(t *testing.T) {
	r := newFullRig(t)
	first, second := r.create(nil), r.create(nil)
	r.wait(first, hangar.MachineStarted)
	r.wait(second, hangar.MachineStarted)
	st, err := r.space.Status()
	r.must(err)
	r.fill(st.Reserve - st.Ballast + 384<<20)
	reached := r.hangAt(fake.OpSuspend)
	r.must(r.SuspendMachine(t.Context(), first))
	<-reached
	r.Declined(r.SuspendMachine(t.Context(), second), hangar.CodeUnavailable, hangar.ReasonDiskFull, "cannot suspend a Machine")
	r.crash()
	r.inject(nil)
	r.space = diskspace.New(diskspace.Options{Dir: r.dir, Reserve: 64 << 20, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	r.must(r.space.Open())
	r.open()
	r.wait(first, hangar.MachineSuspended)
	r.suspend(second) // the fake driver writes next to nothing
}

// TestIdleOnAFullDisk: an idle Machine keeps running if the disk has no room to suspend it, because
// a stop would lose its memory, and it could not be started again. It is suspended when there is
// room.
func TestIdleOnAFullDisk(t *testing.T) {
	r := newFullRig(t)
	ref := r.create(nil, serves("suspend", 50*time.Millisecond), func(s *hangar.MachineSpec) { s.Cordoned = true })
	r.wait(ref, hangar.MachineStarted)
	r.fill(32 << 20)
	r.must(r.UncordonMachine(t.Context(), ref)) // it is idle from now on
	const refusals = `hangar_disk_refusals_total`
	r.Counts.MustRegister(r.space)
	before := r.Counted(refusals, "suspend a Machine")
	r.until(func() bool { return r.Counted(refusals, "suspend a Machine") > before+2 })
	if state, history := r.state(ref), r.history(ref); state != hangar.MachineStarted || strings.Contains(history, "suspend") || strings.Contains(history, "stop") {
		t.Errorf("it is %s: %s", state, history)
	}
	page, err := r.Logs(t.Context(), ref.AppID, hangar.LogQuery{Instance: ref.ID})
	r.must(err)
	told := 0
	for _, e := range page.Entries {
		if strings.Contains(e.Message, "keeps running: cannot suspend a Machine: the disk of the server is full") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the log mentions it %d times: %+v", told, page.Entries)
	}
	r.makeRoom()
	r.wait(ref, hangar.MachineSuspended)
}

// TestScheduleWaitsForTheDisk starts a Machine by its schedule when the disk has room again.
func TestScheduleWaitsForTheDisk(t *testing.T) {
	r := newFullRig(t)
	ref := r.create(job(), scheduled(hangar.Hourly), skipLaunch)
	r.wait(ref, hangar.MachineStopped)
	r.fill(32 << 20)
	r.ahead.Store(int64(61 * time.Minute))
	r.restart() // and so it looks at its schedules
	r.until(func() bool { return r.logged(ref, "waits for room on the server: cannot start a Machine") })
	if h := r.history(ref); strings.Contains(h, "start/") {
		t.Errorf("it was started: %s", h)
	}
	r.makeRoom()
	r.until(func() bool { return strings.Contains(r.history(ref), "start/started") })
	if missed := r.missed(ref); len(missed) > 0 {
		t.Errorf("it missed %v", missed)
	}
}

// TestDailySnapshotWaits takes the daily snapshot when the disk has room again, and reports once
// that it waits.
func TestDailySnapshotWaits(t *testing.T) {
	r := newFullRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "data")
	r.fill(32 << 20)
	r.ahead.Add(int64(25 * time.Hour))
	for range 3 {
		r.volumes().Round(t.Context())
	}
	if list, err := r.Snapshots(t.Context(), ref); err != nil || len(list) != 0 {
		t.Fatalf("snapshots %+v, %v", list, err)
	}
	if got := r.Story(ref); got != "create snapshot!" {
		t.Errorf("events: %s", got)
	}
	r.makeRoom()
	r.volumes().Round(t.Context())
	list, err := r.Snapshots(t.Context(), ref)
	if err != nil || len(list) != 1 || !list[0].Daily {
		t.Fatalf("snapshots %+v, %v", list, err)
	}
	if s := r.Finished(ref, list[0].ID); s.State != hangar.SnapshotCreated {
		t.Errorf("snapshot %+v", s)
	}
}

// TestSnapshotUnderWayOnAFullDisk fills the disk while snapshots are being taken: they stop
// reading, and the volumes continue.
func TestSnapshotUnderWayOnAFullDisk(t *testing.T) {
	r := newFullRig(t)
	g := r.store.Hold("write")
	var refs []hangar.VolumeRef
	var ids []hangar.SnapshotID
	for range 3 { // of which the archive takes two at once
		ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
		r.disk.Write(ref.ID, 0, "data")
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		refs, ids = append(refs, ref), append(ids, s.ID)
	}
	r.until(func() bool { return r.store.Writing() == 2 })
	r.fill(0)
	close(g.Open)
	failed := 0
	for i, ref := range refs {
		if s := r.Finished(ref, ids[i]); s.State == hangar.SnapshotFailed {
			failed++
			if !strings.Contains(s.Fault, "cannot take a snapshot: the disk of the server is full") {
				t.Errorf("snapshot %+v", s)
			}
		}
	}
	if failed != 1 {
		t.Errorf("%d snapshots were not taken", failed)
	}
	r.makeRoom()
	for _, ref := range refs {
		if s := r.TakeSnapshot(ref); s.State != hangar.SnapshotCreated {
			t.Errorf("with room, snapshot %+v", s)
		}
	}
}

// TestRestoreOnAFullDisk fills the disk while volumes are being restored and forked: they wait for
// room, and are then complete.
func TestRestoreOnAFullDisk(t *testing.T) {
	r := newFullRig(t)
	from := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	g := r.store.Hold("read")
	restored := r.Restored(s.ID, volumestest.OnDemand)
	<-g.Reached
	r.fill(0)
	close(g.Open)
	r.until(func() bool { return r.Story(restored) == "create restore!" })
	events, err := r.VolumeEvents(t.Context(), restored)
	r.must(err)
	if !strings.Contains(events[0].Fault, "cannot restore a snapshot: the disk of the server is full") {
		t.Errorf("event %+v", events[0])
	}
	r.makeRoom()
	if v := r.Usable(restored); v.State != hangar.VolumeCreated || r.disk.Read(restored.ID, 0, 4) != "data" {
		t.Errorf("volume %+v", v)
	}
}
