package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func ids(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

func started(n int, change ...func(*Machine)) Machine {
	m := Machine{ID: ids(n), Group: "web", State: hangar.MachineStarted}
	for _, c := range change {
		c(&m)
	}
	return m
}

func current(m *Machine)  { m.Current = true }
func cordoned(m *Machine) { m.Cordoned = true }
func stopped(m *Machine)  { m.State = hangar.MachineStopped }
func crashed(m *Machine)  { m.State, m.Crashed = hangar.MachineStopped, true }
func green(of int) func(*Machine) {
	return func(m *Machine) { m.Replaces = ids(of) }
}

// text returns a plan in short form, one stage per line.
func text(p *Plan) string {
	var lines []string
	for _, stage := range p.Stages {
		var words []string
		for _, s := range stage {
			word := strings.TrimSpace(string(s.Kind) + " " + s.Slot + strings.TrimLeft(string(s.Machine), "0"))
			if s.Await {
				word += "!"
			}
			words = append(words, word)
		}
		lines = append(lines, strings.Join(words, ", "))
	}
	return strings.Join(lines, "\n")
}

func TestPlans(t *testing.T) {
	t.Parallel()
	one := func(int) int { return 1 }
	for name, test := range map[string]struct {
		strategy hangar.ReleaseStrategy
		group    Group
		command  bool
		here     []Machine
		want     string
	}{
		"spare": {
			hangar.StrategyRolling,
			Group{Count: 1},
			false,
			[]Machine{started(1, current, func(m *Machine) { m.Spare = true }), started(2, current, stopped), started(3, current, func(m *Machine) { m.Spare = true })},
			"retire 3, retire 1\nstop 3, stop 1\ndestroy 3, destroy 1",
		},
		"first": {hangar.StrategyRolling, Group{Count: -1}, true, nil, "release command\ncreate web/1!"},
		"rolling": {
			hangar.StrategyRolling,
			Group{Count: -1, Unavailable: func(n int) int { return n / 2 }},
			false,
			[]Machine{started(1), started(2), started(3, stopped), started(4, crashed)},
			"update 4!\nupdate 1!, update 2!\nupdate 3",
		},
		"one at a time": {hangar.StrategyRollingOne, Group{Count: -1, Unavailable: func(int) int { return 9 }}, false, []Machine{started(1), started(2)}, "update 1!\nupdate 2!"},
		"taken up":      {hangar.StrategyRolling, Group{Count: -1, Unavailable: one}, false, []Machine{started(1, current), started(2)}, "check 1\nupdate 2!"},
		"nothing to do": {hangar.StrategyRolling, Group{Count: -1}, true, []Machine{started(1, current)}, "check 1"},
		"more":          {hangar.StrategyRolling, Group{Count: 3}, false, []Machine{started(1)}, "create web/1!, create web/2!\nupdate 1!"},
		"fewer":         {hangar.StrategyRolling, Group{Count: 1}, false, []Machine{started(1), started(2), started(3, stopped)}, "update 1!\nretire 2\nstop 2\ndestroy 3, destroy 2"},
		"none":          {hangar.StrategyRolling, Group{Count: 0}, false, []Machine{started(1)}, "retire 1\nstop 1\ndestroy 1"},
		"immediate":     {hangar.StrategyImmediate, Group{Count: 3}, false, []Machine{started(1), started(2, stopped)}, "create web/1, update 1, update 2"},
		"canary": {
			hangar.StrategyCanary,
			Group{Count: -1},
			false,
			[]Machine{started(1), started(2)},
			"create web/canary!\nupdate 1!\nupdate 2!\nretire web/canary\nstop web/canary\ndestroy web/canary",
		},
		"canary left behind": {
			hangar.StrategyRolling,
			Group{Count: -1},
			false,
			[]Machine{started(1, current), started(2, func(m *Machine) { m.Temporary = true })},
			"destroy 2\ncheck 1",
		},
		"blue and green": {
			hangar.StrategyBlueGreen,
			Group{Count: -1},
			true,
			[]Machine{started(1), started(2)},
			"release command\ncreate web/1!, create web/2!\nuncordon web/1, uncordon web/2\nretire 1, retire 2\nstop 1, stop 2\ndestroy 1, destroy 2",
		},
		"green never served": {
			hangar.StrategyBlueGreen,
			Group{Count: -1},
			false,
			[]Machine{started(1), started(2, cordoned, green(1))},
			"destroy 2\ncreate web/1!\nuncordon web/1\nretire 1\nstop 1\ndestroy 1",
		},
		"green is right": {
			hangar.StrategyBlueGreen,
			Group{Count: -1},
			false,
			[]Machine{started(1), started(2, cordoned, green(1), current)},
			"check 2\nuncordon 2\nretire 1\nstop 1\ndestroy 1",
		},
		"green serves, another release": {
			hangar.StrategyRolling,
			Group{Count: -1},
			false,
			[]Machine{started(1, cordoned), started(2, green(1))},
			"update 2!\nretire 1\nstop 1\ndestroy 1",
		},
		"standbys": {hangar.StrategyRolling, Group{Count: 1, Standbys: 1}, false, []Machine{started(1)}, "update 1!\ncreate web/1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.group.Name = "web"
			p, err := Make(test.here, Target{Strategy: test.strategy, Groups: []Group{test.group}, ReleaseCommand: test.command})
			if err != nil {
				t.Fatal(err)
			}
			if got := text(p); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	if _, err := Make(nil, Target{Strategy: hangar.StrategyBlueGreen, Groups: []Group{{Name: "web", Volumes: true}}}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("volumes: %v", err)
	}
}

// world has Machines whose deploys are interrupted at any step.
type world struct {
	t        *testing.T
	machines map[hangar.MachineID]*Machine
	next     int
	least    int // the minimum number of Machines that serve at any time
}

func (w *world) list() []Machine {
	var list []Machine
	for n := range w.next + 1 {
		if m := w.machines[ids(n)]; m != nil {
			list = append(list, *m)
		}
	}
	return list
}

func (w *world) serving() int {
	n := 0
	for _, m := range w.machines {
		if m.State == hangar.MachineStarted && !m.Cordoned && !m.Standby {
			n++
		}
	}
	return n
}

func (w *world) look() { w.least = min(w.least, w.serving()) }

// run executes a plan until a number of steps has begun; -1: to its end. During a stage, the Machines
// that it updates do not serve.
func (w *world) run(p *Plan, steps int) {
	slots := map[string]hangar.MachineID{}
	for _, stage := range p.Stages {
		var back []*Machine
		for _, s := range stage {
			if steps == 0 {
				break
			}
			steps--
			id := s.Machine
			if s.Slot != "" && s.Kind != Create {
				id = slots[s.Slot]
			}
			m := w.machines[id]
			if m == nil && s.Kind != Create && s.Kind != Release {
				w.t.Fatalf("%s: there is no such Machine", s)
			}
			switch s.Kind {
			case Create:
				w.next++
				m = &Machine{ID: ids(w.next), Group: s.Group, Current: true, Cordoned: s.Cordoned, Temporary: s.Canary, Standby: s.Standby, Replaces: s.Replaces}
				slots[s.Slot], w.machines[m.ID] = m.ID, m
				m.State = hangar.MachineStopped
				if !s.Standby {
					back = append(back, m)
				}
			case Update:
				m.Current = true
				if m.runs() || s.Start {
					m.State = hangar.MachineStopped
					back = append(back, m)
				}
			case Start:
				back = append(back, m)
			case Uncordon:
				m.Cordoned = false
			case Retire:
				m.Retired, m.Cordoned = true, true
			case Stop:
				m.State = hangar.MachineStopped
			case Destroy:
				delete(w.machines, id)
			}
			w.look()
		}
		// A step in progress continues after the deploy was killed.
		for _, m := range back {
			m.State, m.Crashed = hangar.MachineStarted, false
		}
		w.look()
		if steps == 0 {
			return
		}
	}
}

// TestInterruptedDeploysContinue interrupts deploys of all strategies at any step, repeatedly, and may continue
// with another release. At no time do fewer Machines serve than the strategy allows, and a deploy that
// completes leaves exactly the wanted Machines.
func TestInterruptedDeploysContinue(t *testing.T) {
	t.Parallel()
	strategies := []hangar.ReleaseStrategy{
		hangar.StrategyRolling, hangar.StrategyRollingOne, hangar.StrategyCanary, hangar.StrategyBlueGreen, hangar.StrategyImmediate,
	}
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := &world{t: t, machines: map[hangar.MachineID]*Machine{}}
		count := 1 + random.IntN(5)
		for range count {
			w.next++
			m := started(w.next)
			w.machines[m.ID] = &m
		}
		unavailable := 1 + random.IntN(2)
		group := Group{Name: "web", Count: -1, Standbys: random.IntN(2), Unavailable: func(int) int { return unavailable }}
		for round := range 6 {
			if round > 0 && random.IntN(3) == 0 { // another release
				for _, m := range w.machines {
					m.Current = false
				}
			}
			target := Target{Strategy: strategies[random.IntN(len(strategies))], Groups: []Group{group}}
			p, err := Make(w.list(), target)
			if err != nil {
				t.Fatal(err)
			}
			w.least = w.serving()
			before := min(w.serving(), count)
			end := random.IntN(12)
			if round == 5 {
				end = -1
			}
			w.run(p, end)
			allowed := map[hangar.ReleaseStrategy]int{hangar.StrategyRolling: unavailable, hangar.StrategyRollingOne: 1, hangar.StrategyCanary: unavailable, hangar.StrategyBlueGreen: 0}
			if away, bounded := allowed[target.Strategy]; bounded && w.least < before-away {
				t.Fatalf("seed %d, round %d, %s: %d of %d serve\n%s", seed, round, target.Strategy, w.least, before, text(p))
			}
		}
		standbys := 0
		for _, m := range w.machines {
			if m.Standby {
				standbys++
			}
			if !m.Current || m.Temporary || m.Cordoned || !m.Standby && m.State != hangar.MachineStarted {
				t.Fatalf("seed %d: %+v is left", seed, *m)
			}
		}
		if len(w.machines)-standbys != count || standbys != group.Standbys {
			t.Fatalf("seed %d: %d Machines and %d standbys, not %d and %d", seed, len(w.machines)-standbys, standbys, count, group.Standbys)
		}
		if p, err := Make(w.list(), Target{Strategy: hangar.StrategyRolling, Groups: []Group{group}, ReleaseCommand: true}); err != nil || p.Changes() {
			t.Fatalf("seed %d: %v, and the plan is not complete:\n%s", seed, err, text(p))
		}
	}
}
