package machines_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/journal"
)

func (r *rig) lease(ref hangar.MachineRef, ttl time.Duration) (hangar.Lease, context.Context) {
	r.Helper()
	ctx := hangar.WithPrincipal(r.Context(), hangar.Principal{Subject: "ada"})
	lease, err := r.AcquireLease(ctx, ref, hangar.LeaseAcquire{TTL: ttl, Description: "mine"})
	r.must(err)
	return lease, hangar.WithLeaseNonce(ctx, lease.Nonce)
}

// TestLeaseOutlivesTheDaemon: a lease survives a crash and an orderly end, until it expires, and a
// released one does not come back.
func TestLeaseOutlivesTheDaemon(t *testing.T) {
	r := newRig(t)
	kept := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	released := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch, s.LeaseTTL = true, time.Hour })
	short := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	for _, ref := range []hangar.MachineRef{kept, released, short} {
		r.wait(ref, hangar.MachineStopped)
	}
	lease, holder := r.lease(kept, time.Hour)
	brief, _ := r.lease(short, time.Minute)
	born, err := r.MachineLease(t.Context(), released)
	r.must(err)
	r.must(r.ReleaseLease(hangar.WithLeaseNonce(t.Context(), born.Nonce), released))
	for _, end := range []func(){func() { r.crash() }, func() { r.close() }} {
		end()
		r.open()
		got, err := r.MachineLease(t.Context(), kept)
		r.must(err)
		if got != lease {
			t.Errorf("lease is %+v after the daemon, was %+v", got, lease)
		}
		if _, err := r.StartMachine(t.Context(), kept); hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
			t.Errorf("start of a leased machine after the daemon: %v", err)
		}
		if _, err := r.MachineLease(t.Context(), released); hangar.ReasonOf(err) != hangar.ReasonLeaseNotFound {
			t.Errorf("a released lease after the daemon: %v", err)
		}
		if got, err := r.MachineLease(t.Context(), short); err != nil || got != brief {
			t.Errorf("short lease is %+v, %v", got, err)
		}
	}
	r.close()
	r.ahead.Add(int64(10 * time.Minute))
	r.open()
	if _, err := r.MachineLease(t.Context(), short); hangar.ReasonOf(err) != hangar.ReasonLeaseNotFound {
		t.Errorf("a lease that ended while there was no daemon: %v", err)
	}
	r.must(r.ReleaseLease(holder, kept))
}

// TestRefreshDoesNotDisturb: a client refreshes its lease every few seconds, even while the Machine
// boots, and other clients are not affected.
func TestRefreshDoesNotDisturb(t *testing.T) {
	r := newRig(t)
	booting, boot := make(chan struct{}), make(chan struct{})
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStart {
			close(booting) // panics at a second start
			<-boot
		}
		return 0, nil
	})
	ref := r.create(nil)
	<-booting
	_, holder := r.lease(ref, time.Hour)
	for range 3 {
		_, err := r.AcquireLease(holder, ref, hangar.LeaseAcquire{TTL: time.Hour})
		r.must(err)
	}
	close(boot)
	r.inject(nil)
	r.wait(ref, hangar.MachineStarted)
	if got, want := r.history(ref), "launch/created start/starting start/started"; got != want {
		t.Errorf("history:\n got %s\nwant %s", got, want)
	}
	r.published(ref, hangar.MachineStarted)
	row := r.rows.row(ref.ID).Seq
	_, err := r.AcquireLease(holder, ref, hangar.LeaseAcquire{TTL: time.Hour})
	r.must(err)
	r.must(r.ReleaseLease(holder, ref))
	// Rows are published in order: once this one is, so are all before.
	later := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.published(later, hangar.MachineStopped)
	if now := r.rows.row(ref.ID).Seq; now != row {
		t.Errorf("a lease published row %d after %d", now, row)
	}
}

// TestLeaseBindsUsers: the edge starts and stops a leased Machine, the restart policy
// restarts it, the platform destroys it.
func TestLeaseBindsUsers(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "3@20ms"}, func(s *hangar.MachineSpec) {
		s.LeaseTTL = time.Hour
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.wait(ref, hangar.MachineRestarting)
	r.wait(ref, hangar.MachineStarted)
	if err := r.StopMachine(t.Context(), ref, hangar.MachineStop{}); hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
		t.Fatalf("stop by a user: %v", err)
	}
	proxy := hangar.WithEventSource(t.Context(), hangar.SourceProxy)
	r.must(r.StopMachine(proxy, ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.must(r.WakeMachine(t.Context(), ref, 0)) // for a request
	r.wait(ref, hangar.MachineStarted)
	events, err := r.MachineEvents(t.Context(), ref, 50)
	r.must(err)
	sources := map[hangar.EventSource]int{}
	for _, e := range events {
		sources[e.Source]++
	}
	if sources[hangar.SourceProxy] != 2 || sources[hangar.SourceUser] != 1 {
		t.Errorf("sources of the events are %v", sources)
	}
	if _, err := r.AcquireLease(proxy, ref, hangar.LeaseAcquire{TTL: time.Hour}); hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
		t.Errorf("the proxy got the lease of another: %v", err)
	}
	platform := hangar.WithEventSource(t.Context(), hangar.SourceAgent)
	r.must(r.DestroyMachine(platform, ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)
	if _, err := r.MachineLease(t.Context(), ref); hangar.ReasonOf(err) != hangar.ReasonLeaseNotFound {
		t.Errorf("lease of a destroyed machine: %v", err)
	}
	if _, err := r.AcquireLease(t.Context(), ref, hangar.LeaseAcquire{TTL: time.Hour}); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("a destroyed machine is leased: %v", err)
	}
}

// TestNonceIsASecret: it is in no row, event or line of a log.
func TestNonceIsASecret(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.LeaseTTL = time.Hour })
	r.wait(ref, hangar.MachineStarted)
	lease, err := r.MachineLease(t.Context(), ref)
	r.must(err)
	holder := hangar.WithLeaseNonce(t.Context(), lease.Nonce)
	m, err := r.Machine(holder, ref)
	r.must(err)
	updated, err := r.UpdateMachine(holder, ref, hangar.MachineUpdate{Config: m.Config, LeaseTTL: time.Hour})
	r.must(err)
	if updated.Nonce != lease.Nonce {
		t.Errorf("update answers with nonce %q, want %q", updated.Nonce, lease.Nonce)
	}
	_, err = r.WaitMachine(holder, ref, hangar.MachineWait{Instance: updated.InstanceID, Timeout: patience})
	r.must(err)
	m, err = r.Machine(holder, ref)
	r.must(err)
	list, err := r.Machines(holder, ref.AppID, hangar.MachineFilter{Events: true})
	r.must(err)
	r.rows.mu.Lock()
	told, err := json.Marshal([]any{m, list, r.rows.has})
	r.rows.mu.Unlock()
	r.must(err)
	r.close()
	err = filepath.WalkDir(filepath.Join(r.dir, "logs"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		told = append(told, b...)
		return err
	})
	r.must(err)
	if strings.Contains(string(told), lease.Nonce) {
		t.Errorf("nonce %s is revealed in %s", lease.Nonce, told)
	}
}

// TestLeaseCountsWhenAnUpdateIsDecided: the lease is checked again when an update is committed,
// because a registry may be slow.
func TestLeaseCountsWhenAnUpdateIsDecided(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	lease := func() { r.lease(ref, time.Hour) }
	r.images.onResolve.Store(&lease)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: before.Config})
	if hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
		t.Errorf("update beside a lease: %v", err)
	}
	held, err := r.MachineLease(t.Context(), ref)
	r.must(err)
	holder := hangar.WithLeaseNonce(t.Context(), held.Nonce)
	var other *hangar.Machine
	overtake := func() {
		r.images.onResolve.Store(nil)
		other, err = r.UpdateMachine(holder, ref, hangar.MachineUpdate{Config: before.Config, CurrentVersion: before.InstanceID})
		r.must(err)
		r.wait(ref, hangar.MachineStopped)
	}
	r.images.onResolve.Store(&overtake)
	_, err = r.UpdateMachine(holder, ref, hangar.MachineUpdate{Config: before.Config, CurrentVersion: before.InstanceID})
	if hangar.ReasonOf(err) != hangar.ReasonStaleVersion {
		t.Errorf("update of a version that another replaced meanwhile: %v", err)
	}
	if after, err := r.Machine(t.Context(), ref); err != nil || after.InstanceID != other.InstanceID {
		t.Errorf("machine is at %+v, %v; want %s", after, err, other.InstanceID)
	}
}

// TestRefusedUpdateTouchesNothing: an update that is known to be impossible is refused, and one
// that fails later is undone.
func TestRefusedUpdateTouchesNothing(t *testing.T) {
	r := newRig(t)
	started := r.create(nil)
	stopped := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(started, hangar.MachineStarted)
	r.wait(stopped, hangar.MachineStopped)
	for _, ref := range []hangar.MachineRef{started, stopped} {
		before, err := r.Machine(t.Context(), ref)
		r.must(err)
		missing, huge := before.Config, before.Config
		missing.Image, huge.Guest = "missing", &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 1 << 20}
		for name, test := range map[string]struct {
			in     hangar.MachineUpdate
			code   hangar.Code
			reason string
		}{
			"missing image": {hangar.MachineUpdate{Config: missing}, hangar.CodeInvalid, hangar.ReasonImageNotFound},
			"no room":       {hangar.MachineUpdate{Config: huge}, hangar.CodeConflict, hangar.ReasonInsufficientCapacity},
			"stale":         {hangar.MachineUpdate{Config: before.Config, CurrentVersion: "old"}, hangar.CodeConflict, hangar.ReasonStaleVersion},
			"another name":  {hangar.MachineUpdate{Config: before.Config, Name: "other"}, hangar.CodeInvalid, hangar.ReasonBadConfig},
			"elsewhere":     {hangar.MachineUpdate{Config: before.Config, Region: "far"}, hangar.CodeInvalid, hangar.ReasonBadConfig},
		} {
			_, err := r.UpdateMachine(t.Context(), ref, test.in)
			if hangar.CodeOf(err) != test.code || hangar.ReasonOf(err) != test.reason {
				t.Errorf("%s: %v", name, err)
			}
		}
		offline := before.Config
		offline.Image = "offline"
		updated, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: offline, SkipServiceRegistration: true, LeaseTTL: time.Hour})
		r.must(err)
		r.wait(ref, before.State)
		after, err := r.Machine(t.Context(), ref)
		r.must(err)
		if after.InstanceID != before.InstanceID || after.ImageRef.String() != before.ImageRef.String() || after.State != before.State || after.Cordoned {
			t.Errorf("a failed update left %+v, was %+v", after, before)
		}
		if strings.Contains(r.history(ref), "exit/") {
			t.Errorf("a failed update ended what ran: %s", r.history(ref))
		}
		if lease, err := r.MachineLease(t.Context(), ref); err != nil || lease.Nonce != updated.Nonce {
			t.Errorf("lease of a failed update is %+v, %v", lease, err)
		}
	}
}

// TestLeaseInTheJournalGoesWithItsMachine inspects the journal's file.
func TestLeaseInTheJournalGoesWithItsMachine(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch, s.LeaseTTL = true, time.Hour })
	r.wait(ref, hangar.MachineStopped)
	lease, err := r.MachineLease(t.Context(), ref)
	r.must(err)
	r.must(r.DestroyMachine(hangar.WithLeaseNonce(t.Context(), lease.Nonce), ref, hangar.MachineDestroy{}))
	r.wait(ref, hangar.MachineDestroyed)
	r.close()
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{})
	r.must(err)
	if left, err := j.Lease(ref.ID); err != nil || left != nil {
		t.Errorf("a destroyed machine keeps lease %+v, %v", left, err)
	}
	r.must(j.Close())
}
