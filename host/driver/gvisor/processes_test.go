package gvisor_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// guestMachine is a running Machine whose output the test reads.
type guestMachine struct {
	testing.TB
	d      *gvisor.Driver
	spec   driver.Spec
	handle driver.Handle
	output *bufio.Reader
}

// boot starts spec, and destroys the Machine after the test.
func boot(tb testing.TB, d *gvisor.Driver, spec driver.Spec) *guestMachine {
	tb.Helper()
	m := &guestMachine{TB: tb, d: d, spec: spec}
	// Non-blocking, so that Close ends a pending read.
	out, err := os.OpenFile(spec.Output, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	m.output = bufio.NewReader(out)
	tb.Cleanup(func() { _ = out.Close() })
	if m.handle, err = d.Start(tb.Context(), spec); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Destroy(finishtest.Context(tb), spec.ID, spec.Dir); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// line returns the next line of output.
func (m *guestMachine) line() string {
	m.Helper()
	l, err := m.output.ReadString('\n')
	if err != nil {
		m.Fatal(err)
	}
	return strings.TrimSpace(l)
}

func (m *guestMachine) processes() map[string]hangar.Process {
	m.Helper()
	ps, err := m.d.Processes(m.Context(), m.handle)
	if err != nil {
		m.Fatal(err)
	}
	out := make(map[string]hangar.Process)
	for _, p := range ps {
		out[p.Command] = p
	}
	return out
}

// TestListenSockets: each listening socket is listed with every process that has it open, and no
// other socket is.
func TestListenSockets(t *testing.T) {
	t.Parallel()
	spec := newSpec(t, "listen")
	n := newNetwork(t)
	n.address(t)
	spec.NetNS = n.path
	m := boot(t, open(t), spec)
	m.line() // "ready", says the child, last of all
	ps := m.processes()
	shared := hangar.ListenSocket{Proto: "tcp", Address: "[::]:80"}
	for command, want := range map[string][]hangar.ListenSocket{
		"guest listen": {
			shared,
			{Proto: "tcp", Address: "127.0.0.1:81"},
			{Proto: "udp", Address: "[::]:53"},
			{Proto: "udp", Address: "0.0.0.0:54"},
		},
		"/proc/self/exe inherit": {shared},
	} {
		got := slices.Clone(ps[command].ListenSockets)
		byText := func(a, b hangar.ListenSocket) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
		slices.SortFunc(got, byText)
		slices.SortFunc(want, byText)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", command, got, want)
		}
	}
	if len(ps) != 2 {
		t.Errorf("processes %+v, want 2", ps)
	}
}

// TestProcessorTime: the list shows the same ticks as the guest's kernel shows to the process
// itself.
func TestProcessorTime(t *testing.T) {
	t.Parallel()
	m := boot(t, open(t), newSpec(t, "burn", "300"))
	var user, system int64
	if _, err := fmt.Sscan(m.line(), &user, &system); err != nil {
		t.Fatal(err)
	}
	p := m.processes()["guest burn 300"]
	const tolerance = 30 // ticks are 10 ms, and it continues for a moment
	if p.RunMS < user-tolerance || p.RunMS > user+10*tolerance || p.StartedMS < system-tolerance || p.StartedMS > system+10*tolerance {
		t.Errorf("%d ms user, %d ms system; the process saw %d and %d", p.RunMS, p.StartedMS, user, system)
	}
	if p.CPU <= 0 || p.CPU > 2.5 { // no guest sees fewer than two cores
		t.Errorf("%.2f of a core", p.CPU)
	}
	if p.PID != 2 || p.Directory != "/" || p.RSS <= 0 {
		t.Errorf("process %+v", p)
	}
}
