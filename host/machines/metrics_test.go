package machines_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/network"
)

// metered returns the series of an agent, by Machine or volume, name and labels.
func (r *rig) metered() map[string]float64 {
	r.Helper()
	all := map[string]float64{}
	for m := range r.Metrics() {
		name := string(m.Machine) + " " + m.Name
		for _, l := range m.Labels {
			name += fmt.Sprintf(" %s=%s", l.Name, l.Value)
		}
		if _, twice := all[name]; twice {
			r.Errorf("%s is yielded twice", name)
		}
		if m.App == "" {
			r.Errorf("%s is of no App", name)
		}
		all[name] = m.Value
	}
	return all
}

// counted is a network whose devices have non-zero counters.
type counted struct {
	machines.NoNetwork
	all map[hangar.MachineID]network.Counters
}

func (c counted) Counters() (map[hangar.MachineID]network.Counters, error) { return c.all, nil }

func (r *rig) expect(all map[string]float64, want map[string]float64) {
	r.Helper()
	for name, value := range want {
		if got, ok := all[name]; !ok || got != value {
			r.Errorf("%s is %v (%t), want %v", name, got, ok, value)
		}
	}
}

// none fails if a series name contains a word.
func (r *rig) none(all map[string]float64, word string) {
	r.Helper()
	for name := range all {
		if strings.Contains(name, word) {
			r.Errorf("there is %s", name)
		}
	}
}

// TestMetricsOfAMachine: a Machine is measured while it is started, and exits are counted from the
// first one on.
func TestMetricsOfAMachine(t *testing.T) {
	r := newRig(t)
	r.close()
	net := counted{all: map[hangar.MachineID]network.Counters{}}
	r.net = net
	r.open()
	ref := r.create(map[string]string{fake.EnvMemoryMB: "100"}, func(s *hangar.MachineSpec) { s.Config.Guest = &hangar.Guest{CPUKind: "shared", CPUs: 2, MemoryMB: 512} })
	r.wait(ref, hangar.MachineStarted)
	id := string(ref.ID) + " instance_"
	net.all[ref.ID] = network.Counters{Received: network.Direction{Bytes: 7, Dropped: 1}, Sent: network.Direction{Packets: 9}}
	first := r.metered()
	r.expect(first, map[string]float64{
		id + "up": 1, id + "memory_mem_total": 512 << 20, id + "memory_mem_available": 412 << 20, id + "memory_mem_free": 412 << 20,
		id + "memory_swap_total": 0, id + "cpu_baseline": 2, id + "cpu_throttle": 0,
		id + "net_recv_bytes device=eth0": 7, id + "net_recv_drop device=eth0": 1, id + "net_sent_packets device=eth0": 9,
	})
	r.none(first, "exit_")
	r.none(first, "disk_")       // the layers of the test are directories
	r.none(first, "filesystem_") // of the server, which says nothing of the Machine
	r.ahead.Add(int64(time.Minute))
	second := r.metered()
	for _, mode := range []string{"user", "system", "idle"} {
		name := id + "cpu cpu_id=all mode=" + mode
		if second[name] < first[name] {
			t.Errorf("%s goes back from %v to %v", name, first[name], second[name])
		}
	}
	if _, ok := second[id+"load_average minutes=1"]; !ok {
		t.Error("there is no load average")
	}

	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.none(r.metered(), "instance_")
	r.start(ref)
	r.expect(r.metered(), map[string]float64{id + "up": 1})

	r.restart()
	r.wait(ref, hangar.MachineStarted)
	r.expect(r.metered(), map[string]float64{id + "up": 1, id + "memory_mem_available": 412 << 20})

	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	stopped := r.metered()
	r.none(stopped, "instance_up")
	r.none(stopped, "memory_")
	r.expect(stopped, map[string]float64{id + "exit_code": 130, id + "exit_oom": 0, id + "exit_vm_code": 130})
}

func TestMetricsOfExits(t *testing.T) {
	for how, want := range map[string][2]float64{"7": {7, 0}, "oom": {137, 1}, "signal:11": {139, 0}, "0": {0, 0}} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(map[string]string{fake.EnvExit: how}, func(s *hangar.MachineSpec) {
				s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
			})
			r.wait(ref, hangar.MachineStopped)
			id := string(ref.ID) + " instance_"
			r.expect(r.metered(), map[string]float64{id + "exit_code": want[0], id + "exit_oom": want[1], id + "exit_vm_code": want[0]})
		})
	}
}

func TestMetricsOfAVolume(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(func(s *hangar.VolumeSpec) { s.SizeGB = 2 })
	id := " id=" + string(ref.ID)
	before := r.metered()
	r.expect(before, map[string]float64{" volume_size_bytes" + id: 2 << 30})
	r.none(before, "used_pct") // it was never used
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	v := r.Look(ref)
	used := 100 * float64(v.Usage.Used()) / float64(v.Usage.Used()+v.Usage.BlocksAvail*v.Usage.BlockSize)
	r.expect(r.metered(), map[string]float64{" volume_used_pct" + id: used})
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.expect(r.metered(), map[string]float64{" volume_used_pct" + id: used, " volume_size_bytes" + id: 2 << 30})
}

// BenchmarkMetrics samples 200 Machines of a host at once, which happens every few seconds.
func BenchmarkMetrics(b *testing.B) {
	r := newRig(b)
	r.close()
	r.overcommit = 100
	r.open()
	var refs []hangar.MachineRef
	for range 200 {
		refs = append(refs, r.create(nil, func(s *hangar.MachineSpec) { s.Config.Guest = small() }))
	}
	for _, ref := range refs {
		r.wait(ref, hangar.MachineStarted)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for range r.Metrics() {
			n++
		}
		if n < len(refs) {
			b.Fatalf("%d series", n)
		}
	}
}
