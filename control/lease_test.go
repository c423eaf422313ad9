package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func TestLeases(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	ctx := admin(t)
	p.app(t, "web")
	m := p.machine(t, "web", "")
	lease, err := p.Machines().AcquireLease(ctx, m.Ref(), hangar.LeaseAcquire{})
	if err != nil || lease.Owner != "admin" {
		t.Fatalf("acquired %+v, %v", lease, err)
	}
	if left := time.Until(lease.ExpiresAt); left < hangar.DefaultLeaseTTL/2 || left > hangar.DefaultLeaseTTL+2*time.Second {
		t.Errorf("a lease of no said length lasts %s", left)
	}
	if got, err := p.Machines().MachineLease(ctx, m.Ref()); err != nil || got.Nonce != lease.Nonce {
		t.Errorf("lease %+v, %v", got, err)
	}
	for _, bad := range []hangar.LeaseAcquire{
		{TTL: -1}, {TTL: hangar.MaxLeaseTTL + 1}, {Description: strings.Repeat("x", hangar.MaxLeaseDescription+1)},
	} {
		_, err := p.Machines().AcquireLease(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref(), bad)
		wantError(t, err, hangar.CodeInvalid, "")
	}
	wantError(t, p.Machines().DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}), hangar.CodeConflict, hangar.ReasonLeaseHeld)
	p.check(t) // what was refused keeps its name
	wantError(t, p.Machines().ReleaseLease(ctx, m.Ref()), hangar.CodeInvalid, hangar.ReasonLeaseNotFound)
	if err := p.Machines().ReleaseLease(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref()); err != nil {
		t.Fatal(err)
	}
	_, err = p.Machines().MachineLease(ctx, m.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonLeaseNotFound)

	other := as(t, hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}})
	_, err = p.Machines().AcquireLease(other, m.Ref(), hangar.LeaseAcquire{})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = p.Machines().MachineLease(other, m.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	wantError(t, p.Machines().ReleaseLease(hangar.WithLeaseNonce(other, "000000000000"), m.Ref()), hangar.CodeNotFound, hangar.ReasonAppNotFound)

	lease, err = p.Machines().AcquireLease(ctx, m.Ref(), hangar.LeaseAcquire{})
	if err != nil {
		t.Fatal(err)
	}
	reader := as(t, hangar.Principal{Subject: "r", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: hangar.ActionRead}}})
	if seen, err := p.Machines().MachineLease(reader, m.Ref()); err != nil || seen.Owner != "admin" || seen.Nonce != "" {
		t.Errorf("a reader sees %+v, %v", seen, err)
	}
	_, err = p.Machines().AcquireLease(hangar.WithLeaseNonce(reader, lease.Nonce), m.Ref(), hangar.LeaseAcquire{})
	wantError(t, err, hangar.CodeForbidden, "")
	wantError(t, p.Machines().ReleaseLease(hangar.WithLeaseNonce(reader, lease.Nonce), m.Ref()), hangar.CodeForbidden, "")
}

// TestLeaseDoesNotKeepAnApp: the right to destroy an App includes all that is in it.
func TestLeaseDoesNotKeepAnApp(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	ctx := admin(t)
	p.app(t, "web")
	in := wish("")
	in.LeaseTTL = hangar.MaxLeaseTTL + time.Second
	_, err := p.Machines().CreateMachine(ctx, "web", in)
	wantError(t, err, hangar.CodeInvalid, "")
	in.LeaseTTL = time.Hour
	m, err := p.Machines().CreateMachine(ctx, "web", in)
	if err != nil {
		t.Fatal(err)
	}
	if lease, err := p.Machines().MachineLease(ctx, m.Ref()); err != nil || lease.Nonce == "" {
		t.Errorf("lease of a machine created with one: %+v, %v", lease, err)
	}
	if err := p.Apps().DestroyApp(ctx, "web", true); err != nil {
		t.Fatal(err)
	}
	if left := p.hosts[0].alive(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
