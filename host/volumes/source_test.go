package volumes_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// hold holds up the next operation of that name on the disk until the function is called that
// it returns.
func (r *rig) hold(op string) (reached <-chan struct{}, release func()) {
	at, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.disk.Inject(func(name string, _ hangar.VolumeID) error {
		if name == op {
			once.Do(func() { close(at); <-done })
		}
		return nil
	})
	release = sync.OnceFunc(func() { close(done) })
	r.Cleanup(release)
	return at, release
}

// keepsSource checks that nothing takes a destroyed volume away that another one needs.
func (r *rig) keepsSource(from hangar.VolumeRef) {
	r.Helper()
	_, err := r.DestroyVolume(r.Context(), from)
	r.must(err)
	r.ahead.Add(int64(hangar.VolumeGrace + time.Hour))
	r.Purge(r.Context())
	_, err = r.PurgeVolume(r.Context(), from)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if v := r.Look(from); v.State != hangar.VolumePendingDestroy {
		r.Fatalf("the volume that is still to be copied is %s", v.State)
	}
}

// TestForkOfWhatIsDestroyed destroys a volume right after its fork was asked for: it stays until
// the fork is complete, however often the daemon is killed meanwhile, and no longer.
func TestForkOfWhatIsDestroyed(t *testing.T) {
	for name, kill := range map[string]bool{"undisturbed": false, "with a kill": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.disk.SetFree(10 << 30)
			from := r.NewVolume(volumestest.Raw, of("own", 2))
			r.disk.Write(from.ID, 3<<20, "content")
			reached, release := r.hold("fill")
			fork := r.fork(from, of("own", 2))
			<-reached
			r.keepsSource(from)
			large := hangar.VolumeSpec{ID: hangar.NewVolumeID(), Name: "new", Region: "loc", FSType: hangar.FSRaw}
			of("own", 8)(&large)
			_, err := r.CreateVolume(r.Context(), large)
			r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
			if kill {
				r.session.Kill()
				release()
				r.crash()
				reached, release = r.hold("freeze")
				r.open()
				<-reached
				r.ahead.Add(int64(time.Hour)) // nothing is removed before
				r.Purge(t.Context())
				if v := r.Look(from); v.State != hangar.VolumePendingDestroy {
					t.Fatalf("after the kill it is %s", v.State)
				}
			}
			release()
			if v := r.Usable(fork); v.State != hangar.VolumeCreated || r.disk.Read(fork.ID, 3<<20, 7) != "content" {
				t.Errorf("fork %+v", v)
			}
			r.until(func() bool { r.Purge(t.Context()); return r.isGone(from) })
		})
	}
}

// TestDestroyWhileForkIsDecided destroys a volume while it is decided whether its fork has room,
// when no record says yet that there will be one.
func TestDestroyWhileForkIsDecided(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 0, "content")
	reached, release := r.hold("room")
	var fork hangar.VolumeRef
	var asking sync.WaitGroup
	asking.Go(func() { fork = r.fork(from) })
	<-reached
	r.keepsSource(from)
	release()
	asking.Wait()
	if v := r.Usable(fork); v.State != hangar.VolumeCreated || r.disk.Read(fork.ID, 0, 7) != "content" {
		t.Errorf("fork %+v", v)
	}
	r.until(func() bool { r.Purge(t.Context()); return r.isGone(from) })
}

// TestRestoreOfWhatExpires has a snapshot expire while it is decided whether what is restored
// from it has room.
func TestRestoreOfWhatExpires(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(from.ID, 0, "content")
	s := r.TakeSnapshot(from)
	reached, release := r.hold("room")
	var restored hangar.VolumeRef
	var asking sync.WaitGroup
	asking.Go(func() { restored = r.Restored(s.ID, volumestest.OnDemand) })
	<-reached
	r.ahead.Add(int64(100 * 24 * time.Hour))
	r.Round(t.Context())
	if ids := r.store.IDs(); len(ids) != 1 || r.Snapshot(from, s.ID).ID != "" {
		t.Errorf("the archive has %v, the list %+v", ids, r.Snapshot(from, s.ID))
	}
	release()
	asking.Wait()
	if v := r.Usable(restored); v.State != hangar.VolumeCreated || r.disk.Read(restored.ID, 0, 7) != "content" {
		t.Errorf("volume %+v", v)
	}
	r.until(func() bool { r.Round(t.Context()); return len(r.store.IDs()) == 0 })
}

// TestForkGrowsWithinTheRoom extends a volume whose fork waits to be filled. The fork has to be
// as large, for which the disk may have no room.
func TestForkGrowsWithinTheRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		free int64 // GiB
		want hangar.VolumeState
		size int // GiB
	}{
		"there is room": {8, hangar.VolumeCreated, 4}, "there is none": {7, hangar.VolumeFailed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.disk.SetFree(tt.free << 30)
			from := r.NewVolume(volumestest.Raw)
			reached, release := r.hold("fill")
			fork := r.fork(from)
			<-reached
			_, err := r.ExtendVolume(t.Context(), from, 4)
			r.must(err)
			release()
			if v := r.Usable(fork); v.State != tt.want || v.SizeGB != tt.size {
				t.Errorf("fork %+v", v)
			}
			events, err := r.VolumeEvents(t.Context(), fork)
			r.must(err)
			if refused := strings.Contains(events[0].Fault, "no capacity: 3 GB asked"); refused != (tt.want == hangar.VolumeFailed) {
				t.Errorf("event %+v", events[0])
			}
		})
	}
}

// TestForkWithoutRoom: nothing is written of a fork that the disk cannot hold, although more of
// it is promised than there is.
func TestForkWithoutRoom(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 0, strings.Repeat("x", 3<<20))
	r.disk.Set(from.ID, func(im *volumestest.Image) { im.Used = 2 << 30 }) // no promise is broken by that
	r.disk.SetFree(2<<30 + 256<<20 + 3<<19)
	fork := r.fork(from)
	r.until(func() bool { return r.Story(fork) == "create restore!" })
	if got := r.disk.Read(fork.ID, 0, 1); got != "" {
		t.Error("a part of the fork takes room for nothing")
	}
	events, err := r.VolumeEvents(t.Context(), fork)
	r.must(err)
	if !strings.Contains(events[0].Fault, "cannot fork a volume: the disk has 1572864 bytes") {
		t.Errorf("event %+v", events[0])
	}
	r.disk.SetFree(100 << 30)
	if v := r.Usable(fork); v.State != hangar.VolumeCreated || r.disk.Read(fork.ID, 0, 1) != "x" {
		t.Errorf("with room, volume %+v", v)
	}
}
