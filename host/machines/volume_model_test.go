package machines_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// TestVolumesAgainstModel makes random requests about volumes and their Machines, while the agent
// is killed between any two disk operations, devices fail and time passes. Promises are kept, and
// no device is open without a user.
func TestVolumesAgainstModel(t *testing.T) {
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		k := &keeper{rig: r, volumes: make(map[hangar.VolumeRef]*kept)}
		act := func(do func(rt *rapid.T) func()) func(*rapid.T) {
			return func(rt *rapid.T) { k.maybeKilled(rt, do) }
		}
		rt.Repeat(map[string]func(*rapid.T){
			"make":     act(k.make),
			"extend":   act(k.extend),
			"mount":    act(k.mount),
			"start":    act(k.start),
			"stop":     act(k.stop),
			"leave":    act(k.leave),
			"destroy":  act(k.destroy),
			"undelete": act(k.undelete),
			"lose":     k.lose,
			"day": func(*rapid.T) {
				r.ahead.Add(int64(hangar.VolumeGrace + time.Minute))
				r.volumes().Purge(t.Context())
			},
			"": k.check,
		})
		k.clear(rt)
	})
}

// keeper is the model: what is promised of each volume.
type keeper struct {
	*rig
	volumes map[hangar.VolumeRef]*kept
	killed  bool // the action under way may or may not have come true
}

type kept struct {
	size      int // at least; GiB
	machine   hangar.MachineRef
	destroyed bool
}

// maybeKilled does an action, and may kill the agent during it.
func (k *keeper) maybeKilled(rt *rapid.T, draw func(rt *rapid.T) func()) {
	do := draw(rt)
	after := rapid.IntRange(0, 12).Draw(rt, "kill after operations")
	k.killed = after > 0 && after < 8
	if !k.killed {
		do()
		return
	}
	reached, dead := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	k.disk.Inject(func(string, hangar.VolumeID) error {
		mu.Lock()
		after--
		hit := after == 0
		late := after <= 0
		mu.Unlock()
		if hit {
			close(reached)
		}
		if late {
			<-dead
		}
		return nil
	})
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-reached:
	case <-done:
	}
	crashed := make(chan struct{})
	go func() { defer close(crashed); k.crash() }()
	for alive := true; alive; alive = !k.session.Dead() {
		<-time.After(time.Millisecond)
	}
	close(dead)
	<-crashed
	<-done
	k.disk.Inject(nil)
	k.open()
}

// pick draws a volume, if there is one that fits.
func (k *keeper) pick(rt *rapid.T, fits func(*kept) bool) (hangar.VolumeRef, *kept) {
	var refs []hangar.VolumeRef
	for ref, v := range k.volumes {
		if fits(v) {
			refs = append(refs, ref)
		}
	}
	if len(refs) == 0 {
		rt.Skip("no such volume")
	}
	slices.SortFunc(refs, func(a, b hangar.VolumeRef) int { return strings.Compare(string(a.ID), string(b.ID)) })
	ref := refs[rapid.IntRange(0, len(refs)-1).Draw(rt, "volume")]
	return ref, k.volumes[ref]
}

// agreed reports whether the agent has carried out the request, which it must have unless it was
// killed.
func (k *keeper) agreed(rt *rapid.T, err error) bool {
	if err != nil && !k.killed {
		rt.Fatal(err)
	}
	return err == nil
}

func (k *keeper) make(rt *rapid.T) func() {
	ref := hangar.VolumeRef{App: "web", AppID: "web", ID: hangar.NewVolumeID()}
	spec := hangar.VolumeSpec{ID: ref.ID, Name: "data", App: "web", AppID: "web", Org: "personal", OrgID: volumestest.Org, Region: "loc", SizeGB: 1, FSType: hangar.FSExt4}
	spec.Encrypted = rapid.Bool().Draw(rt, "encrypted")
	return func() {
		_, err := k.CreateVolume(context.Background(), spec)
		if k.agreed(rt, err) {
			k.volumes[ref] = &kept{size: 1}
		}
	}
}

func (k *keeper) extend(rt *rapid.T) func() {
	ref, v := k.pick(rt, func(v *kept) bool { return !v.destroyed && v.size < 5 })
	size := k.Look(ref).SizeGB + 1
	return func() {
		if _, err := k.ExtendVolume(context.Background(), ref, size); k.agreed(rt, err) {
			v.size = size
		}
	}
}

func (k *keeper) mount(rt *rapid.T) func() {
	ref, v := k.pick(rt, func(v *kept) bool { return !v.destroyed && v.machine.ID == "" })
	spec := hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "web", AppID: "web", Org: "personal", Network: 1, Region: "loc",
		Config: hangar.MachineConfig{
			Image: "web", Guest: small(), Mounts: []hangar.Mount{{Volume: string(ref.ID), Path: "/data"}},
			Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
		},
	}
	return func() {
		if _, err := k.CreateMachine(context.Background(), spec); k.agreed(rt, err) {
			v.machine = hangar.MachineRef{App: "web", AppID: "web", ID: spec.ID}
		}
	}
}

func mountedByOne(v *kept) bool { return v.machine.ID != "" }

func (k *keeper) start(rt *rapid.T) func() {
	_, v := k.pick(rt, mountedByOne)
	return func() {
		_, _ = k.StartMachine(context.Background(), v.machine) // refused while it stops
	}
}

func (k *keeper) stop(rt *rapid.T) func() {
	_, v := k.pick(rt, mountedByOne)
	return func() {
		_ = k.StopMachine(context.Background(), v.machine, hangar.MachineStop{}) // refused while it is prepared
	}
}

func (k *keeper) leave(rt *rapid.T) func() {
	_, v := k.pick(rt, mountedByOne)
	return func() {
		if err := k.DestroyMachine(context.Background(), v.machine, hangar.MachineDestroy{Force: true}); k.agreed(rt, err) {
			v.machine = hangar.MachineRef{}
		}
	}
}

func (k *keeper) destroy(rt *rapid.T) func() {
	ref, v := k.pick(rt, func(v *kept) bool { return !v.destroyed })
	return func() {
		if k.Look(ref).AttachedMachine != "" {
			_, err := k.DestroyVolume(context.Background(), ref)
			if hangar.ReasonOf(err) != hangar.ReasonVolumeAttached && !k.killed {
				rt.Fatalf("destroy an attached volume: %v", err)
			}
			return
		}
		if _, err := k.DestroyVolume(context.Background(), ref); k.agreed(rt, err) {
			v.destroyed = true
		}
	}
}

func (k *keeper) undelete(rt *rapid.T) func() {
	ref, v := k.pick(rt, func(v *kept) bool { return v.destroyed })
	return func() {
		_, err := k.UndeleteVolume(context.Background(), ref)
		if err == nil {
			v.destroyed = false
		} else if !k.killed && k.exists(ref) {
			rt.Fatal(err)
		}
	}
}

func (k *keeper) exists(ref hangar.VolumeRef) bool {
	_, err := k.VolumeRow(context.Background(), ref)
	return err == nil
}

func (k *keeper) lose(rt *rapid.T) {
	ref, _ := k.pick(rt, func(v *kept) bool { return !v.destroyed })
	if im, _ := k.disk.Get(ref.ID); im.Open {
		k.disk.Lose(ref.ID)
	}
}

// check compares the actual state with the promises, once no action is in progress.
func (k *keeper) check(rt *rapid.T) {
	rows, err := k.VolumeRows(context.Background(), "web")
	k.must(err)
	for _, row := range rows {
		ref := row.Volume.Ref()
		if k.volumes[ref] == nil { // made by an agent that was killed before it said so
			k.volumes[ref] = &kept{size: 1}
		}
		v := k.volumes[ref]
		if by := k.Look(ref).AttachedMachine; by != "" {
			k.wait(hangar.MachineRef{App: "web", AppID: "web", ID: by}, hangar.WaitSettled)
		}
		k.until(func() bool {
			state := k.Look(ref).State
			return state != hangar.VolumeCreating && state != hangar.VolumeExtending
		})
		now := k.Look(ref)
		if now.State.Gone() != v.destroyed && !k.killed {
			rt.Fatalf("volume %s is %s, destroyed: %t", ref.ID, now.State, v.destroyed)
		}
		v.destroyed = now.State.Gone()
		if now.SizeGB < v.size {
			rt.Fatalf("volume %s has %d GB of %d", ref.ID, now.SizeGB, v.size)
		}
		v.size = now.SizeGB
		if v.machine.ID != "" && now.AttachedMachine != v.machine.ID {
			rt.Fatalf("volume %s is of machine %q, not of %q", ref.ID, now.AttachedMachine, v.machine.ID)
		}
		v.machine = hangar.MachineRef{}
		if now.AttachedMachine != "" {
			v.machine = hangar.MachineRef{App: "web", AppID: "web", ID: now.AttachedMachine}
		}
		k.until(func() bool {
			running := v.machine.ID != "" && k.state(v.machine) == hangar.MachineStarted
			im, ok := k.disk.Get(ref.ID)
			return ok && im.Open == running && im.Mounted == running && im.Spec.Size>>30 >= int64(now.SizeGB)
		})
	}
	for ref, v := range k.volumes {
		if k.exists(ref) {
			continue
		}
		if !v.destroyed {
			rt.Fatalf("volume %s is gone", ref.ID)
		}
		if _, ok := k.disk.Get(ref.ID); ok {
			rt.Fatalf("the image of volume %s is still there", ref.ID)
		}
		delete(k.volumes, ref)
	}
	k.until(func() bool {
		published, _ := k.vols.PublishedVolumes(context.Background(), "")
		for _, row := range must(k.VolumeRows(context.Background(), "")) {
			if published[row.Volume.Ref()] != row.Seq {
				return false
			}
			delete(published, row.Volume.Ref())
		}
		return len(published) == 0
	})
}

func must[T any](got T, err error) T {
	if err != nil {
		panic(err)
	}
	return got
}

// clear removes everything, for the next run.
func (k *keeper) clear(rt *rapid.T) {
	k.killed = false
	k.check(rt)
	for ref, v := range k.volumes {
		if v.machine.ID != "" {
			k.must(k.DestroyMachine(context.Background(), v.machine, hangar.MachineDestroy{Force: true}))
			k.wait(v.machine, hangar.MachineDestroyed)
		}
		if _, err := k.DestroyVolume(context.Background(), ref); err != nil {
			rt.Fatal(err)
		}
	}
	k.ahead.Add(int64(hangar.VolumeGrace + time.Minute))
	k.rig.volumes().Purge(context.Background())
	if rows := must(k.VolumeRows(context.Background(), "")); len(rows) > 0 {
		rt.Fatalf("%d volumes are left", len(rows))
	}
}
