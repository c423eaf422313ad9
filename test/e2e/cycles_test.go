package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// kept is what keeper answers.
type kept struct {
	ID     string `json:"id"`
	Steps  uint64 `json:"steps"`
	Memory string `json:"memory"`
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
}

// keeper is a keeper somewhere: in a Machine, or beside it.
type keeper struct {
	base string
	http *http.Client
}

func newKeeper(t *testing.T, addr string) *keeper {
	t.Helper()
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &keeper{base: "http://" + addr, http: &http.Client{Transport: transport, Timeout: stepPatience}}
}

// fatal asks for what the keeper does not survive. A sandbox that was killed says no
// goodbye to its clients.
func (k *keeper) fatal(path string, values url.Values) {
	short := *k
	short.http = &http.Client{Transport: k.http.Transport, Timeout: 5 * time.Second}
	_, _ = short.post(path, values)
}

// post asks for something, and returns the answer.
func (k *keeper) post(path string, values url.Values) (string, error) {
	res, err := k.http.PostForm(k.base+path, values)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}

func (k *keeper) step(n int) (kept, error) {
	body, err := k.post("/step", url.Values{"n": {fmt.Sprint(n)}})
	if err != nil {
		return kept{}, err
	}
	return parseKept(body)
}

func (k *keeper) state() (kept, error) {
	body, err := get(k.http, k.base+"/state")
	if err != nil {
		return kept{}, err
	}
	return parseKept(body)
}

func parseKept(body string) (s kept, err error) {
	err = json.Unmarshal([]byte(body), &s)
	return s, err
}

// twin runs a keeper on this host, to compare one in a Machine with.
func twin(t *testing.T, mb string) *keeper {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "keeper")
	buildKeeper(t, binary)
	port, lines := freePort(t), freePort(t)
	cmd := exec.Command(binary)
	cmd.Env = []string{"REMEMBER_PORT=" + port, "REMEMBER_LINES=" + lines, "REMEMBER_FILE=" + filepath.Join(dir, "kept"), "REMEMBER_MB=" + mb}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	k := newKeeper(t, net.JoinHostPort("127.0.0.1", port))
	until(t, "the twin", func() error {
		_, err := k.state()
		return err
	})
	return k
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// same fails unless both keepers kept the same, and the first is still who it was.
func same(t *testing.T, inside, outside kept, id string) {
	t.Helper()
	if inside.ID != id {
		t.Fatalf("it is another process: %s, not %s", inside.ID, id)
	}
	if inside.ID, outside.ID = "", ""; inside != outside {
		t.Fatalf("lost:\n got %+v\nwant %+v", inside, outside)
	}
}

// compareWithTwin lets the keeper in a Machine and one outside do the same.
func compareWithTwin(t *testing.T, m *machine) {
	t.Helper()
	inside, outside := newKeeper(t, m.addr(8080)), twin(t, "16")
	var is kept
	until(t, "state", func() (err error) {
		is, err = inside.state()
		return err
	})
	for range 10 {
		a, err := inside.step(20)
		if err != nil {
			t.Fatal(err)
		}
		b, err := outside.step(20)
		if err != nil {
			t.Fatal(err)
		}
		same(t, a, b, is.ID)
	}
}

// subject is a keeper in a Machine, with what it must keep.
type subject struct {
	*machine
	keeper *keeper
	twin   *keeper
	lines  session // a connection that stays
	id     string  // of the process
}

// newSubject waits for the program of a Machine, and begins its twin.
func newSubject(t *testing.T, m *machine) *subject {
	t.Helper()
	m.serves(t, 8080, "/state")
	s := &subject{machine: m, keeper: newKeeper(t, m.addr(8080)), twin: twin(t, "32"), lines: newLineSession(t, m.addr(7000), countLines)}
	state, err := s.keeper.state()
	if err != nil {
		t.Fatal(err)
	}
	s.id = state.ID
	return s
}

// work lets both do the same and compares them.
func (s *subject) work(t *testing.T, steps int) {
	t.Helper()
	inside, err := s.keeper.step(steps)
	if err != nil {
		t.Fatal(err)
	}
	outside, err := s.twin.step(steps)
	if err != nil {
		t.Fatal(err)
	}
	same(t, inside, outside, s.id)
}

// TestSuspendCyclesLoseNothing suspends and resumes a Machine again and again while
// its state changes in memory and on its root file system, and kills the daemon in
// between and in the middle. Only a kill in the middle of a resume may cost the
// memory, and then the event says so.
func TestSuspendCyclesLoseNothing(t *testing.T) {
	p := start(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ref := p.push(t, keeperImage(t), "keeper:1")
	m := p.run(t, "keeper", hangar.MachineConfig{Image: ref, Env: map[string]string{"REMEMBER_MB": "32"}})
	t.Cleanup(func() {
		if now, err := p.c.Machine(context.WithoutCancel(t.Context()), m.ref); t.Failed() && err == nil {
			t.Log(describe(now))
		}
	})
	s := newSubject(t, m)
	most, kills, cold := cycles(t, 200, 20), 0, 0
	for n := range most {
		s.work(t, 1+random.IntN(20))
		if random.IntN(8) == 0 {
			p.killAndUp(random)
			kills++
			s.work(t, 1)
		}
		if p.verbUnderKill(t, random, m, hangar.MachineSuspended) {
			kills++
		}
		if random.IntN(8) == 0 {
			p.killAndUp(random)
			kills++
		}
		answer := make(chan error, 1)
		go func() { answer <- s.lines.step() }()
		killed := p.verbUnderKill(t, random, m, hangar.MachineStarted)
		if killed {
			kills++
		}
		why := m.coldBoot(t)
		if why != "" && killed {
			t.Logf("cycle %d: %s", n, why)
			cold++
			<-answer // the connection is gone with the memory
			s = newSubject(t, m)
			continue
		}
		m.mustBeWarm(t)
		if err := <-answer; err != nil {
			t.Fatalf("cycle %d: line that was sent while suspended: %v", n, err)
		}
		s.work(t, 1)
	}
	t.Logf("%d cycles, %d kills of the daemon, %d cold boots that were announced", most, kills, cold)
}

// killAndUp kills the daemon while nothing is asked of it.
func (p *platform) killAndUp(random *rand.Rand) {
	p.d.Kill()
	if random.IntN(3) == 0 { // and again before it is ready
		p.d.UpAndKill(time.Duration(random.IntN(200)) * time.Millisecond)
	}
	p.d.Up()
}

// verbUnderKill suspends or resumes a Machine, and one time in six kills the daemon in the middle
// of that, and reports whether it did. A request without an answer is repeated.
func (p *platform) verbUnderKill(t *testing.T, random *rand.Rand, m *machine, want hangar.MachineState) (killed bool) {
	t.Helper()
	ask := func() error {
		if want == hangar.MachineSuspended {
			return p.c.SuspendMachine(t.Context(), m.ref)
		}
		_, err := p.c.StartMachine(t.Context(), m.ref)
		return err
	}
	if random.IntN(6) != 0 {
		if err := ask(); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		m.wait(t, want)
		return false
	}
	asked := make(chan error, 1)
	go func() { asked <- ask() }()
	after := time.Duration(random.IntN(120)) * time.Millisecond
	time.Sleep(after)
	p.d.Kill()
	err := <-asked
	p.d.Up()
	if err != nil && !lostDaemon(err) {
		t.Fatalf("%s: %v", want, err)
	}
	// An interrupted step is finished, or undone.
	state := m.wait(t, hangar.WaitSettled)
	t.Logf("killed %s after %s was asked for (%v): the Machine is %s", after, want, err, state)
	if state == want {
		return true
	}
	if err := ask(); err != nil {
		now, _ := p.c.Machine(t.Context(), m.ref)
		t.Fatalf("%s again, from %s: %v\n%s", want, state, err, describe(now))
	}
	m.wait(t, want)
	return true
}

// lostDaemon reports whether a call failed because the daemon was killed under it.
func lostDaemon(err error) bool {
	var network *net.OpError
	return hangar.CodeOf(err) == hangar.CodeUnavailable || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		strings.Contains(err.Error(), "connection re")
}
