package machines_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// TestAgainstModel makes random requests to one Machine after another, by users with and without
// the nonce of its lease and by the edge, while time passes and the agent crashes, and compares
// every answer with the model.
func TestAgainstModel(t *testing.T) {
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		ref := r.create(nil, func(s *hangar.MachineSpec) {
			s.SkipLaunch = true
			s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
		})
		r.wait(ref, hangar.MachineStopped)
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		p := &player{
			rig: r, ref: ref, config: m.Config, state: m.State,
			image: "web", version: m.InstanceID, versions: []hangar.InstanceID{m.InstanceID},
		}
		rt.Repeat(map[string]func(*rapid.T){
			"start":   func(rt *rapid.T) { p.start(rt) },
			"stop":    func(rt *rapid.T) { p.stop(rt) },
			"suspend": func(rt *rapid.T) { p.suspend(rt) },
			"restart": func(rt *rapid.T) { p.restart(rt) },
			"update":  func(rt *rapid.T) { p.update(rt) },
			"destroy": func(rt *rapid.T) { p.destroy(rt) },
			"cordon":  func(rt *rapid.T) { p.cordon(rt) },
			"kill":    func(rt *rapid.T) { p.kill(rt) },
			"acquire": func(rt *rapid.T) { p.acquire(rt) },
			"release": func(rt *rapid.T) { p.release(rt) },
			"tick":    func(rt *rapid.T) { r.ahead.Add(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "time")) },
			"crash": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "kill") {
					r.crash()
				} else {
					r.close()
				}
				r.open()
			},
			"": func(rt *rapid.T) { p.compare(rt) },
		})
		p.leave()
	})
}

// player makes requests to the agent, and maintains the model: one Machine in its simplest form, on
// which verbs take effect at once.
type player struct {
	*rig
	ref    hangar.MachineRef
	config hangar.MachineConfig

	state    hangar.MachineState
	image    string
	version  hangar.InstanceID
	versions []hangar.InstanceID // newest first
	cordoned bool
	nonce    string    // of the lease, "": none was taken or it was released
	until    time.Time // when the lease ends
	past     []string  // nonces of leases before
}

func (p *player) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

// leased reports whether the lease is valid; close to its end that is uncertain.
func (p *player) leased() (yes, sure bool) {
	left := p.until.Sub(p.now())
	return p.nonce != "" && left > 0, p.nonce == "" || left.Abs() > 5*time.Second
}

// caller returns the context of a caller, and whether the lease admits it.
func (p *player) caller(rt *rapid.T) (ctx context.Context, admitted, sure bool) {
	ctx = p.Context()
	leased, sure := p.leased()
	switch rapid.SampledFrom([]string{"holder", "holder", "stranger", "late", "edge"}).Draw(rt, "who") {
	case "holder":
		return hangar.WithLeaseNonce(ctx, p.nonce), true, true
	case "late":
		if len(p.past) > 0 {
			ctx = hangar.WithLeaseNonce(ctx, rapid.SampledFrom(p.past).Draw(rt, "nonce"))
		}
	case "edge":
		return hangar.WithEventSource(ctx, hangar.SourceProxy), true, true
	}
	return ctx, !leased, sure
}

// ask executes a verb and returns whether it was accepted, as the model predicts.
func (p *player) ask(rt *rapid.T, verb hangar.Verb, do func(ctx context.Context) error) bool {
	ctx, admitted, sure := p.caller(rt)
	err := do(ctx)
	if !sure {
		admitted = hangar.ReasonOf(err) != hangar.ReasonLeaseHeld
	}
	answer := p.state.Answers(verb)
	switch {
	case !admitted:
		p.want(rt, verb, err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
	case answer == hangar.Refuse:
		p.want(rt, verb, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	case err != nil:
		rt.Fatalf("%s of a machine that is %s: %v", verb, p.state, err)
	}
	return admitted && answer == hangar.Accept
}

func (p *player) want(rt *rapid.T, verb hangar.Verb, err error, code hangar.Code, reason string) {
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason {
		rt.Fatalf("%s of a machine that is %s: %v, want %s %s", verb, p.state, err, code, reason)
	}
}

// becomes waits for the result of a verb.
func (p *player) becomes(rt *rapid.T, state hangar.MachineState) {
	p.state = state
	_, err := p.WaitMachine(p.Context(), p.ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: patience})
	if err != nil {
		rt.Fatalf("wait for %s: %v", state, err)
	}
}

func (p *player) start(rt *rapid.T) {
	before := p.state
	accepted := p.ask(rt, hangar.VerbStart, func(ctx context.Context) error {
		result, err := p.StartMachine(ctx, p.ref)
		if err == nil && result.PreviousState != before {
			rt.Fatalf("previous state is %s, was %s", result.PreviousState, before)
		}
		return err
	})
	if accepted {
		p.becomes(rt, hangar.MachineStarted)
	}
}

func (p *player) stop(rt *rapid.T) {
	if p.ask(rt, hangar.VerbStop, func(ctx context.Context) error { return p.StopMachine(ctx, p.ref, hangar.MachineStop{}) }) {
		p.becomes(rt, hangar.MachineStopped)
	}
}

func (p *player) suspend(rt *rapid.T) {
	if p.ask(rt, hangar.VerbSuspend, func(ctx context.Context) error { return p.SuspendMachine(ctx, p.ref) }) {
		p.becomes(rt, hangar.MachineSuspended)
	}
}

func (p *player) restart(rt *rapid.T) {
	before, err := p.newest()
	if err != nil {
		rt.Fatal(err)
	}
	if !p.ask(rt, hangar.VerbRestart, func(ctx context.Context) error {
		return p.RestartMachine(ctx, p.ref, hangar.MachineRestart{ForceStop: true})
	}) {
		return
	}
	p.state = hangar.MachineStarted
	_, err = p.WaitMachine(p.Context(), p.ref, hangar.MachineWait{FromEvent: before, Timeout: patience})
	if err != nil {
		rt.Fatalf("wait for the restart: %v", err)
	}
}

func (p *player) newest() (hangar.EventID, error) {
	events, err := p.MachineEvents(p.Context(), p.ref, 1)
	if err != nil {
		return "", err
	}
	return events[0].ID, nil
}

func (p *player) update(rt *rapid.T) {
	in := hangar.MachineUpdate{Config: p.config, SkipLaunch: rapid.Bool().Draw(rt, "skip launch")}
	in.Config.Image = rapid.SampledFrom([]string{"web", "api", "offline", "missing"}).Draw(rt, "image")
	in.CurrentVersion = rapid.SampledFrom(append([]hangar.InstanceID{"", p.version}, p.versions...)).Draw(rt, "current")
	in.SkipServiceRegistration = rapid.IntRange(0, 3).Draw(rt, "skip registration") == 0
	in.LeaseTTL = rapid.SampledFrom([]time.Duration{0, 0, 0, 30 * time.Second}).Draw(rt, "lease")
	ctx, admitted, sure := p.caller(rt)
	if leased, _ := p.leased(); leased && hangar.LeaseNonceFrom(ctx) != p.nonce {
		in.LeaseTTL = 0 // the edge updates nothing
	}
	updated, err := p.UpdateMachine(ctx, p.ref, in)
	if !sure {
		admitted = hangar.ReasonOf(err) != hangar.ReasonLeaseHeld
	}
	switch {
	case !admitted:
		p.want(rt, hangar.VerbUpdate, err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
		return
	case p.state.Answers(hangar.VerbUpdate) == hangar.Refuse:
		p.want(rt, hangar.VerbUpdate, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
		return
	case in.CurrentVersion != "" && in.CurrentVersion != p.version:
		p.want(rt, hangar.VerbUpdate, err, hangar.CodeConflict, hangar.ReasonStaleVersion)
		return
	case in.Config.Image == "missing":
		p.want(rt, hangar.VerbUpdate, err, hangar.CodeInvalid, hangar.ReasonImageNotFound)
		return
	case err != nil:
		rt.Fatalf("update of a machine that is %s: %v", p.state, err)
	case updated.InstanceID <= p.versions[0]:
		rt.Fatalf("version %s does not follow %s", updated.InstanceID, p.versions[0])
	}
	p.versions = slices.Insert(p.versions, 0, updated.InstanceID)
	p.leaseTaken(rt, in.LeaseTTL, updated.Nonce)
	// The wait is for any end of the update.
	_, err = p.WaitMachine(p.Context(), p.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}, Timeout: patience})
	switch {
	case err != nil:
		rt.Fatalf("wait for the update: %v", err)
	case in.Config.Image == "offline":
		return // nothing has changed
	case in.SkipLaunch:
		p.state = hangar.MachineStopped
	}
	p.version, p.image, p.cordoned = updated.InstanceID, in.Config.Image, p.cordoned || in.SkipServiceRegistration
	if p.state != hangar.MachineStarted {
		p.state = hangar.MachineStopped
	}
}

// leaseTaken keeps the lease that came with an update.
func (p *player) leaseTaken(rt *rapid.T, ttl time.Duration, nonce string) {
	if (nonce == "") != (ttl == 0) {
		rt.Fatalf("an update with a lease of %s answers with nonce %q", ttl, nonce)
	}
	if ttl == 0 {
		return
	}
	p.keep(nonce, p.now().Add(ttl))
}

func (p *player) keep(nonce string, until time.Time) {
	if p.nonce != "" && p.nonce != nonce {
		p.past = append(p.past, p.nonce)
	}
	p.nonce, p.until = nonce, until
}

func (p *player) destroy(rt *rapid.T) {
	if rapid.IntRange(0, 9).Draw(rt, "really") > 0 {
		return
	}
	if p.state.NeedsForce() {
		ctx := hangar.WithLeaseNonce(p.Context(), p.nonce)
		p.want(rt, hangar.VerbDestroy, p.DestroyMachine(ctx, p.ref, hangar.MachineDestroy{}), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	}
	if p.ask(rt, hangar.VerbDestroy, func(ctx context.Context) error {
		return p.DestroyMachine(ctx, p.ref, hangar.MachineDestroy{Force: true})
	}) {
		p.becomes(rt, hangar.MachineDestroyed)
		p.nonce = ""
	}
}

func (p *player) cordon(rt *rapid.T) {
	set, cordoned := p.CordonMachine, true
	if rapid.Bool().Draw(rt, "uncordon") {
		set, cordoned = p.UncordonMachine, false
	}
	if p.ask(rt, hangar.VerbAnnotate, func(ctx context.Context) error { return set(ctx, p.ref) }) {
		p.cordoned = cordoned
	}
}

// kill ends the main process, which no lease prevents.
func (p *player) kill(rt *rapid.T) {
	err := p.SignalMachine(p.Context(), p.ref, 9)
	if p.state != hangar.MachineStarted {
		p.want(rt, hangar.VerbExec, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
		return
	}
	if err != nil {
		rt.Fatal(err)
	}
	p.becomes(rt, hangar.MachineStopped)
}

func (p *player) acquire(rt *rapid.T) {
	ttl := rapid.SampledFrom([]time.Duration{time.Second, 30 * time.Second, time.Hour}).Draw(rt, "ttl")
	ctx, _, _ := p.caller(rt)
	leased, sure := p.leased()
	mine := p.nonce != "" && hangar.LeaseNonceFrom(ctx) == p.nonce
	lease, err := p.AcquireLease(ctx, p.ref, hangar.LeaseAcquire{TTL: ttl})
	switch {
	case p.state == hangar.MachineDestroyed:
		p.want(rt, hangar.VerbLease, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
		return
	case sure && leased && !mine, !sure && err != nil:
		p.want(rt, hangar.VerbLease, err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
		return
	case err != nil:
		rt.Fatalf("acquire: %v", err)
	case sure && leased && lease.Nonce != p.nonce:
		rt.Fatalf("the nonce of a lease changed from %s to %s", p.nonce, lease.Nonce)
	case sure && !leased && (lease.Nonce == p.nonce || slices.Contains(p.past, lease.Nonce)):
		rt.Fatalf("nonce %s came back", lease.Nonce)
	}
	p.keep(lease.Nonce, lease.ExpiresAt)
}

func (p *player) release(rt *rapid.T) {
	ctx, _, _ := p.caller(rt)
	leased, sure := p.leased()
	mine := leased && hangar.LeaseNonceFrom(ctx) == p.nonce
	err := p.ReleaseLease(ctx, p.ref)
	switch {
	case sure && !mine, !sure && err != nil:
		p.want(rt, hangar.VerbLease, err, hangar.CodeInvalid, hangar.ReasonLeaseNotFound)
		return
	case err != nil:
		rt.Fatalf("release: %v", err)
	}
	p.past = append(p.past, p.nonce)
	p.nonce = ""
}

// compare checks everything visible of the Machine.
func (p *player) compare(rt *rapid.T) {
	m, err := p.Machine(p.Context(), p.ref)
	if err != nil {
		rt.Fatal(err)
	}
	if m.State != p.state || m.InstanceID != p.version || m.Config.Image != p.image || m.Cordoned != p.cordoned || m.Nonce != "" {
		rt.Fatalf("machine is %+v, want %s at %s with image %s, cordoned %t", m, p.state, p.version, p.image, p.cordoned)
	}
	listed, err := p.MachineVersions(p.Context(), p.ref)
	if err != nil {
		rt.Fatal(err)
	}
	var versions []hangar.InstanceID
	for _, v := range listed {
		versions = append(versions, v.Version)
	}
	if want := p.versions[:min(len(p.versions), journal.MaxVersions)]; !slices.Equal(versions, want) {
		rt.Fatalf("versions %v, want %v", versions, want)
	}
	lease, err := p.MachineLease(p.Context(), p.ref)
	switch leased, sure := p.leased(); {
	case !sure:
	case leased && (err != nil || lease.Nonce != p.nonce || lease.Version != p.version):
		rt.Fatalf("lease is %+v, %v, want %s until %s", lease, err, p.nonce, p.until)
	case !leased && hangar.ReasonOf(err) != hangar.ReasonLeaseNotFound:
		rt.Fatalf("lease is %+v, %v, want none", lease, err)
	}
}

// leave removes the Machine, so that the next check has the host to itself.
func (p *player) leave() {
	if p.state == hangar.MachineDestroyed {
		return
	}
	platform := hangar.WithEventSource(p.Context(), hangar.SourceAgent)
	p.must(p.DestroyMachine(platform, p.ref, hangar.MachineDestroy{Force: true}))
	p.wait(p.ref, hangar.MachineDestroyed)
}
