package extensions

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/provider"
)

// mortal is a Store of a process that may be killed: from then on every call fails. A transaction at
// that moment may have happened or not.
type mortal struct {
	state.Store
	chance *rand.Rand
	left   int // calls until the process dies; less than 0: it does not
}

var errDead = errors.New("the process was killed")

// dies reports whether the process is dead, and counts a call.
func (m *mortal) dies() bool {
	if m.left > 0 {
		m.left--
	}
	return m.left == 0
}

func (m *mortal) Get(ctx context.Context, key string) (state.Item, error) {
	if m.dies() {
		return state.Item{}, errDead
	}
	return m.Store.Get(ctx, key)
}

func (m *mortal) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	if m.dies() {
		return state.Page{}, errDead
	}
	return m.Store.List(ctx, prefix, o)
}

func (m *mortal) Watch(ctx context.Context, prefix string, from state.Revision) iter.Seq2[state.Batch, error] {
	return m.Store.Watch(ctx, prefix, from)
}

func (m *mortal) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	wasDead := m.left == 0
	if m.dies() {
		if !wasDead && m.chance.IntN(2) == 0 {
			_, _ = m.Store.Txn(ctx, txn) // committed, but the caller does not learn of it
		}
		return 0, errDead
	}
	return m.Store.Txn(ctx, txn)
}

// TestModel provisions, changes, destroys and loses extensions at random, with a provider that
// misbehaves at random and a process that is killed at every step. In the end what customers see,
// what the state has and what the provider has are the same.
func TestModel(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, seed)
			for range 200 {
				m.act()
				m.check()
			}
			m.settle()
		})
	}
}

type model struct {
	*world
	chance *rand.Rand
	server *extensionstest.Server
	names  int
	flaky  *extensionstest.Flaky
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{world: newWorld(t), chance: rand.New(rand.NewPCG(seed, 1)), server: extensionstest.New(t)}
	m.flaky = extensionstest.NewFlaky(12, 0, rand.New(rand.NewPCG(seed, 2)))
	m.provider("logs", m.server, func(in *hangar.ProviderCreate) { in.Limits.PerOrg = 1000 })
	m.server.Configure(func(p provider.Provision) map[string]string {
		name := extensionstest.SecretOf(p.Name)
		return map[string]string{name + "_URL": "url", name + "_KEY": "key"}
	})
	m.server.Fault(m.flaky.Fault)
	return m
}

// act does one thing, in a process that is killed after some calls of the state, or is not.
func (m *model) act() {
	store := &mortal{Store: m.store, chance: m.chance, left: -1}
	if m.chance.IntN(3) > 0 {
		store.left = 1 + m.chance.IntN(40)
	}
	m.open(store)
	m.flaky.Broken.Store(m.chance.IntN(2) == 0)
	ctx := m.as(acme)
	name := fmt.Sprintf("ext-%d", m.names-m.chance.IntN(min(m.names, 4)+1))
	switch m.chance.IntN(8) {
	case 0, 1:
		m.names++
		_, _ = m.service.CreateExtension(ctx, "web", hangar.ExtensionCreate{Provider: "logs", Name: fmt.Sprintf("ext-%d", m.names)})
	case 2:
		_, _ = m.service.DestroyExtension(ctx, "web", name)
	case 3:
		plan := fmt.Sprint(m.chance.IntN(3))
		_, _ = m.service.UpdateExtension(ctx, "web", name, hangar.ExtensionUpdate{Plan: &plan})
	case 4:
		_, _ = m.service.RetryExtension(ctx, "web", name, hangar.ExtensionRetry{})
	case 5:
		m.clock.advance(time.Duration(m.chance.IntN(90)) * time.Minute)
	}
	for at := range m.refs() {
		if m.chance.IntN(2) == 0 {
			continue
		}
		for range 6 {
			a, err := m.work.step(m.t.Context(), at, state.Item{})
			if err != nil || a.never || a.failed || a.after > 0 {
				break
			}
			if m.chance.IntN(4) == 0 {
				break
			}
		}
	}
	m.open(m.store)
}

// check checks what holds at every moment.
func (m *model) check() {
	m.t.Helper()
	names := map[string]bool{}
	secrets := m.secrets(acme, "web")
	for at, r := range m.refs() {
		if names[r.Body.Name] {
			m.t.Errorf("two extensions are named %s", r.Body.Name)
		}
		names[r.Body.Name] = true
		key := extensionstest.SecretOf(r.Body.Name)
		_, url := secrets[key+"_URL"]
		_, token := secrets[key+"_KEY"]
		if live := r.Phase == phaseLive || r.Phase == phaseChange; url != live || token != live {
			m.t.Errorf("extension %v in phase %s has its secrets: %v, %v", at, r.Phase, url, token)
		}
		delete(secrets, key+"_URL")
		delete(secrets, key+"_KEY")
	}
	if len(secrets) != 0 {
		m.t.Errorf("secrets of no extension: %q", secrets)
	}
	known := m.refs()
	for id, e := range m.server.Extensions() {
		if _, ok := known[ref{acme, hangar.ExtensionID(id)}]; !ok {
			m.t.Errorf("an orphan at the provider: %+v", e)
		}
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// settle has everything come to rest, compares both sides, and destroys all.
func (m *model) settle() {
	m.t.Helper()
	m.flaky.Broken.Store(false)
	m.open(m.store)
	for range 4 {
		m.steps()
	}
	m.check()
	there := m.server.Extensions()
	for at, r := range m.refs() {
		if r.Phase != phaseLive && r.Phase != phaseFailed {
			m.t.Errorf("%v is still in phase %s: %s", at, r.Phase, r.Error)
		}
		e, ok := there[string(at.ID)]
		if r.Phase == phaseLive && (!ok || e.Remote != r.Remote || e.Plan != r.Body.Plan) {
			m.t.Errorf("the platform has %+v, the provider %+v", r, e)
		}
	}
	for _, r := range m.refs() {
		if _, err := m.service.DestroyExtension(m.as(acme), "web", r.Body.Name); err != nil {
			m.t.Error(err)
		}
	}
	m.steps()
	m.nothingLeft()
	if left := m.server.Extensions(); len(left) != 0 {
		m.t.Errorf("the provider still has %v", left)
	}
	if secrets := m.secrets(acme, "web"); len(secrets) != 0 {
		m.t.Errorf("secrets are left: %q", secrets)
	}
}
