package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// build makes an image of Debian packages.
func build(t *testing.T, r debian.Recipe) v1.Image {
	t.Helper()
	img, err := software.Builder(t).Build(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// runKeeper runs a keeper that answers.
func (p *platform) runKeeper(t *testing.T, name string, change func(*hangar.MachineConfig)) (*machine, *keeper, kept) {
	t.Helper()
	config := hangar.MachineConfig{Image: p.push(t, keeperImage(t), "keeper:1"), Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}}
	if change != nil {
		change(&config)
	}
	m := p.run(t, name, config)
	m.serves(t, 8080, "/state")
	k := newKeeper(t, m.addr(8080))
	state, err := k.state()
	if err != nil {
		t.Fatal(err)
	}
	return m, k, state
}

// TestKillsAreNotNoticed kills the daemon again and again, also while it starts,
// while a client talks to a Machine without a break and the Machine prints lines.
func TestKillsAreNotNoticed(t *testing.T) {
	p := start(t)
	m, k, before := p.runKeeper(t, "keeper", nil)
	page, err := p.c.Logs(t.Context(), app, hangar.LogQuery{Instance: m.ref.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.post("/chatter", url.Values{"ms": {"1"}}); err != nil {
		t.Fatal(err)
	}
	lines := newLineSession(t, m.addr(7000), countLines)
	sandbox := sandboxes(t, p.d)
	if len(sandbox) == 0 {
		t.Fatal("no process of the sandbox was found")
	}

	stop, stopped := make(chan struct{}), make(chan error, 1)
	asked := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := lines.step(); err != nil {
				stopped <- fmt.Errorf("line %d: %w", lines.n, err)
				return
			}
			asked++
		}
	}()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range times(30, 8) {
		p.d.Kill()
		for range random.IntN(3) { // and again before it is ready
			p.d.UpAndKill(time.Duration(random.IntN(300)) * time.Millisecond)
		}
		p.d.Up()
		if state := m.wait(t, hangar.WaitSettled); state != hangar.MachineStarted {
			t.Fatalf("the Machine is %s", state)
		}
		select {
		case err := <-stopped:
			t.Fatal(err)
		case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d exchanges on one connection", asked)
	after, err := k.state()
	if err != nil || after != before {
		t.Fatalf("the program has changed: %+v, not %+v (%v)", after, before, err)
	}
	if now := sandboxes(t, p.d); !slices.Equal(now, sandbox) {
		t.Fatalf("the processes of the sandbox were %v and are %v", sandbox, now)
	}
	if n := p.continuous(t, m, page.Next); n < asked/1000 {
		t.Fatalf("only %d lines in the log", n)
	}
}

// continuous reads the log from a token on, and fails if a numbered line is missing,
// twice or out of order. It returns how many there are.
func (p *platform) continuous(t *testing.T, m *machine, token string) int {
	t.Helper()
	next := 0
	for {
		page, err := p.c.Logs(t.Context(), app, hangar.LogQuery{Instance: m.ref.ID, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			number, ok := strings.CutPrefix(e.Message, "line ")
			if !ok || e.Provider != hangar.LogApp {
				continue
			}
			if n, err := strconv.Atoi(number); err != nil || n != next {
				t.Fatalf("line %d of the log is %q", next, e.Message)
			}
			next++
		}
		if len(page.Entries) == 0 {
			t.Logf("%d lines in the log", next)
			return next
		}
		token = page.Next
	}
}

// TestExitsWhileTheDaemonIsDown: an exit while no daemon runs is reported with its code, and the
// restart policy applies.
func TestExitsWhileTheDaemonIsDown(t *testing.T) {
	p := start(t)
	type ending struct {
		name   string
		values url.Values
		policy hangar.RestartPolicy
		remove bool

		code, signal int
		state        hangar.MachineState
	}
	endings := []ending{
		{name: "code-7", values: url.Values{"code": {"7"}}, policy: hangar.RestartNo, code: 7, signal: -1, state: hangar.MachineStopped},
		{name: "code-0", values: url.Values{"code": {"0"}}, policy: hangar.RestartOnFailure, code: 0, signal: -1, state: hangar.MachineStopped},
		{name: "signal-9", values: url.Values{"signal": {"9"}}, policy: hangar.RestartNo, code: 137, signal: 9, state: hangar.MachineStopped},
		{name: "signal-15", values: url.Values{"signal": {"15"}}, policy: hangar.RestartNo, code: 143, signal: 15, state: hangar.MachineStopped},
		{name: "restarted", values: url.Values{"code": {"3"}}, policy: hangar.RestartAlways, code: 3, signal: -1, state: hangar.MachineStarted},
		{name: "removed", values: url.Values{"code": {"0"}}, policy: hangar.RestartNo, remove: true, code: 0, signal: -1, state: hangar.MachineDestroyed},
	}
	machines := map[string]*machine{}
	keepers := map[string]*keeper{}
	ids := map[string]string{}
	for _, e := range endings {
		m, k, state := p.runKeeper(t, e.name, func(c *hangar.MachineConfig) {
			c.Restart = &hangar.RestartConfig{Policy: e.policy}
			c.AutoDestroy = e.remove
		})
		machines[e.name], keepers[e.name], ids[e.name] = m, k, state.ID
	}
	p.d.Kill()
	for _, e := range endings {
		keepers[e.name].fatal("/exit", e.values)
	}
	p.untilAllEnd(t)
	p.d.Up()
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			m := machines[e.name]
			m.wait(t, e.state)
			if exit := m.exit(t); exit.ExitCode != e.code || exit.Signal != e.signal || exit.OOMKilled || exit.RequestedStop {
				t.Errorf("reported %+v, not code %d and signal %d", exit, e.code, e.signal)
			}
			if e.state != hangar.MachineStarted {
				return
			}
			m.serves(t, 8080, "/state")
			if state, err := newKeeper(t, m.addr(8080)).state(); err != nil || state.ID == ids[e.name] {
				t.Errorf("not a new process: %+v, %v", state, err)
			}
		})
	}
}

// untilAllEnd waits until no Machine runs, while there is no daemon.
func (p *platform) untilAllEnd(t *testing.T) {
	t.Helper()
	until(t, "end of the Machines", func() error {
		ids, err := daemon.Sandboxes(p.d.Dir())
		if err == nil && len(ids) > 0 {
			err = fmt.Errorf("%v still run", ids)
		}
		return err
	})
}

// TestOutOfMemory: a Machine that takes more memory than it has ends, and the event
// says why, also if it happened while the daemon was down. Others live on.
func TestOutOfMemory(t *testing.T) {
	p := start(t)
	_, other, state := p.runKeeper(t, "other", nil)
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemon down %t", down), func(t *testing.T) {
			m, k, _ := p.runKeeper(t, fmt.Sprintf("hungry-%t", down), func(c *hangar.MachineConfig) { c.Guest = &hangar.Guest{MemoryMB: 256} })
			if down {
				p.d.Kill()
			}
			k.fatal("/eat", url.Values{"mb": {"1024"}})
			if down {
				p.d.Up()
			}
			m.wait(t, hangar.MachineStopped)
			if exit := m.exit(t); !exit.OOMKilled || exit.ExitCode != 137 {
				t.Errorf("reported %+v", exit)
			}
			m.start(t) // it is whole again
			m.serves(t, 8080, "/state")
		})
	}
	if now, err := other.state(); err != nil || now != state {
		t.Errorf("another Machine suffered: %+v, %v", now, err)
	}
}

// TestTwoDaemons run side by side on one server, with the same names, and each
// survives the end of the other.
func TestTwoDaemons(t *testing.T) {
	p := start(t)
	m, _, _ := p.runKeeper(t, "same", nil)
	lines := newLineSession(t, m.addr(7000), countLines)
	t.Run("the other", func(t *testing.T) {
		other := start(t)
		n, k, _ := other.runKeeper(t, "same", nil)
		if m.ip == n.ip {
			t.Fatalf("both Machines have the address %s", m.ip)
		}
		others := newLineSession(t, n.addr(7000), countLines)
		p.d.Kill()
		n.suspend(t)
		n.resume(t)
		steps(t, others, 3)
		p.d.Up()
		steps(t, lines, 3)
		other.d.Kill()
		m.suspend(t)
		m.resume(t)
		steps(t, lines, 3)
		steps(t, others, 3)
		other.d.Up()
		if _, err := k.step(1); err != nil {
			t.Fatal(err)
		}
		machines, err := p.c.Machines(t.Context(), app, hangar.MachineFilter{})
		if err != nil || len(machines) != 1 || machines[0].ID != m.ref.ID {
			t.Fatalf("%d Machines, %v", len(machines), err)
		}
	}) // which takes the other daemon down
	steps(t, lines, 3)
	m.suspend(t)
	m.resume(t)
	steps(t, lines, 3)
}

// TestDownLeavesNothing compares what is on the server before, during and after.
func TestDownLeavesNothing(t *testing.T) {
	var dir, id, own string
	before := inventory(t)
	t.Run("life", func(t *testing.T) {
		p := start(t)
		running, _, _ := p.runKeeper(t, "running", nil)
		dir, id = p.d.Dir(), instance(t, p.d)
		own = "address " + dial(t, running.addr(7000)).LocalAddr().(*net.TCPAddr).IP.String() + "/"
		suspended, _, _ := p.runKeeper(t, "suspended", nil)
		suspended.suspend(t)
		stopped, _, _ := p.runKeeper(t, "stopped", nil)
		stopped.stop(t)
		destroyed, _, _ := p.runKeeper(t, "destroyed", nil)
		destroyed.destroy(t)
		image := p.pushBlocks(t)
		for _, name := range []string{"with-volume", "with-volume-suspended", "with-volume-destroyed"} {
			m, w := p.volume(t, hangar.VolumeCreate{}).runBlocks(t, image, name)
			if _, err := w.Run(t.Context(), 5); err != nil {
				t.Fatal(err)
			}
			switch name {
			case "with-volume-suspended":
				m.suspend(t)
			case "with-volume-destroyed":
				m.destroy(t)
			}
		}
		p.d.Kill()
		p.d.Up()
		kinds := map[string]bool{}
		for _, thing := range left(before, inventory(t), dir, id) {
			kind, _, _ := strings.Cut(thing, " ")
			kinds[kind] = true
		}
		if !has(inventory(t), own) {
			t.Errorf("this server has no %s, from which the Machine was reached", own)
		}
		for _, kind := range []string{"link", "namespace", "table", "mount", "loop", "cgroup", "process", "run", "route"} {
			if !kinds[kind] {
				t.Errorf("a running daemon has no %s: the inventory does not see it", kind)
			}
		}
		p.d.Kill() // `down` must manage without it
	})
	if t.Failed() {
		return // and the daemon has said why
	}
	until(t, "nothing is left behind", func() error { // the kernel takes devices down in its own time
		after := inventory(t)
		things := left(before, after, dir, id)
		if has(after, own) {
			things = append(things, own)
		}
		if len(things) > 0 {
			return fmt.Errorf("there is\n%s", strings.Join(things, "\n"))
		}
		return nil
	})
}

// has reports whether a thing in an inventory begins so.
func has(things map[string]bool, begin string) bool {
	for thing := range things {
		if strings.HasPrefix(thing, begin) {
			return true
		}
	}
	return false
}

// sandboxes returns the processes of a daemon's sandboxes, sorted.
func sandboxes(t *testing.T, d *daemon.Daemon) []string {
	t.Helper()
	id := instance(t, d)
	var found []string
	for thing := range inventory(t) {
		if strings.HasPrefix(thing, "process ") && strings.Contains(thing, "/hangar-"+id+"/") && !strings.Contains(thing, " up ") {
			found = append(found, thing)
		}
	}
	slices.Sort(found)
	return found
}

var runDirectory = regexp.MustCompile(`/run/hangar-([0-9a-f]+)/`)

// instance returns the id that is in the name of everything that a daemon with a
// running Machine has on the server.
func instance(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	for thing := range inventory(t) {
		if found := runDirectory.FindStringSubmatch(thing); found != nil && strings.HasPrefix(thing, "process ") && strings.Contains(thing, d.Dir()+"/") {
			return found[1]
		}
	}
	t.Fatal("no process names the run directory of the daemon")
	return ""
}
