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

// A fault is what becomes of one transaction.
type fault string

const (
	refused    fault = "refused"           // the state did not make it
	lost       fault = "made, answer lost" // the state has made it and could not say so
	callerGone fault = "made, caller gone" // the caller disconnects when the state has made it
	killed     fault = "made, as the last" // the state has made it, and makes no other until the next start
)

// faultyStore has a fault at one transaction.
type faultyStore struct {
	state.Store

	fault fault
	left  int // transactions until then; 0: there is none; negative: all are refused
	leave context.CancelFunc
}

func (s *faultyStore) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if s.left == 0 {
		return s.Store.Txn(ctx, txn)
	}
	if s.left--; s.left > 0 {
		return s.Store.Txn(ctx, txn)
	}
	if s.left < 0 || s.fault == refused {
		return 0, errNoAnswer
	}
	revision, err := s.Store.Txn(ctx, txn)
	switch s.fault {
	case lost:
		return 0, errNoAnswer
	case callerGone:
		s.leave()
	case killed:
		s.left = -1
	}
	return revision, err
}

var errNoAnswer = errors.New("no answer")

// change is a request that changes something of the organization "acme", which has an App of the same name.
type change struct {
	before func(ctx context.Context, p *plane) error // nil: nothing has to be there
	make   func(ctx context.Context, p *plane) error
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
	machine := func(ctx context.Context, p *plane) (hangar.MachineRef, error) {
		list, err := p.Machines().Machines(ctx, app, hangar.MachineFilter{})
		if err != nil || len(list) != 1 {
			return hangar.MachineRef{}, fmt.Errorf("%d machines: %w", len(list), err)
		}
		return list[0].Ref(), nil
	}
	volume := func(ctx context.Context, p *plane) (hangar.VolumeRef, error) {
		list, err := p.Volumes().Volumes(ctx, app)
		if err != nil || len(list) != 1 {
			return hangar.VolumeRef{}, fmt.Errorf("%d volumes: %w", len(list), err)
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
		"destroy a volume": after(hangar.QuotaVolumes, func(ctx context.Context, p *plane) error {
			ref, err := volume(ctx, p)
			if err == nil {
				_, err = p.Volumes().DestroyVolume(ctx, ref)
			}
			return err
		}),
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
	return b.String()
}

// TestInterruptedChanges has a fault at each transaction of each change. What heals by itself makes of it either
// nothing or the whole change.
func TestInterruptedChanges(t *testing.T) {
	for name, c := range changes(t) {
		t.Run(name, func(t *testing.T) {
			var nothing, whole string
			synctest.Test(t, func(t *testing.T) {
				p, _ := prepare(t, c)
				nothing = settle(t, p)
				p, _ = prepare(t, c)
				if err := c.make(admin(t), p); err != nil {
					t.Fatal(err)
				}
				whole = settle(t, p)
			})
			for _, f := range []fault{refused, lost, callerGone, killed} {
				for n, hit := 1, true; hit; n++ {
					synctest.Test(t, func(t *testing.T) { hit = interrupt(t, c, f, n, nothing, whole) })
				}
			}
		})
	}
}

// prepare returns a plane to which a change can be made.
func prepare(t *testing.T, c change) (*plane, *faultyStore) {
	raw := state.NewMemory()
	store := &faultyStore{Store: raw}
	p := newPlane(t, store)
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
	return p, store
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

// interrupt makes a change with a fault at its nth transaction, and reports whether it had so many.
func interrupt(t *testing.T, c change, f fault, n int, nothing, whole string) (hit bool) {
	p, store := prepare(t, c)
	ctx, leave := context.WithCancel(admin(t))
	defer leave()
	store.fault, store.left, store.leave = f, n, leave
	err := c.make(ctx, p)
	hit, store.left = store.left <= 0, 0
	if hit && f == killed {
		p.restart(t)
	}
	switch got := settle(t, p); {
	case err == nil && got != whole:
		t.Errorf("transaction %d %s, and the change succeeded:\n%s\ninstead of\n%s", n, f, got, whole)
	case got != nothing && got != whole:
		t.Errorf("transaction %d %s: %v:\n%s\ninstead of\n%s\nor\n%s", n, f, err, got, nothing, whole)
	}
	return hit
}
