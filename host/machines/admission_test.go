package machines_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

// gigabytes makes a Machine large.
func gigabytes(n int) func(*hangar.MachineSpec) {
	return func(s *hangar.MachineSpec) { s.Config.Guest.MemoryMB = n << 10 }
}

func atRest(s *hangar.MachineSpec) { s.SkipLaunch = true }

func (r *rig) free() int64 {
	r.Helper()
	room, err := r.Room(r.Context())
	r.must(err)
	return room.Free
}

// TestCreatesShareTheRoom: of concurrent creations, as many succeed as there is memory for.
func TestCreatesShareTheRoom(t *testing.T) {
	r := newRig(t) // 8 GB
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			spec := hangar.MachineSpec{
				ID: hangar.NewMachineID(), Name: "m", App: "web", AppID: "web", Org: hangar.OrgPersonal, Network: 1, Region: "loc",
				Config: hangar.MachineConfig{Image: "web", Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 1 << 10}},
			}
			switch _, err := r.CreateMachine(t.Context(), spec); {
			case err == nil:
				made.Add(1)
			case hangar.ReasonOf(err) == hangar.ReasonInsufficientCapacity:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 8 || refused.Load() != 12 || r.free() != 0 {
		t.Errorf("%d of 1 GB were made on a host of 8, %d refused, %d bytes are free", made.Load(), refused.Load(), r.free())
	}
}

// TestCreationAfterItsTime: what is not recorded by the deadline of its caller never is.
func TestCreationAfterItsTime(t *testing.T) {
	r := newRig(t)
	free := r.free()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spec := hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "web", AppID: "web", Org: hangar.OrgPersonal, Network: 1, Region: "loc",
		Config: hangar.MachineConfig{Image: "web", Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 1 << 10}},
	}
	if _, err := r.CreateMachine(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("a creation of a caller that is gone: %v", err)
	}
	if _, err := r.Machine(t.Context(), hangar.MachineRef{App: "web", AppID: "web", ID: spec.ID}); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("it is recorded: %v", err)
	}
	if r.free() != free {
		t.Errorf("it takes %d bytes", free-r.free())
	}
}

// TestFullHostDestroys: a Machine at rest, or not launched yet, can be destroyed while others have
// all of the room.
func TestFullHostDestroys(t *testing.T) {
	r := newRig(t) // 8 GB
	stopped := r.create(nil, gigabytes(1), atRest)
	r.wait(stopped, hangar.MachineStopped)
	suspended := r.create(nil, gigabytes(1))
	r.wait(suspended, hangar.MachineStarted)
	r.suspend(suspended)
	full := r.create(nil, gigabytes(8))
	r.wait(full, hangar.MachineStarted)
	created := r.create(nil, gigabytes(1), atRest)
	for _, ref := range []hangar.MachineRef{created, stopped, suspended, full} {
		r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		r.wait(ref, hangar.MachineDestroyed)
	}
	if r.free() != 8<<30 {
		t.Errorf("%d bytes are free", r.free())
	}
}

// TestStoppedMachinesDoNotAllWake: Machines at rest take no room, and wake while there is some.
func TestStoppedMachinesDoNotAllWake(t *testing.T) {
	r := newRig(t)
	refs := make([]hangar.MachineRef, 20)
	for i := range refs {
		refs[i] = r.create(nil, gigabytes(1), atRest)
	}
	for _, ref := range refs {
		r.wait(ref, hangar.MachineStopped)
	}
	if r.free() != 8<<30 {
		t.Errorf("beside machines at rest, %d bytes are free", r.free())
	}
	var woken, refused atomic.Int64
	var all sync.WaitGroup
	for i, ref := range refs {
		all.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = r.StartMachine(t.Context(), ref)
			} else {
				err = r.WakeMachine(t.Context(), ref, 0)
			}
			switch {
			case err == nil:
				woken.Add(1)
			case hangar.ReasonOf(err) == hangar.ReasonInsufficientCapacity:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if woken.Load() != 8 || refused.Load() != 12 {
		t.Errorf("%d woke, %d were refused", woken.Load(), refused.Load())
	}
	var running, resting hangar.MachineRef
	for _, ref := range refs {
		if r.state(ref).AtRest() {
			resting = ref
		} else {
			running = ref
		}
	}
	r.wait(running, hangar.MachineStarted)
	if err := r.RestartMachine(t.Context(), resting, hangar.MachineRestart{}); hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		t.Errorf("restart of a machine at rest: %v", err)
	}
	r.must(r.RestartMachine(t.Context(), running, hangar.MachineRestart{}))
	r.wait(running, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), running, hangar.MachineStop{}))
	r.wait(running, hangar.MachineStopped)
	r.start(resting)
	if r.free() != 0 {
		t.Errorf("%d bytes are free", r.free())
	}
}

// TestRoomAfterRestart: the next daemon accounts for running Machines, even if they exceed the
// limit.
func TestRoomAfterRestart(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, gigabytes(5))
	r.wait(ref, hangar.MachineStarted)
	other := r.create(nil, gigabytes(5), atRest)
	r.wait(other, hangar.MachineStopped)
	for _, again := range []func(){r.restart, func() { r.crash(); r.open() }} {
		again()
		if r.free() != 3<<30 {
			t.Errorf("after a restart, %d bytes are free", r.free())
		}
		if _, err := r.StartMachine(t.Context(), other); hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
			t.Errorf("a start on a full host: %v", err)
		}
	}
	// After an operator lowers the overcommit, more is promised than the host has. Running Machines
	// continue.
	r.overcommit = 0.5
	r.restart()
	if r.state(ref) != hangar.MachineStarted || r.free() != -1<<30 {
		t.Errorf("the machine is %s, %d bytes are free", r.state(ref), r.free())
	}
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStarted)
}

// TestUpdatesAreAdmitted: a larger version takes room, and a smaller one frees it once it is in
// place.
func TestUpdatesAreAdmitted(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, gigabytes(4))
	r.wait(ref, hangar.MachineStarted)
	other := r.create(nil, gigabytes(3))
	r.wait(other, hangar.MachineStarted)
	update := func(image string, gb int) error {
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		m.Config.Image = image
		m.Config.Guest = &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: gb << 10}
		_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: m.Config})
		return err
	}
	if err := update("web", 6); hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity || r.state(ref) != hangar.MachineStarted {
		t.Errorf("grow beyond the host: %v, the machine is %s", err, r.state(ref))
	}
	r.must(update("web", 5))
	r.wait(ref, hangar.MachineStarted)
	if r.free() != 0 {
		t.Errorf("%d bytes are free", r.free())
	}
	r.must(update("web", 1))
	r.wait(ref, hangar.MachineStarted)
	if r.free() != 4<<30 {
		t.Errorf("after it shrank, %d bytes are free", r.free())
	}
}

// TestNothingIsPromisedForWhatFailed: a refused or failed creation leaves no promise.
func TestNothingIsPromisedForWhatFailed(t *testing.T) {
	r := newRig(t)
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStart {
			return 0, errors.New("no")
		}
		return 0, nil
	})
	ref := r.create(nil, gigabytes(8))
	r.wait(ref, hangar.MachineFailed)
	if r.free() != 8<<30 {
		t.Errorf("beside a failed machine, %d bytes are free", r.free())
	}
	_, err := r.CreateMachine(t.Context(), hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "web", AppID: "web", Org: hangar.OrgPersonal, Network: 1, Region: "loc", SkipLaunch: true,
		Config: hangar.MachineConfig{Image: "web", Guest: &hangar.Guest{CPUKind: "shared", CPUs: 65, MemoryMB: 256}},
	})
	if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity || !strings.Contains(err.Error(), "insufficient CPUs") {
		t.Errorf("a machine that could never run: %v", err)
	}
}
