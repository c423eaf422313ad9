package control_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
)

// A fault is what becomes of one step: of a transaction, or a call of a host.
type fault string

const (
	refused    fault = "refused"           // it was not done
	lost       fault = "done, answer lost" // it was done, without an answer
	callerGone fault = "done, caller gone" // the caller disconnects when it was done
	killed     fault = "done, as the last" // nothing else can be done until the next start
)

// faults has a fault at one step.
type faults struct {
	mu    sync.Mutex // guards left
	fault fault
	left  int // steps until then; 0: there is none; negative: all are refused
	leave context.CancelFunc
}

// arm has a fault at the nth step from now on.
func (f *faults) arm(what fault, n int, leave context.CancelFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.left, f.leave = what, n, leave
}

// disarm ends the fault, and reports whether there were so many steps.
func (f *faults) disarm() (hit bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hit, f.left = f.left <= 0, 0
	return hit
}

// next reports what becomes of the next step.
func (f *faults) next() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left < 0 {
		return refused
	}
	if f.left == 0 {
		return ""
	}
	if f.left--; f.left > 0 {
		return ""
	}
	if f.fault == killed {
		f.left = -1
	}
	return f.fault
}

// try takes a step, whose error is away where there is no answer.
func try[T any](f *faults, away error, do func() (T, error)) (T, error) {
	var none T
	now := f.next()
	if now == refused {
		return none, away
	}
	v, err := do()
	switch now {
	case lost:
		return none, away
	case callerGone:
		f.leave()
	}
	return v, err
}

// faultyStore is a state whose transactions are steps.
type faultyStore struct {
	state.Store
	*faults
}

func (s faultyStore) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	return try(s.faults, errors.New("no answer"), func() (state.Revision, error) { return s.Store.Txn(ctx, txn) })
}

// faultyAgents are hosts of which calls are steps.
type faultyAgents struct {
	hangar.Agents
	*faults
}

func (a faultyAgents) Agent(id hangar.HostID) (hangar.Agent, error) {
	agent, err := a.Agents.Agent(id)
	return faultyAgent{agent, a.faults}, err
}

type faultyAgent struct {
	hangar.Agent
	*faults
}

func (a faultyAgent) CreateMachine(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	return try(a.faults, errDown, func() (*hangar.Machine, error) { return a.Agent.CreateMachine(ctx, spec) })
}

func (a faultyAgent) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	return try(a.faults, errDown, func() (*hangar.Machine, error) { return a.Agent.UpdateMachine(ctx, ref, in) })
}

func (a faultyAgent) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	_, err := try(a.faults, errDown, func() (any, error) { return nil, a.Agent.DestroyMachine(ctx, ref, in) })
	return err
}

func (a faultyAgent) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	return try(a.faults, errDown, func() (*hangar.Machine, error) { return a.Agent.Machine(ctx, ref) })
}

func (a faultyAgent) Machines(ctx context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	return try(a.faults, errDown, func() ([]*hangar.Machine, error) { return a.Agent.Machines(ctx, app, filter) })
}

func (a faultyAgent) CreateVolume(ctx context.Context, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	return try(a.faults, errDown, func() (*hangar.VolumeRow, error) { return a.Agent.CreateVolume(ctx, spec) })
}

func (a faultyAgent) VolumeRow(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return try(a.faults, errDown, func() (*hangar.VolumeRow, error) { return a.Agent.VolumeRow(ctx, ref) })
}

func (a faultyAgent) VolumeRows(ctx context.Context, app hangar.AppID) ([]*hangar.VolumeRow, error) {
	return try(a.faults, errDown, func() ([]*hangar.VolumeRow, error) { return a.Agent.VolumeRows(ctx, app) })
}

func (a faultyAgent) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (*hangar.VolumeRow, error) {
	return try(a.faults, errDown, func() (*hangar.VolumeRow, error) { return a.Agent.ExtendVolume(ctx, ref, sizeGB) })
}

func (a faultyAgent) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
	return try(a.faults, errDown, func() (*hangar.VolumeRow, error) { return a.Agent.DestroyVolume(ctx, ref) })
}

func (a faultyAgent) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	return try(a.faults, errDown, func() (*hangar.Snapshot, error) { return a.Agent.CreateSnapshot(ctx, ref) })
}

// change is a request that changes something of the organization "acme", which has an App of the same name.
type change struct {
	before func(ctx context.Context, p *plane) error // nil: nothing has to be there
	make   func(ctx context.Context, p *plane) error
	undo   func(ctx context.Context, p *plane) error // nil: what undoes it leaves nothing
}

func changes(t *testing.T) map[string]change {
	const app, org = hangar.AppName("acme"), hangar.OrgSlug("acme")
	all := map[string]change{}
	for key, abuse := range abuses {
		if key == hangar.QuotaSnapshots || key == hangar.QuotaExtensions {
			continue // they are several changes
		}
		all["take one more of "+string(key)] = change{make: func(ctx context.Context, p *plane) error { return abuse(ctx, t, p, "acme", 1) }}
	}
	volume := func(ctx context.Context, p *plane) (hangar.VolumeRef, error) {
		list, err := p.Volumes().Volumes(ctx, app)
		if err != nil || len(list) != 1 {
			return hangar.VolumeRef{}, fmt.Errorf("%d volumes: %w", len(list), err)
		}
		return list[0].Ref(), nil
	}
	destroyVolume := func(ctx context.Context, p *plane) error {
		ref, err := volume(ctx, p)
		if err == nil {
			_, err = p.Volumes().DestroyVolume(ctx, ref)
		}
		return err
	}
	made := all["take one more of "+string(hangar.QuotaVolumes)]
	made.undo = destroyVolume // which can be undeleted for a while
	all["take one more of "+string(hangar.QuotaVolumes)] = made
	machine := func(ctx context.Context, p *plane) (hangar.MachineRef, error) {
		list, err := p.Machines().Machines(ctx, app, hangar.MachineFilter{})
		if err != nil || len(list) != 1 {
			return hangar.MachineRef{}, fmt.Errorf("%d machines: %w", len(list), err)
		}
		return list[0].Ref(), nil
	}
	after := func(key hangar.QuotaKey, make func(ctx context.Context, p *plane) error) change {
		return change{before: func(ctx context.Context, p *plane) error { return abuses[key](ctx, t, p, "acme", 1) }, make: make}
	}
	maps.Copy(all, map[string]change{
		"make an organization": {make: func(ctx context.Context, p *plane) error {
			_, err := p.Orgs().CreateOrg(ctx, hangar.OrgCreate{Slug: "new", Name: "New"})
			return err
		}},
		"destroy an App": after(hangar.QuotaMachines, func(ctx context.Context, p *plane) error { return p.Apps().DestroyApp(ctx, app, true) }),
		"destroy a Machine": after(hangar.QuotaMachines, func(ctx context.Context, p *plane) error {
			ref, err := machine(ctx, p)
			if err == nil {
				err = p.Machines().DestroyMachine(ctx, ref, hangar.MachineDestroy{Force: true})
			}
			return err
		}),
		"enlarge a Machine": after(hangar.QuotaMachines, func(ctx context.Context, p *plane) error {
			ref, err := machine(ctx, p)
			if err == nil {
				_, err = p.Machines().UpdateMachine(ctx, ref, hangar.MachineUpdate{Config: sized(512, 2).Config})
			}
			return err
		}),
		"extend a volume": after(hangar.QuotaVolumes, func(ctx context.Context, p *plane) error {
			ref, err := volume(ctx, p)
			if err == nil {
				_, err = p.Volumes().ExtendVolume(ctx, ref, 5)
			}
			return err
		}),
		"destroy a volume": after(hangar.QuotaVolumes, destroyVolume),
		"take a snapshot": after(hangar.QuotaVolumes, func(ctx context.Context, p *plane) error {
			ref, err := volume(ctx, p)
			if err == nil {
				_, err = p.Volumes().CreateSnapshot(ctx, ref)
			}
			return err
		}),
		"add an extension": {before: func(ctx context.Context, p *plane) error {
			_, err := p.Providers().CreateProvider(ctx, hangar.ProviderCreate{Name: "logs", ProviderSettings: hangar.ProviderSettings{BaseURL: "https://logs.example.com"}})
			return err
		}, make: func(ctx context.Context, p *plane) error {
			_, err := p.Extensions().CreateExtension(ctx, app, hangar.ExtensionCreate{Provider: "logs", Name: "acme-1"})
			return err
		}},
		"destroy an extension": after(hangar.QuotaExtensions, func(ctx context.Context, p *plane) error {
			_, err := p.Extensions().DestroyExtension(ctx, app, "acme-1")
			return err
		}),
		"delete an organization": {before: func(ctx context.Context, p *plane) error {
			_, err := p.Tokens().CreateToken(ctx, hangar.TokenCreate{Org: org, Kind: hangar.TokenOrg})
			return errors.Join(err, abuses[hangar.QuotaPeers](ctx, t, p, "acme", 1), p.Apps().DestroyApp(ctx, app, true))
		}, make: func(ctx context.Context, p *plane) error { return p.Orgs().DeleteOrg(ctx, org) }},
		"remove a user": {before: func(ctx context.Context, p *plane) error {
			p.member(t, "ann", org, hangar.RoleMember)
			return nil
		}, make: func(ctx context.Context, p *plane) error { return p.Users().RemoveUser(ctx, "ann@example.com") }},
		"release an address": after(hangar.QuotaAddressesV4, func(ctx context.Context, p *plane) error {
			list, err := p.Addresses().Addresses(ctx, app)
			for _, a := range list {
				if a.Kind == hangar.AddressV4 {
					err = p.Addresses().ReleaseAddress(ctx, app, a.IP)
				}
			}
			return err
		}),
		"remove a hostname": after(hangar.QuotaHostnames, func(ctx context.Context, p *plane) error {
			_, err := p.Certificates().RemoveCertificate(ctx, app, "h1.acme.org", "")
			return err
		}),
		"revoke a token": after(hangar.QuotaTokens, func(ctx context.Context, p *plane) error {
			list, err := p.Tokens().Tokens(ctx, hangar.TokenFilter{Org: org})
			if err == nil {
				err = p.Tokens().RevokeToken(ctx, string(list[0].ID))
			}
			return err
		}),
		"remove a member": {before: func(ctx context.Context, p *plane) error {
			p.member(t, "ann", org, hangar.RoleMember)
			return nil
		}, make: func(ctx context.Context, p *plane) error { return p.Users().RemoveMember(ctx, org, "ann@example.com") }},
		"remove a peer": after(hangar.QuotaPeers, func(ctx context.Context, p *plane) error {
			list, err := p.Peers().Peers(ctx, org)
			if err == nil {
				err = p.Peers().RemovePeer(ctx, org, list[0].Name)
			}
			return err
		}),
		"remove a secret": after(hangar.QuotaSecrets, func(ctx context.Context, p *plane) error {
			_, err := p.Secrets().DeleteSecret(ctx, app, "S1")
			return err
		}),
	})
	return all
}

// summary is how many records of each kind there are, what "acme" has used, and what its host has.
func (p *plane) summary(t *testing.T) string {
	t.Helper()
	kinds := map[string]int{}
	for _, key := range p.records(t, "/") {
		kinds[strings.Split(key, "/")[1]]++
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(&b, "%s %d, ", kind, kinds[kind])
	}
	if _, err := p.Orgs().Org(admin(t), "acme"); err == nil {
		for _, key := range hangar.QuotaKeys() {
			if measured[key] == "" {
				fmt.Fprintf(&b, "%s used %d, ", key, p.used(t, "acme", key))
			}
		}
	}
	fmt.Fprintf(&b, "%d Machines", len(p.hosts[0].alive()))
	host := &p.hosts[0].volumes
	host.mu.Lock()
	defer host.mu.Unlock()
	for _, row := range host.rows {
		fmt.Fprintf(&b, ", a volume %s of %d GB", row.Volume.State, row.Volume.SizeGB)
	}
	return b.String()
}

// TestInterruptedChanges has a fault at each step of each change. What heals by itself makes of it either
// nothing or the whole change.
func TestInterruptedChanges(t *testing.T) {
	for name, c := range changes(t) {
		t.Run(name, func(t *testing.T) {
			var want outcomes
			synctest.Test(t, func(t *testing.T) {
				p, _ := prepare(t, c)
				want.nothing = settle(t, p)
				p, _ = prepare(t, c)
				if err := c.make(admin(t), p); err != nil {
					t.Fatal(err)
				}
				want.whole = settle(t, p)
				want.undone = want.nothing
				if c.undo != nil {
					if err := c.undo(admin(t), p); err != nil {
						t.Fatal(err)
					}
					want.undone = settle(t, p)
				}
			})
			for _, f := range []fault{refused, lost, callerGone, killed} {
				for n, hit := 1, true; hit; n++ {
					synctest.Test(t, func(t *testing.T) { hit = interrupt(t, c, f, n, want) })
				}
			}
		})
	}
}

// outcomes are the summaries that may follow.
type outcomes struct{ nothing, whole, undone string }

// prepare returns a plane to which a change can be made.
func prepare(t *testing.T, c change) (*plane, *faults) {
	raw := state.NewMemory()
	f := new(faults)
	p := newPlane(t, faultyStore{raw, f})
	p.agents = faultyAgents{p.hosts, f}
	p.certificates = &fakeCertificates{states: map[hangar.Hostname]hangar.CertificateState{}}
	p.restart(t)
	rows := control.NewRows(raw, quiet) // a host publishes until it has succeeded
	rows.SetQuotas(p.quotas)
	p.hosts[0].publish, p.hosts[0].rows = rows, rows
	p.orgWithApp(t, "acme")
	if c.before != nil {
		if err := c.before(admin(t), p); err != nil {
			t.Fatal(err)
		}
	}
	return p, f
}

// settle lets a plane heal for a while, and returns its summary then.
func settle(t *testing.T, p *plane) string {
	ctx, stop := context.WithCancel(admin(t))
	var healing sync.WaitGroup
	healing.Go(func() { _ = p.auth.Run(ctx) })
	healing.Go(func() { _ = p.Run(ctx) })
	healing.Go(func() { _ = p.HealEvery(ctx, 5*time.Minute) })
	for range 10 {
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		p.clock.advance(time.Minute)
	}
	stop()
	healing.Wait()
	return p.summary(t)
}

// interrupt makes a change with a fault at its nth step, and reports whether it had so many.
func interrupt(t *testing.T, c change, what fault, n int, want outcomes) (hit bool) {
	p, faults := prepare(t, c)
	ctx, leave := context.WithCancel(admin(t))
	defer leave()
	faults.arm(what, n, leave)
	err := c.make(ctx, p)
	if hit = faults.disarm(); hit && what == killed {
		p.restart(t)
	}
	switch got := settle(t, p); {
	case err == nil && got != want.whole:
		t.Errorf("step %d was %s, and the change succeeded:\n%s\ninstead of\n%s", n, what, got, want.whole)
	case got != want.nothing && got != want.whole && got != want.undone:
		t.Errorf("step %d was %s: %v:\n%s\ninstead of\n%s\nor\n%s", n, what, err, got, want.nothing, want.whole)
	}
	return hit
}
