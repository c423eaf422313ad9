package machines_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/machines"
)

// ports are a network on which a Machine's port accepts or refuses, as the test says.
type ports struct {
	machines.NoNetwork
	mu    sync.Mutex
	open  map[int]bool
	dials int
}

func (p *ports) Dial(_ context.Context, _ hangar.MachineID, port int) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dials++
	if !p.open[port] {
		return nil, errors.New("connect: connection refused")
	}
	near, far := net.Pipe()
	_ = far.Close()
	return near, nil
}

func (p *ports) set(port int, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[port] = open
}

// newCheckedRig is a rig whose Machines have ports.
func newCheckedRig(t *testing.T) (*rig, *ports) {
	t.Helper()
	r := newRig(t)
	r.close()
	p := &ports{open: map[int]bool{}}
	r.net = p
	r.open()
	return r, p
}

// checked has a check of its own, "db", and one of a service.
func checked(spec *hangar.MachineSpec) {
	second := hangar.Duration(time.Second)
	spec.Config.Checks = map[string]hangar.Check{"db": {Type: "tcp", Port: 5432, Interval: &second}}
	spec.Config.Services = []hangar.Service{{InternalPort: 80, Checks: []hangar.Check{{Type: "tcp", Interval: &second}}}}
}

// health is the state of a Machine's checks, as "status status".
func (r *rig) health(ref hangar.MachineRef) string {
	r.Helper()
	m, err := r.Machine(r.Context(), ref)
	r.must(err)
	return statuses(m.Checks)
}

func statuses(checks []hangar.MachineCheck) string {
	var list []string
	for _, c := range checks {
		list = append(list, string(c.Status))
	}
	return strings.Join(list, " ")
}

// TestChecksFollowTheMachine follows the checks through the life of a Machine.
func TestChecksFollowTheMachine(t *testing.T) {
	r, p := newCheckedRig(t)
	ref := r.create(nil, checked, skipLaunch)
	r.wait(ref, hangar.MachineStopped)
	unknown := func(state hangar.MachineState) {
		t.Helper()
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		if m.State != state {
			t.Errorf("machine is %s, want %s", m.State, state)
		}
		for i, name := range []string{"db", "servicecheck-00-tcp-80"} {
			c := m.Checks[i]
			if c.Name != name || c.Status != hangar.CheckWarning || c.Output != "the machine hasn't started: it is "+string(state) || c.UpdatedAt.IsZero() {
				t.Errorf("check of a %s machine: %+v", state, c)
			}
		}
	}
	become := func(want string) {
		t.Helper()
		r.until(func() bool { return r.health(ref) == want })
		r.until(func() bool { return statuses(r.rows.row(ref.ID).Machine.Checks) == want })
	}
	unknown(hangar.MachineStopped)
	p.set(5432, true)
	r.start(ref)
	become("passing critical")
	p.set(80, true)
	become("passing passing")
	p.set(5432, false)
	become("critical passing")

	r.suspend(ref)
	unknown(hangar.MachineSuspended)
	r.until(func() bool { return statuses(r.rows.row(ref.ID).Machine.Checks) == "warning warning" })
	r.start(ref)
	become("critical passing")

	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := m.Config
	config.Checks = nil
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
	become("passing")
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	become("warning")
	if got := r.history(ref); strings.Contains(got, "restart") {
		t.Errorf("a check restarted the machine: %s", got)
	}
	r.close() // which waits for runs that had begun
	p.mu.Lock()
	before := p.dials
	p.mu.Unlock()
	r.open()
	if p.mu.Lock(); p.dials != before {
		t.Errorf("%d runs on a stopped machine", p.dials-before)
	}
	p.mu.Unlock()
}

// TestChecksSurviveTheDaemon also checks that an unchanged status costs no commit.
func TestChecksSurviveTheDaemon(t *testing.T) {
	r, p := newCheckedRig(t)
	p.set(5432, true)
	ref := r.create(nil, checked)
	r.wait(ref, hangar.MachineStarted)
	r.until(func() bool { return r.health(ref) == "passing critical" })
	r.until(func() bool { return statuses(r.rows.row(ref.ID).Machine.Checks) == "passing critical" })
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	for range 2 {
		r.restart()
		after, err := r.Machine(t.Context(), ref)
		r.must(err)
		if !after.Checks[0].UpdatedAt.Equal(before.Checks[0].UpdatedAt) || statuses(after.Checks) != "passing critical" {
			t.Errorf("checks after a restart of the daemon: %+v, before %+v", after.Checks, before.Checks)
		}
	}
	seq := r.rows.row(ref.ID).Seq
	p.mu.Lock()
	dials := p.dials
	p.mu.Unlock()
	r.until(func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.dials > dials+4 })
	if got := r.rows.row(ref.ID).Seq; got != seq {
		t.Errorf("runs that found nothing new published row %d after %d", got, seq)
	}
	p.set(80, true)
	r.until(func() bool { return r.rows.row(ref.ID).Seq > seq && r.health(ref) == "passing passing" })

	// The rows are the same after the cluster state was lost.
	r.rows.mu.Lock()
	r.rows.has = nil
	r.rows.mu.Unlock()
	r.restart()
	r.until(func() bool { return statuses(r.rows.row(ref.ID).Machine.Checks) == "passing passing" })
}

// TestHealthIsToldInTheLog reads the lines for users.
func TestHealthIsToldInTheLog(t *testing.T) {
	r, p := newCheckedRig(t)
	p.set(80, true)
	ref := r.create(nil, checked)
	r.until(func() bool { return r.health(ref) == "critical passing" })
	p.set(80, false)
	r.until(func() bool { return r.health(ref) == "critical critical" })
	r.until(func() bool {
		page, err := r.Logs(t.Context(), ref.AppID, hangar.LogQuery{Instance: ref.ID})
		r.must(err)
		var lines []string
		for _, e := range page.Entries {
			if e.Provider == hangar.LogHealth {
				lines = append(lines, e.Level+" "+e.Message)
			}
		}
		return slices.Contains(lines, "info Health check 'servicecheck-00-tcp-80' on port 80 is now passing.") &&
			slices.Contains(lines, "error Health check 'servicecheck-00-tcp-80' on port 80 has failed. connect: connection refused") &&
			slices.Contains(lines, "error Health check 'db' on port 5432 has failed. connect: connection refused")
	})
}
