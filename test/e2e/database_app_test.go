package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
)

// notes is the App of examples/database: Machines that each have a copy of a database and elect their primary.
type notes struct {
	p        *platform
	machines []*machine
	front    string // address of the edge

	mu      sync.Mutex
	acked   map[string]bool // what was answered with 201
	refused int             // requests, which is no fault: the primary is changing
	faults  int             // of databases that could not be read
}

// runNotes starts the App, whose nodes have these lines in their configuration beside those of the example.
func runNotes(t *testing.T, lines string) *notes {
	t.Helper()
	p := start(t)
	example, err := filepath.Abs("../../examples/database")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(example, "litefs.yml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "litefs.yml")
	if err := os.WriteFile(file, append(config, lines...), 0o600); err != nil {
		t.Fatal(err)
	}
	front, _ := p.publish(t)
	n := &notes{p: p, front: front, acked: map[string]bool{}}
	image := p.push(t, build(t, python().recipe), "python:1")
	for i := range 3 {
		name := fmt.Sprint("n", i+1)
		p.d.Run("volumes", "create", string(app), "data", "--size", "1")
		p.d.Run("machine", "run", string(app), image, "--name", name, "--volume", "data:/data", "--port", "80:8080",
			"--db", file, "--file-local", "/app.py="+filepath.Join(example, "app.py"), "--", "python3", "/app.py")
	}
	all, err := p.c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		n.machines = append(n.machines, &machine{p: p, ref: m.Ref(), ip: m.PrivateIP.String()})
	}
	if len(n.machines) != 3 {
		t.Fatalf("%d Machines", len(n.machines))
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range n.machines {
				page, _ := p.c.Logs(context.WithoutCancel(t.Context()), app, hangar.LogQuery{Instance: m.ref.ID, Limit: 40})
				for _, e := range page.Entries {
					t.Logf("%s | %s", m.ref.ID, e.Message)
				}
			}
		}
	})
	return n
}

// errRefused is an answer that says that the note was not, or may not have been, kept.
var errRefused = errors.New("refused")

// user is a client of the App by the edge, with a jar of cookies.
type user struct {
	n *notes
	c *http.Client
}

func (n *notes) user(t *testing.T) *user {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	u := &user{n: n, c: &http.Client{Jar: jar, Timeout: 20 * time.Second, Transport: &viaEdge{n.front, &http.Transport{DisableKeepAlives: true}}}}
	t.Cleanup(u.c.CloseIdleConnections)
	return u
}

// viaEdge sends requests for the name of the App to the edge.
type viaEdge struct {
	address string
	next    *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (v *viaEdge) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host, r.URL.Host = r.URL.Host, v.address
	return v.next.RoundTrip(r)
}

func (u *user) ask(ctx context.Context, method, text string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+edgeHost+"/", strings.NewReader(text))
	if err != nil {
		return "", err
	}
	res, err := u.c.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%w: %s: %.200s", errRefused, res.Status, body)
	}
	return string(body), err
}

// write keeps a note, and reads it back.
func (u *user) write(ctx context.Context, text string) error {
	if _, err := u.ask(ctx, http.MethodPost, text); err != nil {
		return err
	}
	u.n.mu.Lock()
	u.n.acked[text] = true
	u.n.mu.Unlock()
	list, err := u.ask(ctx, http.MethodGet, "")
	if err != nil {
		return err
	}
	if !hasNote(list, text) {
		return fmt.Errorf("%w: %q is not among %d notes: %.100q", errLost, text, strings.Count(list, "\n"), list)
	}
	return nil
}

// errLost says that a client does not read what it wrote.
var errLost = errors.New("own write is not read")

func hasNote(list, text string) bool { return strings.Contains(list, " "+text+"\n") }

// failed counts a request that was refused, and logs some. A database that cannot be read is a fault, whichever node is the primary.
func (n *notes) failed(t *testing.T, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, fault := range []string{"SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_PROTOCOL"} {
		if n.faults < 10 && strings.Contains(err.Error(), fault) {
			n.faults++
			t.Error(err)
		}
	}
	if n.refused++; n.refused%20 == 1 {
		t.Logf("refused for the %d. time: %v", n.refused, err)
	}
}

func (n *notes) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.acked)
}

// progress waits until some more notes are kept.
func (n *notes) progress(t *testing.T, more int) {
	t.Helper()
	from := n.count()
	until(t, "notes", func() error {
		if now := n.count(); now < from+more {
			return fmt.Errorf("%d of %d", now-from, more)
		}
		return nil
	})
}

// primary returns the Machine whose node is the primary.
func (n *notes) primary(t *testing.T) *machine {
	t.Helper()
	var found *machine
	until(t, "a primary", func() error {
		for _, m := range n.machines {
			out, err := get(&http.Client{Timeout: 5 * time.Second}, "http://"+m.addr(20202)+"/info")
			if err == nil && strings.Contains(strings.ReplaceAll(out, " ", ""), `"isPrimary":true`) {
				found = m
				return nil
			}
		}
		return errors.New("no node says so")
	})
	return found
}

// TestDatabaseApp writes to an App of three Machines by the edge while its primary is killed, suspended, woken, and
// updated. With sync, nothing that was acknowledged is lost; clients read what they wrote all the time.
func TestDatabaseApp(t *testing.T) {
	n := runNotes(t, "sync: 1\n")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	for w := range 3 {
		u := n.user(t)
		group.Go(func() error {
			for i := 0; ctx.Err() == nil; i++ {
				switch err := u.write(ctx, fmt.Sprintf("note %d of %d", i, w)); {
				case errors.Is(err, errLost):
					t.Error(err)
				case err != nil:
					n.failed(t, err)
					time.Sleep(50 * time.Millisecond) // the primary is changing
				}
			}
			return nil
		})
	}
	n.progress(t, 20)
	for _, event := range []struct {
		name string
		do   func(t *testing.T, m *machine)
	}{
		{"killed", func(t *testing.T, m *machine) {
			m.killSandbox(t)
			n.progress(t, 20)
			m.wait(t, hangar.MachineStopped, hangar.MachineStarted)
			if m.wait(t, hangar.WaitSettled) != hangar.MachineStarted {
				m.start(t)
			}
		}},
		{"suspended and woken", func(t *testing.T, m *machine) {
			m.suspend(t)
			n.progress(t, 20)
			m.resume(t)
		}},
		{"updated", func(t *testing.T, m *machine) {
			now, err := n.p.c.Machine(t.Context(), m.ref)
			if err != nil {
				t.Fatal(err)
			}
			now.Config.Env = map[string]string{"VERSION": "2"}
			if _, err := n.p.c.UpdateMachine(t.Context(), m.ref, hangar.MachineUpdate{Config: now.Config}); err != nil {
				t.Fatal(err)
			}
			m.wait(t, hangar.MachineStarted)
		}},
	} {
		before, began := n.count(), time.Now()
		m := n.primary(t)
		event.do(t, m)
		n.progress(t, 20)
		t.Logf("primary %s %s: %d notes in %s", m.ref.ID, event.name, n.count()-before, time.Since(began).Round(time.Second))
	}
	stop()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	n.mustHaveAll(t, 0)
}

// mustHaveAll waits until every Machine has the same notes, and sees that no more than some of what was acknowledged is
// missing.
func (n *notes) mustHaveAll(t *testing.T, mayMiss int) {
	t.Helper()
	u := n.user(t)
	until(t, "a last note", func() error {
		_, err := u.ask(t.Context(), http.MethodPost, "the last")
		return err
	})
	var lists []string
	for _, m := range n.machines {
		var list string
		until(t, "the last note in "+string(m.ref.ID), func() error {
			var err error
			list, err = get(http.DefaultClient, "http://"+m.addr(8080)+"/")
			if err == nil && !hasNote(list, "the last") {
				err = errors.New("it is not there")
			}
			return err
		})
		lists = append(lists, list)
	}
	var lost []string
	for text := range n.acked {
		if !hasNote(lists[0], text) {
			lost = append(lost, text)
		}
	}
	t.Logf("%d notes acknowledged, %d in the database, %d lost", len(n.acked), strings.Count(lists[0], "\n"), len(lost))
	if len(lost) > mayMiss {
		t.Errorf("%d of %d acknowledged notes are lost, such as %q", len(lost), len(n.acked), lost[0])
	}
	for i, list := range lists {
		if list != lists[0] {
			t.Errorf("Machine %s has other notes than %s", n.machines[i].ref.ID, n.machines[0].ref.ID)
		}
	}
}

// TestDatabaseAppWithoutSync kills the primary: no more is lost than what no replica had received.
func TestDatabaseAppWithoutSync(t *testing.T) {
	if short() {
		t.Skip("takes minutes")
	}
	n := runNotes(t, "")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	u := n.user(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := u.ask(ctx, http.MethodPost, fmt.Sprint("note ", i)); err != nil {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			n.mu.Lock()
			n.acked[fmt.Sprint("note ", i)] = true
			n.mu.Unlock()
		}
	}()
	n.progress(t, 30)
	m := n.primary(t)
	m.killSandbox(t)
	n.progress(t, 20)
	m.wait(t, hangar.MachineStopped, hangar.MachineStarted)
	if m.wait(t, hangar.WaitSettled) != hangar.MachineStarted {
		m.start(t)
	}
	stop()
	<-done
	n.mustHaveAll(t, 1) // of the one client, that waits for each answer
}
