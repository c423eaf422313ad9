package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// short bounds the tests to what every change must pass.
func short() bool { return os.Getenv("E2E_SHORT") != "" }

// times is how often something is done in a full and in a short run.
func times(full, bounded int) int {
	if short() {
		return bounded
	}
	return full
}

// cycles is how often a test repeats what must lose nothing: what E2E_CYCLES says, else as times.
func cycles(t *testing.T, full, bounded int) int {
	t.Helper()
	said := os.Getenv("E2E_CYCLES")
	if said == "" {
		return times(full, bounded)
	}
	n, err := strconv.Atoi(said)
	if err != nil || n < 1 {
		t.Fatalf("E2E_CYCLES is %q, and must be a number from 1 on", said)
	}
	return n
}

// TestPrograms runs each program as a Machine, with a real client, through
// everything that may happen to a Machine.
func TestPrograms(t *testing.T) {
	p := start(t)
	builder := software.Builder(t)
	table := report{release: builder.Release()}
	all := programs()
	for i := range all {
		prog := &all[i]
		img := &packed{}
		t.Run(prog.title, func(t *testing.T) {
			r := table.row(prog)
			r.step(t, "image", func(t *testing.T) {
				t.Helper()
				img.Image, r.version = prog.image(t, builder)
				img.ref = p.push(t, img, "program-"+strconv.Itoa(i)+":1")
			})
			prog.run(t, p, r, img.ref, "program-"+strconv.Itoa(i))
		})
	}
	table.finish(t)
}

// run takes a program through its life.
func (prog *program) run(t *testing.T, p *platform, r *row, ref, name string) {
	t.Helper()
	var m *machine
	t.Cleanup(func() {
		if m != nil && t.Failed() {
			ctx := context.WithoutCancel(t.Context())
			now, _ := p.c.Machine(ctx, m.ref)
			page, _ := p.c.Logs(ctx, app, hangar.LogQuery{Instance: m.ref.ID, Limit: 30})
			t.Log(describe(now))
			for _, e := range page.Entries {
				t.Logf("  | %s", e.Message)
			}
		}
	})
	r.step(t, "boots, serves", func(t *testing.T) {
		t.Helper()
		m = p.run(t, name, prog.config(ref))
		prog.serves(t, m)
	})
	r.step(t, "own check", func(t *testing.T) { t.Helper(); prog.own(t, m) })
	r.step(t, "suspend, resume", func(t *testing.T) {
		t.Helper()
		s := prog.session(t, m)
		for n := range times(5, 2) {
			steps(t, s, 3)
			m.suspend(t)
			// The client asks while no daemon runs. Its request waits in the network.
			answer := make(chan error, 1)
			go func() { answer <- s.step() }()
			m.resume(t)
			if err := <-answer; err != nil {
				t.Fatalf("request that was sent while suspended for the %d. time: %v", n+1, err)
			}
		}
		steps(t, s, 3)
		prog.serves(t, m) // a new client, too
	})
	r.step(t, "daemon killed", func(t *testing.T) {
		t.Helper()
		s := prog.session(t, m)
		steps(t, s, 3)
		p.d.Kill()
		steps(t, s, 3)
		p.d.Up()
		steps(t, s, 3)
		if state := m.wait(t, hangar.WaitSettled); state != hangar.MachineStarted {
			t.Fatalf("the Machine is %s after a kill of the daemon", state)
		}
	})
	r.step(t, "stop, start", func(t *testing.T) {
		t.Helper()
		m.stop(t)
		// None of the programs needs to be killed.
		if exit := m.exit(t); !exit.RequestedStop || exit.OOMKilled || exit.ExitCode == 137 {
			t.Errorf("exit: %+v", exit)
		}
		m.start(t)
		prog.serves(t, m)
		if prog.reopened != nil {
			prog.reopened(t, m)
		}
	})
	r.step(t, "destroy", func(t *testing.T) { t.Helper(); m.destroy(t) })
}

func steps(t *testing.T, s session, n int) {
	t.Helper()
	for range n {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
}

// step runs a step of a program as a subtest; the first that fails ends the
// program.
func (r *row) step(t *testing.T, what string, f func(t *testing.T)) {
	t.Helper()
	began := time.Now()
	ok := t.Run(what, f)
	r.seconds[what] = time.Since(began).Seconds()
	if !ok {
		r.failed = what
		t.FailNow()
	}
	r.passed = append(r.passed, what)
}

// String is a row for people who watch.
func (r *row) String() string {
	line := fmt.Sprintf("%-18s %-12s", r.title, r.version)
	for _, what := range r.passed {
		line += fmt.Sprintf("  %s %.1fs", what, r.seconds[what])
	}
	if r.failed != "" {
		line += "  FAILED: " + r.failed
	}
	return line
}
