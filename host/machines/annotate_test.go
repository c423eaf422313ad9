package machines_test

import (
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

func (r *rig) set(ref hangar.MachineRef, key, value string) {
	r.Helper()
	r.must(r.SetMachineMetadata(r.Context(), ref, hangar.MetadataPair{Key: key, Value: value}))
}

func (r *rig) metadata(ref hangar.MachineRef) map[string]string {
	r.Helper()
	pairs, err := r.MachineMetadata(r.Context(), ref)
	r.must(err)
	return pairs
}

// TestAnnotationsOutliveTheDaemon kills the daemon right after the answers.
func TestAnnotationsOutliveTheDaemon(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.set(ref, "role", "web")
	r.must(r.CordonMachine(t.Context(), ref))
	r.crash()
	r.open()
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	if m.State != hangar.MachineStarted || !m.Cordoned || m.Config.Metadata["role"] != "web" {
		t.Errorf("after a kill the machine is %s, cordoned: %t, metadata %v", m.State, m.Cordoned, m.Config.Metadata)
	}
	late := hangar.MetadataPair{Key: "role", Value: "late", UpdatedAt: time.Now().Add(-time.Hour)}
	r.must(r.SetMachineMetadata(t.Context(), ref, late))
	if got := r.metadata(ref)["role"]; got != "web" {
		t.Errorf("after a kill, an earlier decision made the role %q", got)
	}
}

// TestAnnotationsLetStepsGoOn writes metadata during each step of a Machine's life.
func TestAnnotationsLetStepsGoOn(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	for _, step := range []struct {
		op      fake.Op
		verb    func() error
		reaches hangar.MachineState
	}{
		{fake.OpStart, func() error { _, err := r.StartMachine(t.Context(), ref); return err }, hangar.MachineStarted},
		{fake.OpSuspend, func() error { return r.SuspendMachine(t.Context(), ref) }, hangar.MachineSuspended},
		{fake.OpResume, func() error { _, err := r.StartMachine(t.Context(), ref); return err }, hangar.MachineStarted},
		{fake.OpStop, func() error { return r.StopMachine(t.Context(), ref, hangar.MachineStop{}) }, hangar.MachineStopped},
	} {
		var calls atomic.Int32
		reached := make(chan struct{})
		r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
			if op != step.op {
				return 0, nil
			}
			if calls.Add(1) == 1 {
				close(reached)
			}
			return 30 * time.Millisecond, nil
		})
		r.must(step.verb())
		<-reached
		r.set(ref, "during", string(step.op))
		r.must(r.CordonMachine(t.Context(), ref))
		r.must(r.UncordonMachine(t.Context(), ref))
		r.wait(ref, step.reaches)
		if n := calls.Load(); n != 1 {
			t.Errorf("%s was asked of the driver %d times", step.op, n)
		}
		if got := r.metadata(ref)["during"]; got != string(step.op) {
			t.Errorf("what was written during %s is %q", step.op, got)
		}
	}
}

func TestMetadataOfAFailedUpdate(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.set(ref, "old", "1")
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := m.Config
	config.Image = "offline"
	config.SetMetadata(map[string]string{"sent": "1"})
	r.images.mu.Lock() // the update cannot fail yet
	updated, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.set(ref, "during", "1")
	if got := r.metadata(ref); !maps.Equal(got, map[string]string{"sent": "1", "during": "1"}) {
		t.Errorf("while the update is under way, metadata is %v", got)
	}
	r.images.mu.Unlock()
	_, err = r.WaitMachine(t.Context(), ref, hangar.MachineWait{Instance: updated.InstanceID, Timeout: patience})
	if hangar.ReasonOf(err) != hangar.ReasonOutOfReach {
		t.Errorf("wait for a version that could not be put in place = %v", err)
	}
	r.wait(ref, hangar.MachineStarted)
	if got := r.metadata(ref); !maps.Equal(got, map[string]string{"old": "1", "during": "1"}) {
		t.Errorf("after the failed update, metadata is %v", got)
	}
}

func TestRowsFollowAnnotations(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.set(ref, "role", "web")
	r.must(r.CordonMachine(t.Context(), ref))
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		row := r.rows.row(ref.ID).Machine
		if row.Cordoned && maps.Equal(row.Config.Metadata, map[string]string{"role": "web"}) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the row says cordoned: %t, metadata %v", row.Cordoned, row.Config.Metadata)
		}
	}
}

// BenchmarkMetadata writes one key each to as many Machines as there are writers. Each write is on
// disk when it returns.
func BenchmarkMetadata(b *testing.B) {
	for _, writers := range []int{1, 32} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			r := newRig(b)
			refs := make(chan hangar.MachineRef, writers)
			for range writers {
				ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
				r.wait(ref, hangar.MachineStopped)
				refs <- ref
			}
			b.SetParallelism(writers)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					ref := <-refs
					r.set(ref, "k", "v")
					refs <- ref
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}
