// Package cluster runs several real daemons on one machine, each in a network namespace of its own,
// and proves that they are one platform, whichever server is asked, and although servers are killed
// and the network between them is cut.
//
// The servers are those of examples/cluster.sh, with real Machines. A run is determined by its seed as
// far as the scheduler and the network allow; a failure prints it. CLUSTER_SEED, CLUSTER_ROUNDS and
// CLUSTER_SERVERS choose another run than the default.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	domain = "cluster.test" // as the script has it
	// patience bounds what must happen by itself, on a machine that does much else.
	patience = 2 * time.Minute
	// look is the pause between two looks at what has no event to wait for.
	look = 50 * time.Millisecond
)

// cluster is a platform of several servers.
type cluster struct {
	*testing.T

	dir, net, name string
	flags          string    // more, of `hangar up`
	servers        []*server // that were started once
}

// server is one of them.
type server struct {
	c      *cluster
	number int // from 1

	mu  sync.Mutex
	api *client.Client // nil until it is needed
}

// fromEnv reads a number from the environment.
func fromEnv[T ~int | ~uint64](t *testing.T, name string, otherwise T) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s=%q: must be a number", name, text)
	}
	return T(n)
}

// newCluster prepares a platform without servers. It is removed with the test, and must leave nothing.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: servers have network namespaces, and Machines")
	}
	if testing.Short() {
		t.Skip("it starts several servers")
	}
	// Short, because sockets live below it.
	dir, err := os.MkdirTemp("", "hgc") //nolint:usetesting // a TempDir is named after the test and too long
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		T: t, dir: dir, net: fmt.Sprintf("10.%d.%d", 213+rand.IntN(40), rand.IntN(256)), name: fmt.Sprintf("h%04x", rand.IntN(1<<16)),
	}
	before := remains()
	t.Cleanup(func() { c.down(before) })
	return c
}

// startCluster starts a platform of n servers, of which each knows that all are alive.
func startCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := newCluster(t)
	c.up(n)
	return c
}

// up starts n servers.
func (c *cluster) up(n int) {
	c.Helper()
	for i := range n {
		c.add(i + 1)
	}
	if out, err := c.script(nil, "up", strconv.Itoa(n)); err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
	c.awaitAlive(c.servers...)
}

// add makes a server known that was started.
func (c *cluster) add(number int) *server {
	s := &server{c: c, number: number}
	c.servers = append(c.servers, s)
	return s
}

// script runs examples/cluster.sh for this platform, and returns what it prints.
func (c *cluster) script(env []string, args ...string) (string, error) {
	path := filepath.Join("..", "..", "examples", "cluster.sh")
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null", "HANGAR="+daemon.Binary(c), "CLUSTER_DIR="+c.dir, "CLUSTER_NET="+c.net,
		"CLUSTER_NAME="+c.name, "CLUSTER_DOMAIN="+domain, "CLUSTER_FLAGS=--quota apps=unlimited,machines=unlimited "+c.flags)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cluster.sh %s: %w", strings.Join(args, " "), err)
	}
	return string(out), err
}

// down removes the platform, and fails the test if anything is left that was not there before.
func (c *cluster) down(before map[string]bool) {
	if c.Failed() {
		for _, s := range c.servers {
			c.Logf("the end of the log of %s:\n%s", s, s.tail())
		}
	}
	for _, s := range c.servers {
		s.mu.Lock()
		if s.api != nil {
			s.api.Close()
		}
		s.mu.Unlock()
	}
	if out, err := c.script(nil, "down"); err != nil {
		c.Errorf("%v\n%s", err, out)
	}
	ctx := context.WithoutCancel(c.Context())
	var left []string
	for began := time.Now(); time.Since(began) < 20*time.Second; _ = pause.For(ctx, look) {
		left = c.left(before)
		if len(left) == 0 {
			return
		}
	}
	for _, thing := range left {
		c.Errorf("left behind: %s", thing)
	}
}

// String is what a server is called.
func (s *server) String() string { return s.c.name + strconv.Itoa(s.number) }

func (s *server) dir() string     { return filepath.Join(s.c.dir, strconv.Itoa(s.number)) }
func (s *server) address() string { return fmt.Sprintf("%s.%d", s.c.net, 10+s.number) }
func (s *server) url() string     { return "http://" + s.address() + ":4280" }
func (s *server) door() string    { return s.address() + ":4281" } // for other servers

// read returns a file of the data directory, without the space around it.
func (s *server) read(name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(s.dir(), name))
	return strings.TrimSpace(string(raw)), err
}

// token is that of the administrator, which is the server's own.
func (s *server) token() string {
	s.c.Helper()
	token, err := s.read("admin.token")
	if err != nil {
		s.c.Fatal(err)
	}
	return token
}

// id is the server's as a host.
func (s *server) id() hangar.HostID {
	s.c.Helper()
	for _, h := range s.c.hosts(s.c.servers...) {
		if h.Name == s.String() {
			return h.ID
		}
	}
	s.c.Fatalf("no host is called %s", s)
	return ""
}

// client calls the API of this server. A call that has no answer in time fails.
func (s *server) client() *client.Client {
	s.c.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.api == nil {
		s.api = client.New(s.url(), s.token(), client.WithHTTPClient(&http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 30 * time.Second,
		}))
	}
	return s.api
}

// hosts are those of the platform as the first server says that answers.
func (c *cluster) hosts(of ...*server) []hangar.Host {
	c.Helper()
	var errs []error
	for _, s := range of {
		hosts, err := s.client().Hosts(c.Context())
		if err == nil {
			return hosts
		}
		errs = append(errs, err)
	}
	c.Fatal(errors.Join(errs...))
	return nil
}

// pid is the process of the daemon; 0: it does not run.
func (s *server) pid() int {
	text, err := s.read("lock")
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	args, err := os.ReadFile(filepath.Join("/proc", text, "cmdline"))
	if err != nil || !bytes.Contains(args, []byte("\x00"+s.dir()+"\x00")) {
		return 0
	}
	return pid
}

// kill ends the daemon with SIGKILL, and returns when it has ended.
func (s *server) kill() { s.end(syscall.SIGKILL) }

// stop ends the daemon as its init system does.
func (s *server) stop() { s.end(syscall.SIGTERM) }

func (s *server) end(sig syscall.Signal) {
	pid := s.pid()
	if pid == 0 {
		s.c.Errorf("the daemon of %s does not run:\n%s", s, s.tail())
		return
	}
	if err := syscall.Kill(pid, sig); err != nil {
		s.c.Error(err)
	}
	for began := time.Now(); s.pid() == pid; _ = pause.For(s.c.Context(), 5*time.Millisecond) {
		if time.Since(began) > time.Minute {
			s.c.Errorf("the daemon of %s does not end on %s", s, sig)
			return
		}
	}
}

// start starts the daemon and returns when it serves, with what it said.
func (s *server) start(flags ...string) (string, error) {
	return s.c.script(nil, append([]string{"start", strconv.Itoa(s.number)}, flags...)...)
}

// join starts a daemon that has no platform yet, which joins another's.
func (s *server) join(by *server, token string) (string, error) {
	return s.c.script([]string{"HANGAR_JOIN_TOKEN=" + token}, "start", strconv.Itoa(s.number), "--join", "https://"+by.door())
}

// startAll starts daemons side by side, as after a power cut.
func (c *cluster) startAll(servers ...*server) {
	c.Helper()
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() {
			if out, err := s.start(); err != nil {
				c.Errorf("%v\n%s", err, out)
			}
		})
	}
	all.Wait()
}

// tail is the end of what the daemon said.
func (s *server) tail() string {
	const most = 12 << 10
	text, err := s.read("daemon.log")
	if err != nil {
		return err.Error()
	}
	return text[max(0, len(text)-most):]
}

// command runs the hangar command of this server, as its administrator would.
func (s *server) command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.c.Context(), patience)
	defer cancel()
	cmd := s.inside(ctx, daemon.Binary(s.c), args...)
	cmd.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null", "HANGAR_DIR="+s.dir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("hangar %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// run is command for one that must not fail.
func (s *server) run(args ...string) string {
	s.c.Helper()
	out, err := s.command(args...)
	if err != nil {
		s.c.Fatal(err)
	}
	return out
}

// inside is a command in the network of the server.
func (s *server) inside(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + s.String(), "--", program}, args...)...)
}

// await looks until something is true, and fails the test when that takes too long. why says what is
// missing.
func (c *cluster) await(what string, true func() (why error)) time.Duration {
	c.Helper()
	began := time.Now()
	for {
		err := true()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > patience {
			c.Fatalf("%s: not after %s: %v", what, patience, err)
		}
		if pause.For(c.Context(), look) != nil {
			c.Fatal("the test has ended")
		}
	}
}

// awaitAlive returns when each of some servers knows that all of these are alive, and only these are
// there.
func (c *cluster) awaitAlive(servers ...*server) time.Duration {
	c.Helper()
	return c.await("all servers are alive", func() error {
		for _, s := range servers {
			hosts, err := s.client().Hosts(c.Context())
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			if len(hosts) != len(servers) {
				return fmt.Errorf("%s knows of %d servers", s, len(hosts))
			}
			for _, h := range hosts {
				if h.State != hangar.HostAlive {
					return fmt.Errorf("%s: %s is %s", s, h.Name, h.State)
				}
			}
		}
		return nil
	})
}
