package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
)

// members are the servers that have a member of the cluster state.
func (c *cluster) members(of ...*server) (list []*server) {
	for _, s := range of {
		if _, err := os.Stat(filepath.Join(s.dir(), "state", "member")); err == nil {
			list = append(list, s)
		}
	}
	return list
}

// awaitMembers returns when so many of some servers have a member of the state.
func (c *cluster) awaitMembers(n int, of ...*server) {
	c.Helper()
	c.await("members of the cluster state", func() error {
		if there := c.members(of...); len(there) != n {
			return fmt.Errorf("%s have one, and %d are to have", names(there...), n)
		}
		return nil
	})
}

// has fails the test unless each server knows an App, or none does.
func (c *cluster) has(app hangar.AppName, want bool, of ...*server) {
	c.Helper()
	for _, s := range of {
		if _, err := s.client().App(c.Context(), app); (err == nil) != want {
			c.Errorf("%s is asked for %s, which is there: %v; got %v", s, app, want, err)
		}
	}
}

// TestServersComeAndGo is the life of a platform, in the words of docs/cluster.md: servers join, at the same
// moment, are restarted and lost, and most of them are.
func TestServersComeAndGo(t *testing.T) {
	c := newCluster(t)
	first := c.add(1)
	c.startAll(first)
	first.createApp("begun", hangar.OrgPersonal)
	joining := []*server{c.add(2), c.add(3), c.add(4)}
	tokens := make([]string, len(joining))
	for i := range joining {
		tokens[i] = first.run("host", "token", "create")
	}
	c.refuses(joining[0], first, tokens[0])
	var all sync.WaitGroup
	for i, s := range joining {
		all.Go(func() {
			if out, err := s.join(first, tokens[i]); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	c.awaitAlive(c.servers...)
	c.awaitMembers(3, c.servers...)
	c.has("begun", true, c.servers...)

	// All at once, as after a power cut.
	for _, s := range c.servers {
		s.kill()
	}
	c.startAll(c.servers...)
	c.awaitAlive(c.servers...)
	c.has("begun", true, c.servers...)

	left := c.replace(first)
	c.restore(left)
	c.recover(left)
}

// refuses tries to join with tokens that are not the one, which has to fail, and must not use that up.
func (c *cluster) refuses(s, by *server, token string) {
	c.Helper()
	parts := strings.Split(token, "_")
	if len(parts) != 4 {
		c.Fatalf("the token has %d parts", len(parts))
	}
	changed := func(part int) string {
		other := slices.Clone(parts)
		last := len(other[part]) - 1
		letter := "a"
		if other[part][last] == 'a' {
			letter = "b"
		}
		other[part] = other[part][:last] + letter
		return strings.Join(other, "_")
	}
	for what, wrong := range map[string]string{"secret": changed(2), "id": changed(1), "fingerprint": changed(3)} {
		out, err := s.join(by, wrong)
		if err == nil || !strings.Contains(out, "the cluster does not let this server join") {
			c.Errorf("with a wrong %s: %v\n%s", what, err, out)
		}
		if s.pid() != 0 {
			c.Errorf("with a wrong %s the daemon runs on", what)
		}
	}
	if hosts := c.hosts(by); len(hosts) != 1 {
		c.Errorf("%d servers after no one has joined", len(hosts))
	}
}

// replace loses a server that holds the state, for good, and has another take its place, and a new one
// join. It returns those that there are then.
func (c *cluster) replace(first *server) (left []*server) {
	c.Helper()
	lost := c.members(c.servers[1:]...)[0]
	id := lost.id()
	lost.kill()
	left = c.others(lost)
	c.await("the lost server can be removed", func() error {
		_, err := first.command("host", "remove", string(id))
		return err
	})
	c.awaitAlive(left...)
	c.awaitMembers(3, left...)
	if out, err := lost.start(); err == nil || !strings.Contains(out, "removed") {
		c.Errorf("a server that was removed starts: %v\n%s", err, out)
	}
	next := c.add(5)
	if out, err := next.join(left[1], first.run("host", "token", "create")); err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
	left = append(left, next)
	c.awaitAlive(left...)
	c.has("begun", true, left...)
	return left
}

// restore goes back to a copy of the state.
func (c *cluster) restore(servers []*server) {
	c.Helper()
	first := servers[0]
	file := filepath.Join(c.TempDir(), "hangar-state")
	first.run("state", "backup", file)
	servers[1].createApp("later", hangar.OrgPersonal)
	c.has("later", true, servers...)
	for _, s := range servers {
		s.stop()
	}
	first.run("state", "restore", "--yes", file)
	c.startAll(first)
	c.startAll(servers[1:]...)
	c.awaitAlive(servers...)
	c.awaitMembers(3, servers...)
	c.has("begun", true, servers...)
	c.has("later", false, servers...)
}

// recover loses most of those that hold the state.
func (c *cluster) recover(servers []*server) {
	c.Helper()
	servers[1].createApp("kept", hangar.OrgPersonal)
	c.has("kept", true, servers...) // whichever of them is left
	members := c.members(servers...)
	chosen, lost := members[0], members[1:]
	ids := make([]hangar.HostID, len(lost))
	for i, s := range lost {
		ids[i] = s.id()
	}
	for _, s := range lost {
		s.kill()
	}
	c.has("kept", true, chosen) // reads are answered
	var left []*server
	for _, s := range servers {
		if !slices.Contains(lost, s) {
			left = append(left, s)
		}
	}
	chosen.stop()
	chosen.run("state", "recover", "--yes")
	c.startAll(chosen)
	for _, id := range ids {
		c.await("a lost server is suspect, and can be removed", func() error {
			_, err := chosen.command("host", "remove", "--force", string(id))
			return err
		})
	}
	for _, s := range left {
		if s != chosen {
			s.stop()
			c.startAll(s)
		}
	}
	c.awaitAlive(left...)
	c.has("begun", true, left...)
	c.has("kept", true, left...)
	for i, s := range left {
		s.createApp(hangar.AppName(fmt.Sprintf("after-%d", i)), hangar.OrgPersonal)
	}
}
