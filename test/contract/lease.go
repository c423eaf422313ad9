package contract

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// leaseTests are the part of MachineService about leases and who may update.
var leaseTests = map[string]func(*testing.T, Harness){
	"lease":           leaseHeld,
	"lease bounds":    leaseBounds,
	"lease race":      leaseRace,
	"lease expires":   leaseExpires,
	"lease from wish": leaseFromWish,
	"lease of a gone": leaseGone,
	"update race":     updateRace,
}

var noncePattern = regexp.MustCompile(`^[0-9a-f]{12}$`)

// guardedCalls are the names of the calls that a lease keeps others from.
var guardedCalls = []string{"update", "start", "stop", "suspend", "restart", "destroy", "cordon", "uncordon"}

func (h Harness) acquire(t *testing.T, ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) hangar.Lease { //nolint:revive // t first, as everywhere here
	t.Helper()
	lease, err := h.Machines.AcquireLease(ctx, ref, in)
	must(t, "acquire lease", err)
	return lease
}

func leaseHeld(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	ctx := h.Context(t)
	_, err := h.Machines.MachineLease(ctx, m.Ref())
	wantError(t, "lease of an unleased machine", err, hangar.CodeNotFound, hangar.ReasonLeaseNotFound)
	stale := hangar.WithLeaseNonce(ctx, "000000000000")
	wantError(t, "release of no lease", h.Machines.ReleaseLease(stale, m.Ref()), hangar.CodeInvalid, hangar.ReasonLeaseNotFound)

	lease := h.acquire(t, ctx, m.Ref(), hangar.LeaseAcquire{TTL: time.Hour, Description: "mine"})
	if !noncePattern.MatchString(lease.Nonce) || lease.Owner == "" || lease.Description != "mine" || lease.Version != m.InstanceID {
		t.Errorf("lease is %+v, machine at %s", lease, m.InstanceID)
	}
	if left := time.Until(lease.ExpiresAt); left < time.Minute || left > time.Hour+time.Minute {
		t.Errorf("lease of an hour expires in %s", left)
	}
	got, err := h.Machines.MachineLease(ctx, m.Ref())
	must(t, "get lease", err)
	if got != lease {
		t.Errorf("lease is shown as %+v, want %+v", got, lease)
	}
	if shown := h.get(t, m.Ref()).Nonce; shown != "" {
		t.Errorf("the machine shows nonce %q", shown)
	}
	for who, ctx := range map[string]context.Context{"without nonce": ctx, "with another nonce": stale} {
		_, err := h.Machines.AcquireLease(ctx, m.Ref(), hangar.LeaseAcquire{})
		wantError(t, "lease again "+who, err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
		for _, name := range guardedCalls {
			err := h.calls(ctx, m.Ref())[name]()
			wantError(t, name+" "+who, err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
			if text := "machine ID " + string(m.ID) + " lease currently held by " + lease.Owner; err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s %s: %q does not say %q", name, who, err, text)
			}
		}
		wantError(t, "release "+who, h.Machines.ReleaseLease(ctx, m.Ref()), hangar.CodeInvalid, hangar.ReasonLeaseNotFound)
	}
	for _, name := range []string{
		"get", "wait", "events", "versions", "ps", "exec", "watch", "signal", "metadata", "set", "remove", "replace", "merge",
	} {
		must(t, name+" without nonce", h.calls(ctx, m.Ref())[name]())
	}
	holder := hangar.WithLeaseNonce(ctx, lease.Nonce)
	leaseInUse(t, h, holder, m)

	must(t, "release", h.Machines.ReleaseLease(holder, m.Ref()))
	_, err = h.Machines.MachineLease(ctx, m.Ref())
	wantError(t, "a released lease", err, hangar.CodeNotFound, hangar.ReasonLeaseNotFound)
	wantError(t, "release again", h.Machines.ReleaseLease(holder, m.Ref()), hangar.CodeInvalid, hangar.ReasonLeaseNotFound)
	must(t, "start with the nonce of a lease that is over", h.calls(holder, m.Ref())["start"]())
}

// leaseInUse does what the holder of a lease may do, and leaves the Machine started.
func leaseInUse(t *testing.T, h Harness, holder context.Context, m *hangar.Machine) { //nolint:revive // t first, as everywhere here
	t.Helper()
	must(t, "stop", h.Machines.StopMachine(holder, m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err := h.Machines.StartMachine(holder, m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	nonce := hangar.LeaseNonceFrom(holder)
	refreshed := h.acquire(t, holder, m.Ref(), hangar.LeaseAcquire{TTL: 2 * time.Hour})
	if refreshed.Nonce != nonce || refreshed.Description != "mine" || time.Until(refreshed.ExpiresAt) < 90*time.Minute {
		t.Errorf("refreshed lease is %+v", refreshed)
	}
	updated, err := h.Machines.UpdateMachine(holder, m.Ref(), hangar.MachineUpdate{Config: h.config(), CurrentVersion: m.InstanceID})
	must(t, "update", err)
	if updated.Nonce != "" {
		t.Errorf("an update that asks for no lease answers with nonce %q", updated.Nonce)
	}
	_, err = h.Machines.WaitMachine(holder, m.Ref(), hangar.MachineWait{Instance: updated.InstanceID, Timeout: patience})
	must(t, "wait for the new version", err)
	got, err := h.Machines.MachineLease(holder, m.Ref())
	must(t, "lease after an update", err)
	refreshed.Version = updated.InstanceID
	if got != refreshed {
		t.Errorf("lease after an update is %+v, want %+v", got, refreshed)
	}
}

func leaseBounds(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	for name, in := range map[string]hangar.LeaseAcquire{
		"negative":         {TTL: -time.Second},
		"short":            {TTL: time.Millisecond - time.Second},
		"long":             {TTL: hangar.MaxLeaseTTL + time.Second},
		"long description": {Description: strings.Repeat("x", hangar.MaxLeaseDescription+1)},
	} {
		_, err := h.Machines.AcquireLease(h.Context(t), m.Ref(), in)
		wantError(t, name, err, hangar.CodeInvalid, "")
	}
	_, err := h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: h.config(), LeaseTTL: -1})
	wantError(t, "create with a negative lease", err, hangar.CodeInvalid, "")
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), LeaseTTL: hangar.MaxLeaseTTL + time.Second})
	wantError(t, "update with a long lease", err, hangar.CodeInvalid, "")
	lease := h.acquire(t, h.Context(t), m.Ref(), hangar.LeaseAcquire{})
	if left := time.Until(lease.ExpiresAt); left > hangar.DefaultLeaseTTL+2*time.Second {
		t.Errorf("a lease of no said length expires in %s", left)
	}
}

func leaseRace(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	for range 4 {
		nonces, errs := make(chan string, 8), make(chan error, 8)
		for range cap(errs) {
			go func() {
				lease, err := h.Machines.AcquireLease(h.Context(t), m.Ref(), hangar.LeaseAcquire{TTL: time.Hour})
				nonces <- lease.Nonce
				errs <- err
			}()
		}
		holder := ""
		for range cap(errs) {
			nonce, err := <-nonces, <-errs
			if err != nil {
				wantError(t, "a late acquire", err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
			}
			if nonce != "" && holder != "" {
				t.Errorf("both %s and %s hold the lease", holder, nonce)
			}
			holder += nonce
		}
		if holder == "" {
			t.Fatal("no client got the lease")
		}
		must(t, "release", h.Machines.ReleaseLease(hangar.WithLeaseNonce(h.Context(t), holder), m.Ref()))
	}
}

func leaseExpires(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	ctx := h.Context(t)
	lease := h.acquire(t, ctx, m.Ref(), hangar.LeaseAcquire{TTL: hangar.MinLeaseTTL})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		next, err := h.Machines.AcquireLease(ctx, m.Ref(), hangar.LeaseAcquire{TTL: hangar.MinLeaseTTL})
		if err == nil {
			if next.Nonce == lease.Nonce {
				t.Error("a new lease has the nonce of the one before")
			}
			break
		}
		wantError(t, "lease that has not expired", err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
		if time.Since(lease.ExpiresAt) > patience {
			t.Fatalf("lease %+v does not expire", lease)
		}
		<-tick.C
	}
	if now := time.Now(); now.Before(lease.ExpiresAt.Add(-time.Second)) {
		t.Errorf("a lease until %s was given to another at %s", lease.ExpiresAt, now)
	}
	for h.calls(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref())["destroy"]() != nil {
		if time.Since(lease.ExpiresAt) > 2*patience {
			t.Fatal("a nonce that is over keeps out after the lease that followed")
		}
		<-tick.C
	}
}

func leaseFromWish(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.create(t, app, hangar.MachineCreate{Config: h.config(), SkipLaunch: true, LeaseTTL: time.Hour})
	h.wait(t, m.Ref(), hangar.MachineStopped)
	lease, err := h.Machines.MachineLease(h.Context(t), m.Ref())
	must(t, "lease of a machine created with lease_ttl", err)
	if !noncePattern.MatchString(m.Nonce) || lease.Nonce != m.Nonce {
		t.Errorf("created with nonce %q, lease has %q", m.Nonce, lease.Nonce)
	}
	wantError(t, "start", h.calls(h.Context(t), m.Ref())["start"](), hangar.CodeConflict, hangar.ReasonLeaseHeld)
	holder := hangar.WithLeaseNonce(h.Context(t), m.Nonce)
	updated, err := h.Machines.UpdateMachine(holder, m.Ref(), hangar.MachineUpdate{Config: h.config(), LeaseTTL: 2 * time.Hour})
	must(t, "update", err)
	if updated.Nonce != m.Nonce {
		t.Errorf("update refreshed the lease to nonce %q, want %q", updated.Nonce, m.Nonce)
	}
	h.wait(t, m.Ref(), hangar.MachineStopped)
	must(t, "release", h.Machines.ReleaseLease(holder, m.Ref()))
	updated, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), LeaseTTL: time.Hour})
	must(t, "update of an unleased machine", err)
	if !noncePattern.MatchString(updated.Nonce) || updated.Nonce == m.Nonce {
		t.Errorf("update acquired nonce %q after %q", updated.Nonce, m.Nonce)
	}
}

func leaseGone(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	ctx := h.Context(t)
	lease := h.acquire(t, ctx, m.Ref(), hangar.LeaseAcquire{TTL: time.Hour})
	wantError(t, "destroy with force", h.Machines.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}), hangar.CodeConflict, hangar.ReasonLeaseHeld)
	must(t, "destroy", h.Machines.DestroyMachine(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref(), hangar.MachineDestroy{}))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	_, err := h.Machines.MachineLease(ctx, m.Ref())
	wantError(t, "lease of a destroyed machine", err, hangar.CodeNotFound, hangar.ReasonLeaseNotFound)
	must(t, "destroy it again", h.Machines.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{}))

	config := h.config()
	config.AutoDestroy = true
	self := h.create(t, app, hangar.MachineCreate{Config: config, LeaseTTL: time.Hour})
	h.wait(t, self.Ref(), hangar.MachineStarted)
	must(t, "signal", h.Machines.SignalMachine(ctx, self.Ref(), 9))
	h.wait(t, self.Ref(), hangar.MachineDestroyed) // its lease binds users, not the platform

	h.create(t, app, hangar.MachineCreate{Config: h.config(), LeaseTTL: time.Hour})
	must(t, "destroy an app with a leased machine", h.Apps.DestroyApp(ctx, app, true))
}

// updateRace: of updates that know the same version, one succeeds.
func updateRace(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	version := m.InstanceID
	for range 3 {
		type outcome struct {
			m   *hangar.Machine
			err error
		}
		outcomes := make(chan outcome, 4)
		for range cap(outcomes) {
			go func() {
				got, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config(), CurrentVersion: version})
				outcomes <- outcome{got, err}
			}()
		}
		var winner *hangar.Machine
		for range cap(outcomes) {
			switch o := <-outcomes; {
			case o.err != nil:
				wantError(t, "one of several updates", o.err, hangar.CodeConflict, "")
			case winner != nil:
				t.Errorf("both %s and %s replaced version %s", winner.InstanceID, o.m.InstanceID, version)
			default:
				winner = o.m
			}
		}
		if winner == nil {
			t.Fatal("no update succeeded")
		}
		h.wait(t, m.Ref(), hangar.MachineStopped)
		if got := h.get(t, m.Ref()).InstanceID; got != winner.InstanceID {
			t.Errorf("the machine is at %s, the update answered %s", got, winner.InstanceID)
		}
		version = winner.InstanceID
	}
	versions, err := h.Machines.MachineVersions(h.Context(t), m.Ref())
	must(t, "versions", err)
	if len(versions) != 4 || versions[0].Version != version || versions[3].Version != m.InstanceID {
		t.Errorf("after three updates the versions are %+v", versions)
	}
}
