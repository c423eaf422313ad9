package volumes_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// TestSnapshotsAgainstModel asks random things of volumes that are written to, while the agent is
// killed between any two things that it does to the disk and the archive, and days pass. Every
// listed snapshot can be restored to the right content; nothing else is kept in the archive;
// nothing is left open or on the disk.
func TestSnapshotsAgainstModel(t *testing.T) {
	// A life takes half a second; more are played with -rapid.checks.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("20"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	}
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		l := &librarian{rig: r, volumes: map[hangar.VolumeRef]string{}, snapshots: map[hangar.SnapshotID]string{}}
		rt.Repeat(map[string]func(*rapid.T){
			"make":     l.make,
			"write":    l.write,
			"snapshot": l.snapshot,
			"restore":  l.restore,
			"fork":     l.fork,
			"drill":    l.drill,
			"destroy":  l.destroy,
			"day":      l.day,
			"":         l.check,
		})
		l.clear()
	})
}

// librarian is the model: the content of volumes and snapshots.
type librarian struct {
	*rig
	volumes   map[hangar.VolumeRef]string
	snapshots map[hangar.SnapshotID]string // asked for, taken or not
	writes    int
}

// maybeKilled does something, during which or after which the agent may be killed, and
// waits until nothing is under way any more.
func (l *librarian) maybeKilled(rt *rapid.T, do func()) {
	after := rapid.IntRange(0, 16).Draw(rt, "kill after operations")
	if after == 0 || after > 12 {
		do()
		l.settle()
		return
	}
	reached, dead := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	step := func() {
		mu.Lock()
		after--
		hit, late := after == 0, after <= 0
		mu.Unlock()
		if hit {
			close(reached)
		}
		if late {
			<-dead
		}
	}
	l.disk.Inject(func(string, hangar.VolumeID) error { step(); return nil })
	l.store.Intercept(func(context.Context, string, hangar.SnapshotID) error {
		step()
		if l.session.Dead() {
			return volumestest.ErrDead
		}
		return nil
	})
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-reached:
	case <-time.After(50 * time.Millisecond): // its work is over, or continues alone
	}
	crashed := make(chan struct{})
	go func() { defer close(crashed); l.crash() }()
	for !l.session.Dead() {
		<-time.After(time.Millisecond)
	}
	close(dead)
	<-crashed
	<-done
	l.disk.Inject(nil)
	l.store.Intercept(nil)
	l.open()
	l.settle()
}

// settle waits until nothing is under way.
func (l *librarian) settle() {
	l.Helper()
	l.until(func() bool {
		rows, err := l.VolumeRows(context.Background(), "")
		l.must(err)
		for _, row := range rows {
			if row.Volume.State == hangar.VolumeCreating || row.Volume.State == hangar.VolumeRestoring {
				return false
			}
			for _, s := range row.Snapshots {
				if s.State == hangar.SnapshotWaiting || s.State == hangar.SnapshotRunning {
					return false
				}
			}
		}
		drill, err := l.VolumeDrill(context.Background(), "web")
		return err != nil || !drill.FinishedAt.IsZero()
	})
}

func (l *librarian) pick(rt *rapid.T) hangar.VolumeRef {
	refs := slices.SortedFunc(maps.Keys(l.volumes), func(a, b hangar.VolumeRef) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) })
	if len(refs) == 0 {
		rt.Skip("there is no volume")
	}
	return refs[rapid.IntRange(0, len(refs)-1).Draw(rt, "volume")]
}

// add makes a volume that has some content once it is usable, unless the agent died too soon.
func (l *librarian) add(rt *rapid.T, content string, edit func(*hangar.VolumeSpec)) {
	if len(l.volumes) > 4 {
		rt.Skip("there are enough volumes")
	}
	spec := hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: "data", App: "web", AppID: "web", Org: "personal", OrgID: volumestest.Org, Region: "loc", FSType: hangar.FSRaw,
		SnapshotRetention: rapid.IntRange(1, 3).Draw(rt, "retention"), AutoBackup: rapid.Bool().Draw(rt, "daily"),
		Encrypted: rapid.Bool().Draw(rt, "encrypted"),
	}
	edit(&spec)
	ref := hangar.VolumeRef{App: "web", AppID: "web", ID: spec.ID}
	l.maybeKilled(rt, func() { _, _ = l.CreateVolume(context.Background(), spec) })
	row, err := l.VolumeRow(context.Background(), ref)
	if err != nil {
		return // the agent died before it had recorded anything
	}
	if row.Volume.State != hangar.VolumeCreated {
		rt.Fatalf("volume %+v", row.Volume)
	}
	l.volumes[ref] = content
}

func (l *librarian) make(rt *rapid.T) { l.add(rt, "", func(s *hangar.VolumeSpec) { s.SizeGB = 1 }) }

func (l *librarian) write(rt *rapid.T) {
	ref := l.pick(rt)
	l.writes++
	l.volumes[ref] = fmt.Sprintf("%8d", l.writes)
	l.disk.Write(ref.ID, 5<<20, l.volumes[ref])
}

func (l *librarian) snapshot(rt *rapid.T) {
	ref := l.pick(rt)
	l.maybeKilled(rt, func() { _, _ = l.CreateSnapshot(context.Background(), ref) })
}

// learn records the content of new snapshots: that of their volumes, which are not written to
// while one is taken.
func (l *librarian) learn(rt *rapid.T) map[hangar.SnapshotID]hangar.Snapshot {
	listed := map[hangar.SnapshotID]hangar.Snapshot{}
	rows, err := l.VolumeRows(context.Background(), "")
	l.must(err)
	for _, row := range rows {
		for _, s := range row.Snapshots {
			if s.State != hangar.SnapshotCreated {
				continue
			}
			listed[s.ID] = s
			if _, known := l.snapshots[s.ID]; !known {
				content, ok := l.volumes[row.Volume.Ref()]
				if !ok {
					rt.Fatalf("a snapshot %+v of a volume that is gone", s)
				}
				l.snapshots[s.ID] = content
			}
		}
	}
	return listed
}

func (l *librarian) restore(rt *rapid.T) {
	ids := slices.Sorted(maps.Keys(l.learn(rt)))
	if len(ids) == 0 {
		rt.Skip("there is no snapshot")
	}
	id := ids[rapid.IntRange(0, len(ids)-1).Draw(rt, "snapshot")]
	l.add(rt, l.snapshots[id], func(s *hangar.VolumeSpec) { s.Snapshot = id })
}

func (l *librarian) fork(rt *rapid.T) {
	from := l.pick(rt)
	l.add(rt, l.volumes[from], func(s *hangar.VolumeSpec) { s.Source = from.ID })
}

func (l *librarian) drill(rt *rapid.T) {
	before, _ := l.VolumeDrill(context.Background(), "web")
	l.maybeKilled(rt, func() { _, _ = l.DrillVolumes(context.Background(), "web") })
	after, err := l.VolumeDrill(context.Background(), "web")
	if err == nil && (before == nil || *after != *before) && !after.Passed {
		rt.Fatalf("drill %+v", after)
	}
}

func (l *librarian) destroy(rt *rapid.T) {
	ref := l.pick(rt)
	_, err := l.DestroyVolume(context.Background(), ref)
	l.must(err)
	l.learn(rt)
	delete(l.volumes, ref)
}

func (l *librarian) day(rt *rapid.T) {
	l.ahead.Add(int64(25 * time.Hour))
	l.maybeKilled(rt, func() {
		l.Round(context.Background())
		l.Purge(context.Background())
	})
}

// check compares the disk and the archive with what is listed.
func (l *librarian) check(rt *rapid.T) {
	l.learn(rt)
	for ref, content := range l.volumes {
		if got := l.disk.Read(ref.ID, 5<<20, 8); got != content {
			rt.Fatalf("volume %s has %q, want %q", ref.ID, got, content)
		}
	}
	// What is removed in the background has been, after another round.
	var listed map[hangar.SnapshotID]hangar.Snapshot
	l.until(func() bool {
		l.Round(context.Background())
		l.settle()
		listed = l.learn(rt)
		return len(l.store.IDs()) == len(listed)
	})
	for _, id := range l.store.IDs() {
		got := make([]byte, 8)
		digest, err := l.store.Content(id, got, 5<<20)
		if err != nil || listed[id].Digest != digest {
			rt.Fatalf("snapshot %+v has the digest %s in the archive, %v", listed[id], digest, err)
		}
		if want := l.snapshots[id]; string(got) != want && (want != "" || got[0] != 0) {
			rt.Fatalf("snapshot %s has %q, want %q", id, got, want)
		}
	}
	// Views are closed a moment after their purpose has been recorded.
	l.until(func() bool {
		rows, err := l.VolumeRows(context.Background(), "")
		l.must(err)
		images := 0
		for _, row := range rows {
			if row.Volume.State != hangar.VolumeDestroyed {
				images++
			}
		}
		return l.disk.Unused(images)
	})
}

// clear destroys all volumes, for the next round.
func (l *librarian) clear() {
	for ref := range l.volumes {
		_, err := l.DestroyVolume(context.Background(), ref)
		l.must(err)
	}
	l.until(func() bool {
		l.ahead.Add(int64(25 * time.Hour))
		l.Round(context.Background())
		l.settle()
		l.Purge(context.Background())
		rows, err := l.VolumeRows(context.Background(), "")
		l.must(err)
		return len(rows) == 0
	})
}
