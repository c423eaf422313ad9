package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	writers      = 4 // who write at once, each its own Apps
	appsMost     = 5 // of one writer at once
	machinesMost = 4 // of one App at once
	namesMost    = 6 // of secrets, and of metadata keys
	writePause   = 20 * time.Millisecond
)

// value is what a key may have: the last acknowledged value, and those tried since without an
// answer. Empty: the key may be absent.
type value struct{ may []string }

// set records a write.
func (v *value) set(to string, err error) {
	if err == nil {
		v.may = []string{to}
	} else {
		v.may = append(v.may, to)
	}
}

// allows reports whether a key may have a value; empty: be absent.
func (v *value) allows(got string) bool {
	return len(v.may) == 0 && got == "" || slices.Contains(v.may, got)
}

// begun is the value of a key that was not there.
func begun() *value { return &value{may: []string{""}} }

// there is whether a thing exists.
type there int

const (
	unknown there = iota // a creation or destruction had no answer
	present
	absent
)

// machineFact is what one writer knows of a Machine.
type machineFact struct {
	ref   hangar.MachineRef
	name  string
	there there
	pairs map[string]*value
}

// appFact is what one writer knows of an App.
type appFact struct {
	name     hangar.AppName
	there    there
	leaving  bool // its destruction had no answer
	secrets  map[string]*value
	machines []*machineFact
	lost     map[string]bool // names of Machines whose creation had no answer
}

// writer writes its own things, one after the other, each by a random server. So what was
// acknowledged must be there.
type writer struct {
	c      *cluster
	number int
	random *rand.Rand
	config hangar.MachineConfig
	apps   []*appFact
	made   int // numbers what it makes
	health *health

	acknowledged, failed int
	stale                []string // answers that deny what was acknowledged before
}

// write does random things until ctx ends. One that is under way is finished.
func (w *writer) write(ctx context.Context) {
	for ctx.Err() == nil {
		w.one()
		_ = pause.For(ctx, writePause)
	}
}

// by picks a server. A call to one that is away fails.
func (w *writer) by() *server { return w.c.servers[w.random.IntN(len(w.c.servers))] }

// note counts an answer. One that says that something is not there which was acknowledged is wrong,
// whichever server gives it, unless that is cut off from another.
func (w *writer) note(s *server, what string, known there, err error) {
	if err == nil {
		w.acknowledged++
		return
	}
	w.failed++
	if known == present && hangar.CodeOf(err) == hangar.CodeNotFound && w.reachesAll(s) {
		w.stale = append(w.stale, fmt.Sprintf("%s by %s: %v", what, s, err))
	}
}

// reachesAll reports whether all ways from a server to others are whole.
func (w *writer) reachesAll(s *server) bool {
	for host := range w.c.servers {
		if _, whole := w.health.whole(way{s.number - 1, host}); !whole {
			return false
		}
	}
	return true
}

func (w *writer) one() {
	s := w.by()
	var usable []*appFact
	for _, a := range w.apps {
		if a.there == present {
			usable = append(usable, a)
		}
	}
	if len(usable) == 0 || w.random.IntN(12) == 0 && len(usable) < appsMost {
		w.createApp(s)
		return
	}
	a := usable[w.random.IntN(len(usable))]
	switch n := w.random.IntN(40); {
	case n == 0:
		w.destroyApp(s, a)
	case n < 16:
		w.setSecret(s, a)
	default:
		w.useMachine(s, a, n)
	}
}

func (w *writer) createApp(s *server) {
	w.made++
	a := &appFact{name: hangar.AppName(fmt.Sprintf("w%d-%d", w.number, w.made)), secrets: map[string]*value{}, lost: map[string]bool{}}
	w.apps = append(w.apps, a)
	_, err := s.client().CreateApp(w.c.Context(), hangar.AppCreate{Name: a.name, Org: hangar.OrgPersonal})
	if err == nil {
		a.there = present
	}
	w.note(s, "create the App "+string(a.name), absent, err)
}

func (w *writer) destroyApp(s *server, a *appFact) {
	err := s.client().DestroyApp(w.c.Context(), a.name, true)
	w.note(s, "destroy the App "+string(a.name), a.there, err)
	if a.there, a.leaving = unknown, err != nil; err == nil {
		a.there = absent
	}
}

func (w *writer) setSecret(s *server, a *appFact) {
	w.made++
	name, to := fmt.Sprintf("S%d", w.random.IntN(namesMost)), fmt.Sprint(w.made)
	if a.secrets[name] == nil {
		a.secrets[name] = begun()
	}
	_, err := s.client().SetSecrets(w.c.Context(), a.name, map[string]hangar.Sensitive{name: hangar.NewSensitive(to)})
	a.secrets[name].set(to, err)
	w.note(s, "set a secret of "+string(a.name), a.there, err)
}

func (w *writer) useMachine(s *server, a *appFact, n int) {
	var usable []*machineFact
	for _, m := range a.machines {
		if m.there == present {
			usable = append(usable, m)
		}
	}
	if len(usable) == 0 || n < 22 && len(usable) < machinesMost {
		w.createMachine(s, a)
		return
	}
	m := usable[w.random.IntN(len(usable))]
	if n < 24 {
		err := s.client().DestroyMachine(w.c.Context(), m.ref, hangar.MachineDestroy{Force: true})
		w.note(s, "destroy the Machine "+string(m.ref.ID), m.there, err)
		if m.there = unknown; err == nil {
			m.there = absent
		}
		return
	}
	w.made++
	key, to := fmt.Sprintf("k%d", w.random.IntN(namesMost)), fmt.Sprint(w.made)
	if m.pairs[key] == nil {
		m.pairs[key] = begun()
	}
	err := s.client().SetMachineMetadata(w.c.Context(), m.ref, hangar.MetadataPair{Key: key, Value: to})
	m.pairs[key].set(to, err)
	w.note(s, "set metadata of the Machine "+string(m.ref.ID), m.there, err)
}

func (w *writer) createMachine(s *server, a *appFact) {
	w.made++
	name := fmt.Sprintf("m%d", w.made)
	m, err := s.client().CreateMachine(w.c.Context(), a.name, hangar.MachineCreate{Name: name, SkipLaunch: true, Config: w.config})
	if err == nil {
		a.machines = append(a.machines, &machineFact{ref: m.Ref(), name: name, there: present, pairs: map[string]*value{}})
	} else {
		a.lost[name] = true
	}
	w.note(s, "create a Machine of "+string(a.name), a.there, err)
}

// writing is all writers at work.
type writing struct{ writers []*writer }

func newWriting(c *cluster, seed uint64, config hangar.MachineConfig) *writing {
	var w writing
	for n := range writers {
		w.writers = append(w.writers, &writer{c: c, number: n, random: rand.New(rand.NewPCG(seed, uint64(n)+10)), config: config})
	}
	return &w
}

// start lets them write until stop, which returns when nothing is under way.
func (w *writing) start(ctx context.Context, h *health) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, one := range w.writers {
		one.health = h
		all.Go(func() { one.write(ctx) })
	}
	return func() { cancel(); all.Wait() }
}

// settle returns when every App whose destruction had no answer is either gone or as good as
// before: an interrupted destruction is finished automatically.
func (w *writing) settle(c *cluster) {
	c.Helper()
	for _, wr := range w.writers {
		for _, a := range wr.apps {
			if !a.leaving {
				continue
			}
			c.await("the App "+string(a.name)+" is gone or whole", func() error {
				_, err := wr.by().client().SetSecrets(c.Context(), a.name, map[string]hangar.Sensitive{"WHOLE": hangar.NewSensitive("yes")})
				if hangar.CodeOf(err) == hangar.CodeNotFound {
					return nil
				}
				return err
			})
			a.leaving = false
		}
	}
}

// check compares what all servers show with what was acknowledged, and with each other.
func (w *writing) check(t *testing.T, c *cluster) {
	t.Helper()
	views := make([]*view, len(c.servers))
	for i, s := range c.servers {
		views[i] = viewOf(t, s)
	}
	for i, v := range views {
		for _, wr := range w.writers {
			for _, a := range wr.apps {
				v.compareApp(t, c.servers[i], a)
			}
		}
		v.unique(t, c.servers[i])
		if difference := views[0].differs(v); difference != "" {
			t.Errorf("%s and %s differ: %s", c.servers[0], c.servers[i], difference)
		}
	}
	for _, wr := range w.writers {
		for _, s := range wr.stale {
			t.Errorf("what was acknowledged is denied: %s", s)
		}
		wr.stale = nil
		wr.learn(views[0])
	}
}

// report returns how many writes were acknowledged, and how many were not, since the last report.
func (w *writing) report() string {
	acknowledged, failed := 0, 0
	for _, wr := range w.writers {
		acknowledged, failed = acknowledged+wr.acknowledged, failed+wr.failed
		wr.acknowledged, wr.failed = 0, 0
	}
	return fmt.Sprintf("%d writes acknowledged, %d without or with another answer", acknowledged, failed)
}

// learn makes what all servers agree on known where it was not, and forgets what is gone.
func (w *writer) learn(v *view) {
	w.apps = slices.DeleteFunc(w.apps, func(a *appFact) bool { return !v.apps[a.name] })
	for _, a := range w.apps {
		a.there = present
		shown := v.machines[a.name]
		a.machines = slices.DeleteFunc(a.machines, func(m *machineFact) bool { return shown[m.ref.ID] == nil })
		for _, m := range a.machines {
			m.there = present
			for key, v := range m.pairs {
				v.may = []string{shown[m.ref.ID].Config.Metadata[key]}
			}
		}
		for name, value := range a.secrets {
			value.may = []string{v.secrets[a.name][name]}
		}
	}
}
