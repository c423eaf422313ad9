package control_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
	members "github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
)

// TestRemovedHostKeepsNothing: what is reserved on a host goes with it, whether or not there is a row that can be read.
func TestRemovedHostKeepsNothing(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, p *plane, b *fakeHost){
		"while it makes the Machine": func(t *testing.T, p *plane, b *fakeHost) {
			b.onCreate = func(hangar.MachineSpec) (error, error) { b.setDown(true); return errDown, nil }
			_, err := p.Machines().CreateMachine(admin(t), "web", wish("db"))
			wantError(t, err, hangar.CodeUnavailable, "")
		},
		"before it has published the Machine": func(t *testing.T, p *plane, b *fakeHost) {
			b.publish = nil
			p.machine(t, "web", "db")
		},
		"with a row that cannot be read": func(t *testing.T, p *plane, _ *fakeHost) {
			m := p.machine(t, "web", "db")
			put := state.Put(state.HostsPrefix+"bbbbbbbb/machines/"+string(m.ID), []byte("{"))
			if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc")
			p := newPlane(t, state.NewMemory(), a, b)
			p.app(t, "web")
			of := func(self hangar.HostID) *members.Fleet {
				f := members.New(members.Config{Store: p.store, Rows: p.rows, Self: hangar.Host{ID: self}, Log: quiet, Now: p.clock.Now})
				if err := f.Register(t.Context()); err != nil {
					t.Fatal(err)
				}
				return f
			}
			of("bbbbbbbb")
			a.setDown(true) // so that b gets the Machine
			lose(t, p, b)
			a.setDown(false)
			if p.hosts = p.hosts[:1]; p.used(t, hangar.OrgPersonal, hangar.QuotaMachines) != 1 {
				t.Fatal("nothing is reserved")
			}
			p.restart(t)
			err := of("aaaaaaaa").RemoveHost(admin(t), "bbbbbbbb", hangar.HostRemoval{})
			wantError(t, err, hangar.CodeConflict, "") // it may have the Machine
			if err := of("aaaaaaaa").RemoveHost(admin(t), "bbbbbbbb", hangar.HostRemoval{Force: true}); err != nil {
				t.Fatal(err)
			}
			if n := p.used(t, hangar.OrgPersonal, hangar.QuotaMachines); n != 0 {
				t.Errorf("%d machines of the removed host are counted", n)
			}
			p.machine(t, "web", "db") // the name is free
			if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
				t.Error(err)
			}
		})
	}
}
