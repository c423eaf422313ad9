package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// idleConfig is what a Machine is like that is only there.
const idleConfig = `{"image":%q,"guest":{"cpus":1,"memory_mb":256}}`

// fault is something that happens to the servers, for some seconds.
type fault struct {
	name    string
	touches func(way) bool
	begin   func()
	end     func() // returns when what the test has done is undone
}

// TestFaults kills daemons and cuts the network between them at random, under load, and checks
// after each round that nothing was lost and that all has recovered by itself.
func TestFaults(t *testing.T) {
	seed := fromEnv(t, "CLUSTER_SEED", uint64(time.Now().UnixNano())>>1)
	rounds := fromEnv(t, "CLUSTER_ROUNDS", 6)
	servers := fromEnv(t, "CLUSTER_SERVERS", 3)
	repeat := fmt.Sprintf("CLUSTER_SEED=%d CLUSTER_ROUNDS=%d CLUSTER_SERVERS=%d", seed, rounds, servers)
	t.Log(repeat)
	defer func() {
		if t.Failed() {
			t.Logf("run again with %s", repeat)
		}
	}()
	c := startCluster(t, servers)
	image := c.pushWeb(hangar.OrgPersonal)
	const app = "faults"
	c.servers[0].createApp(app, hangar.OrgPersonal)
	machines := c.oneOnEach(app, parse(t, webConfig, image))
	visits, stop := startLoad(t, c, app, machines)
	c.awaitVisits(visits.visitor, app, machines)
	all := newWriting(c, seed, parse(t, idleConfig, image))
	random := rand.New(rand.NewPCG(seed, 1))
	var order []int
	for round := range rounds {
		if len(order) == 0 { // each kind comes once before one comes again
			order = random.Perm(len(kinds))
		}
		f := kinds[order[0]](c, random)
		order = order[1:]
		c.round(round, f, random, visits, all)
		if t.Failed() {
			return
		}
	}
	stop()
	t.Log(visits.report())
}

// round lets one fault happen while everyone is at work, and checks.
func (c *cluster) round(n int, f fault, random *rand.Rand, visits *load, all *writing) {
	c.Helper()
	lasts := time.Second + time.Duration(random.Int64N(int64(7*time.Second)))
	writing := all.start(c.Context(), &visits.health)
	_ = pause.For(c.Context(), time.Second)
	visits.health.breakThose(len(c.servers), f.touches)
	began := time.Now()
	f.begin()
	_ = pause.For(c.Context(), lasts)
	f.end()
	ended := time.Now()
	c.awaitAlive(c.servers...)
	c.awaitVisits(visits.visitor, visits.app, visits.machines)
	c.awaitWrites()
	normal := time.Since(ended)
	visits.health.heal()
	writing()
	all.settle(c)
	c.awaitRows()
	all.check(c.T, c)
	c.Logf("round %d, %s, %s for %s: back to normal %s later; %s; %s", n, began.Format("15:04:05.000"), f.name, ended.Sub(began).Round(time.Millisecond), normal.Round(time.Millisecond), visits.report(), all.report())
}

// awaitWrites returns when each server takes a write.
func (c *cluster) awaitWrites() {
	c.Helper()
	for _, s := range c.servers {
		c.await("a write by "+s.String(), func() error {
			_, err := s.client().SetSecrets(c.Context(), "faults", map[string]hangar.Sensitive{"BACK": hangar.NewSensitive(s.String())})
			return err
		})
	}
}

// awaitRows returns when all servers list the same Machines: hosts publish what was done last a moment
// later.
func (c *cluster) awaitRows() {
	c.Helper()
	c.await("all servers show the same", func() error {
		first := viewOf(c.T, c.servers[0])
		for _, s := range c.servers[1:] {
			if difference := first.differs(viewOf(c.T, s)); difference != "" {
				return fmt.Errorf("%s and %s differ: %s", c.servers[0], s, difference)
			}
		}
		return nil
	})
}

// of is for a fault that touches all ways from and to some servers.
func of(c *cluster, which ...*server) func(way) bool {
	return func(w way) bool {
		return slices.Contains(which, c.servers[w.edge]) || slices.Contains(which, c.servers[w.host])
	}
}

// apart is for a fault that touches the ways between servers, and none from a server to itself.
func apart(c *cluster, a, b []*server) func(way) bool {
	in := func(list []*server, i int) bool { return slices.Contains(list, c.servers[i]) }
	return func(w way) bool {
		return w.edge != w.host && (in(a, w.edge) && in(b, w.host) || in(b, w.edge) && in(a, w.host))
	}
}

func names(servers ...*server) string {
	var list []string
	for _, s := range servers {
		list = append(list, s.String())
	}
	return strings.Join(list, ", ")
}

// pick returns so many servers, in a random order.
func (c *cluster) pick(random *rand.Rand, n int) []*server {
	var list []*server
	for _, i := range random.Perm(len(c.servers))[:n] {
		list = append(list, c.servers[i])
	}
	return list
}

// others are all servers but those.
func (c *cluster) others(but ...*server) (list []*server) {
	for _, s := range c.servers {
		if !slices.Contains(but, s) {
			list = append(list, s)
		}
	}
	return list
}

// kinds are the faults that there are.
var kinds = []func(*cluster, *rand.Rand) fault{
	func(c *cluster, random *rand.Rand) fault { // one daemon, which is most often a member of the state
		s := c.pick(random, 1)
		return fault{"kill -9 of " + names(s...), of(c, s...), func() { s[0].kill() }, func() { c.startAll(s...) }}
	},
	func(c *cluster, random *rand.Rand) fault { // most members of the state at once
		s := c.pick(random, len(c.servers)/2+1)
		return fault{"kill -9 at once of " + names(s...), of(c, s...), func() {
			for _, one := range s {
				one.kill()
			}
		}, func() { c.startAll(s...) }}
	},
	func(c *cluster, random *rand.Rand) fault { // all members of the state, one after the other
		s := c.pick(random, len(c.servers))
		return fault{"kill -9 in turn of " + names(s...), of(c, s...), func() {
			for _, one := range s {
				one.kill()
				c.startAll(one)
			}
		}, func() {}}
	},
	func(c *cluster, random *rand.Rand) fault { // again and again, while it starts
		s := c.pick(random, 1)
		times := 2 + random.IntN(3)
		return fault{fmt.Sprintf("kill -9 %d times of %s", times, names(s...)), of(c, s...), func() {
			for range times {
				s[0].kill()
				c.startAll(s...)
			}
		}, func() {}}
	},
	func(c *cluster, random *rand.Rand) fault {
		s := c.pick(random, 1)
		rest := c.others(s...)
		return fault{names(s...) + " cut off", apart(c, s, rest), func() { s[0].drop(rest, both) }, func() { s[0].heal() }}
	},
	func(c *cluster, random *rand.Rand) fault {
		s := c.pick(random, 2)
		return fault{"cut between " + names(s...), apart(c, s[:1], s[1:]), func() { s[0].drop(s[1:], both) }, func() { s[0].heal() }}
	},
	func(c *cluster, random *rand.Rand) fault {
		s := c.pick(random, 2)
		return fault{names(s[0]) + " does not hear " + names(s[1]), apart(c, s[:1], s[1:]), func() { s[0].drop(s[1:], in) }, func() { s[0].heal() }}
	},
	func(c *cluster, random *rand.Rand) fault {
		s := c.pick(random, 1)
		rest := c.others(s...)
		return fault{names(s...) + " is not heard", apart(c, s, rest), func() { s[0].drop(rest, out) }, func() { s[0].heal() }}
	},
	func(c *cluster, random *rand.Rand) fault {
		s := c.pick(random, 1)
		rest := c.others(s...)
		return fault{names(s...) + " hears none", apart(c, s, rest), func() { s[0].drop(rest, in) }, func() { s[0].heal() }}
	},
	func(c *cluster, random *rand.Rand) fault { // no two reach each other
		return fault{"all cut off", apart(c, c.servers, c.servers), func() {
			for _, s := range c.servers {
				s.drop(c.others(s), in)
			}
		}, func() {
			for _, s := range c.servers {
				s.heal()
			}
		}}
	},
}

// direction is that of packets which are dropped.
type direction int

const (
	in direction = 1 << iota
	out
	both = in | out
)

// drop has a server drop all packets from or to others, without a word to anyone. The test still reaches
// it.
func (s *server) drop(others []*server, d direction) {
	var addresses []string
	for _, o := range others {
		addresses = append(addresses, o.address())
	}
	set := "{ " + strings.Join(addresses, ", ") + " }"
	rules := "table ip cut {\n"
	if d&in != 0 {
		rules += "chain hears { type filter hook input priority -300; ip saddr " + set + " drop; }\n"
	}
	if d&out != 0 {
		rules += "chain says { type filter hook output priority -300; ip daddr " + set + " drop; }\n"
	}
	s.nft(rules + "}\n")
}

// heal ends what drop has begun.
func (s *server) heal() { s.nft("delete table ip cut\n") }

func (s *server) nft(rules string) {
	cmd := s.inside(s.c.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.c.Errorf("nft at %s: %v\n%s", s, err, out)
	}
}
