package machines_test

import (
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// TestDestroyedStaysReadable: a destroyed Machine is readable for a day, across restarts, and no
// longer.
func TestDestroyedStaysReadable(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	if newest := before.Events[0]; newest.Type != hangar.EventDestroy || newest.Status != string(hangar.MachineDestroyed) {
		t.Errorf("the newest event is %+v", newest)
	}

	r.ahead.Store(int64(24*time.Hour - time.Minute))
	r.restart()
	after, err := r.Machine(t.Context(), ref)
	r.must(err)
	if !reflect.DeepEqual(before.Events, after.Events) || after.State != hangar.MachineDestroyed {
		t.Errorf("almost a day later: %+v, was %+v", after, before)
	}
	all := hangar.MachineFilter{IncludeDestroyed: true}
	if list, err := r.OrgMachines(t.Context(), volumestest.Org, "", 10, all); err != nil || len(list) != 1 {
		t.Errorf("listed with those that were destroyed: %v, %v", list, err)
	}
	if list, err := r.OrgMachines(t.Context(), volumestest.Org, "", 10, hangar.MachineFilter{}); err != nil || len(list) != 0 {
		t.Errorf("listed: %v, %v", list, err)
	}

	r.ahead.Store(int64(24*time.Hour + time.Minute))
	r.restart()
	r.until(r.forgotten(ref))
}

// TestDestroyIsNotCutShort ends the daemon while the driver destroys a sandbox: no partial sandbox
// is left.
func TestDestroyIsNotCutShort(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	reached := make(chan struct{})
	hit := sync.OnceFunc(func() { close(reached) })
	r.inject(func(at fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if at != fake.OpDestroy {
			return 0, nil
		}
		hit()
		return time.Second, nil
	})
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	<-reached
	r.close()
	if left, err := fake.New(r.world, fake.Options{}).List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left of sandboxes: %v, %v", left, err)
	}
}

// forgotten reports whether the agent has no record of a Machine.
func (r *rig) forgotten(ref hangar.MachineRef) func() bool {
	return func() bool {
		_, err := r.Machine(r.Context(), ref)
		return hangar.ReasonOf(err) == hangar.ReasonMachineNotFound
	}
}

// TestUnreadableIsNotForgotten: a destroyed Machine with an unreadable record does not keep others
// from being removed.
func TestUnreadableIsNotForgotten(t *testing.T) {
	r := newRig(t)
	var refs []hangar.MachineRef
	for range 3 {
		ref := r.create(nil, atRest)
		r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		r.wait(ref, hangar.MachineDestroyed)
		refs = append(refs, ref)
	}
	r.close()
	db, err := bolt.Open(filepath.Join(r.dir, "journal.db"), 0o600, nil)
	r.must(err)
	r.must(db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("destroyed")).Put([]byte(refs[0].ID), []byte("unreadable"))
	}))
	r.must(db.Close())
	r.ahead.Store(int64(24*time.Hour + time.Minute))
	r.open()
	for _, ref := range refs[1:] {
		r.until(r.forgotten(ref))
	}
}

// TestForgettingGoesOn: a log that cannot be removed does not keep Machines from being removed, and
// is removed later.
func TestForgettingGoesOn(t *testing.T) {
	r := newRig(t)
	var refs []hangar.MachineRef
	for range 8 {
		ref := r.create(nil)
		r.wait(ref, hangar.MachineStarted)
		r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		r.wait(ref, hangar.MachineDestroyed)
		refs = append(refs, ref)
	}
	retired := func(id hangar.MachineID) []string {
		found, err := filepath.Glob(filepath.Join(r.dir, "logs", "*", ".retired", "*", string(id)+".*"))
		r.must(err)
		return found
	}
	stuck := retired(refs[0].ID)
	if len(stuck) != 1 {
		t.Fatalf("the log is in %q", stuck)
	}
	if err := unix.Mount("tmpfs", stuck[0], "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount a file system in the log: %v", err)
	}
	unmount := sync.OnceFunc(func() { r.must(unix.Unmount(stuck[0], unix.MNT_DETACH)) })
	t.Cleanup(unmount)
	r.ahead.Store(int64(24*time.Hour + 11*time.Minute))
	r.restart()
	for _, ref := range refs {
		r.until(r.forgotten(ref))
	}
	if left := retired("*"); !slices.Equal(left, stuck) {
		t.Errorf("the logs in %q are left", left)
	}
	unmount()
	r.restart()
	r.until(func() bool { return len(retired("*")) == 0 })
}

// TestOrgMachines: a page has Machines of one organization only, after an id, up to a number.
func TestOrgMachines(t *testing.T) {
	r := newRig(t)
	var ids []hangar.MachineID
	for range 3 {
		ids = append(ids, r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true }).ID)
	}
	r.create(nil, func(s *hangar.MachineSpec) { s.Org, s.OrgID, s.SkipLaunch = "others", "o-others", true })
	list, err := r.OrgMachines(t.Context(), volumestest.Org, "", 10, hangar.MachineFilter{})
	r.must(err)
	if len(list) != len(ids) {
		t.Fatalf("%d machines, want %d", len(list), len(ids))
	}
	for n := range list {
		rest, err := r.OrgMachines(t.Context(), volumestest.Org, list[n].ID, 1, hangar.MachineFilter{})
		r.must(err)
		if want := list[n+1 : min(n+2, len(list))]; len(rest) != len(want) || len(want) > 0 && rest[0].ID != want[0].ID {
			t.Errorf("one machine after %s: %v", list[n].ID, rest)
		}
	}
}

// TestRoom: memory is promised from the creation until the Machine is at rest.
func TestRoom(t *testing.T) {
	r := newRig(t)
	promised := func() int64 {
		t.Helper()
		room, err := r.Room(t.Context())
		r.must(err)
		return room.Memory - room.Free
	}
	if got := promised(); got != 0 {
		t.Errorf("an empty host has promised %d bytes", got)
	}
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	if got := promised(); got != 256<<20 {
		t.Errorf("beside a machine, %d bytes are promised", got)
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	if got := promised(); got != 0 {
		t.Errorf("beside a machine at rest, %d bytes are promised", got)
	}
}
