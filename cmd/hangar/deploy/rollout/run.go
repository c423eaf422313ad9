package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/plan"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// tidying bounds the clean-up after a deploy.
const tidying = 30 * time.Second

// Run creates the release and executes the plan. After a failure it removes Machines that never served
// requests and leaves other changes. The error then says which releases run.
func (d *Deploy) Run(ctx context.Context) (err error) {
	if err := d.begin(ctx); err != nil {
		return err
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	defer func() { err = d.end(ctx, err) }()
	// From the first lease on: those that the deploy has must not end while it waits for others.
	var beating sync.WaitGroup
	beat, stop := context.WithCancel(ctx)
	beating.Go(func() { d.heartbeat(beat, lost) })
	defer beating.Wait()
	defer stop()
	if err := d.acquireAll(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	if err := d.abandon(ctx); err != nil {
		return err
	}
	d.Begun = true
	d.address(ctx)
	for i, stage := range d.Plan.Stages {
		d.stage = i + 1
		if err := d.runStage(ctx, stage); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	d.stage = 0
	return d.mark(ctx)
}

// begin creates the release, and checks that no other one is in progress.
func (d *Deploy) begin(ctx context.Context) error {
	in := hangar.ReleaseCreate{
		Strategy: hangar.ReleaseStrategy(d.strategy), Reason: d.o.Reason, Rollback: d.o.Rollback, Description: "Release",
	}
	if d.o.Rollback > 0 {
		in.Description = fmt.Sprintf("Rollback to v%d", d.o.Rollback)
	} else {
		in.Image = d.image
		var err error
		if in.Definition, err = d.o.File.Definition(); err != nil {
			return err
		}
	}
	made, err := d.p.CreateRelease(ctx, d.o.App, in)
	if err != nil {
		return err
	}
	d.Release = made
	// Of two deploys that begin at the same time, the one with the older version continues.
	now, err := d.p.Releases(ctx, d.o.App, 0)
	if err == nil && !d.o.TakeOver {
		err = d.unoccupied(now, made.Version)
	}
	if err == nil {
		_, err = d.p.UpdateRelease(ctx, made.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseRunning})
	}
	if err != nil {
		return errors.Join(err, d.conclude(ctx, hangar.ReleaseFailed, err))
	}
	d.report(Event{Text: fmt.Sprintf("Release v%d of %s: %s", made.Version, d.o.App, d.image)})
	return nil
}

// abandon marks the releases of earlier deploys that died as interrupted.
func (d *Deploy) abandon(ctx context.Context) error {
	for _, r := range d.before {
		if !r.Status.InProgress() {
			continue
		}
		_, err := d.p.UpdateRelease(ctx, r.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseInterrupted})
		if err != nil && hangar.ReasonOf(err) != hangar.ReasonWrongState && hangar.ReasonOf(err) != hangar.ReasonReleaseNotFound {
			return err
		}
	}
	return nil
}

// conclude records the result of the release.
func (d *Deploy) conclude(ctx context.Context, status hangar.ReleaseStatus, why error) error {
	in := hangar.ReleaseUpdate{Status: status}
	if why != nil {
		const most = 1000                                                                       // characters
		in.Metadata, _ = json.Marshal(map[string]string{"error": cli.Short(why.Error(), most)}) // never fails for strings
	}
	return finish.Do(ctx, tidying, func(ctx finish.Context) error {
		_, err := d.p.UpdateRelease(ctx, d.Release.ID, in)
		return err
	})
}

// end removes Machines that never served requests after a failure, releases the leases, and records the
// result of the release.
func (d *Deploy) end(ctx context.Context, failed error) error {
	status := hangar.ReleaseComplete
	switch {
	case errors.Is(failed, context.Canceled):
		status = hangar.ReleaseInterrupted
	case failed != nil:
		status = hangar.ReleaseFailed
	}
	statement := ""
	err := finish.Do(ctx, tidying, func(ctx finish.Context) error {
		var errs []error
		if failed != nil {
			errs = append(errs, d.removeUnserved(ctx))
			statement = d.statement(ctx)
		}
		errs = append(errs, d.releaseAll(ctx))
		return errors.Join(errs...)
	})
	err = errors.Join(err, d.conclude(ctx, status, failed))
	if failed == nil {
		return err
	}
	if err != nil {
		d.report(Event{Text: "cleaning up: " + err.Error(), Failed: true})
	}
	next := fmt.Sprintf("deploy again to continue, or `hangar releases rollback %s N`; see `hangar releases list %s`", d.o.App, d.o.App)
	return cli.WithHint(fmt.Errorf("release v%d is %s: %w\n%s", d.Release.Version, status, failed, statement), next)
}

// statement describes which releases the Machines run.
func (d *Deploy) statement(ctx context.Context) string {
	machines, err := d.p.Machines(ctx, d.o.App, hangar.MachineFilter{})
	if err != nil {
		return "The Machines cannot be listed: " + err.Error()
	}
	count := map[string]int{}
	for _, m := range machines {
		group := GroupOf(m)
		if m.Config.Metadata[keyPlatform] != platformManaged || m.State == hangar.MachineDestroying || group == taskGroup {
			continue
		}
		text := fmt.Sprintf("%s: v%s is %s", group, m.Config.Metadata[keyVersion], m.State)
		if m.Cordoned {
			text += " and cordoned"
		}
		count[text]++
	}
	if len(count) == 0 {
		return "There are no Machines."
	}
	var lines []string
	for _, text := range slices.Sorted(maps.Keys(count)) {
		lines = append(lines, fmt.Sprintf("  %s, %s", text, cli.Plural(count[text], "Machine", "Machines")))
	}
	return strings.Join(lines, "\n")
}

// removeUnserved destroys Machines that were created for this deploy and never served requests.
func (d *Deploy) removeUnserved(ctx finish.Context) error {
	d.mu.Lock()
	ids := slices.Collect(maps.Values(d.slots))
	d.mu.Unlock()
	var errs []error
	for _, id := range ids {
		m, err := d.p.Machine(ctx, d.ref(id))
		if err != nil || m.State == hangar.MachineDestroying || m.State == hangar.MachineDestroyed {
			continue
		}
		if m.Config.Metadata[keyTemporary] == "" && (m.Config.Metadata[keyReplaces] == "" || !m.Cordoned) {
			continue
		}
		errs = append(errs, d.p.DestroyMachine(d.leased(ctx, id), m.Ref(), hangar.MachineDestroy{Force: true}))
	}
	return errors.Join(errs...)
}

// runStage runs the steps of a stage concurrently. A step that fails does not stop the others.
func (d *Deploy) runStage(ctx context.Context, stage plan.Stage) error {
	errs := make([]error, len(stage))
	room := make(chan struct{}, parallel)
	var running sync.WaitGroup
	for i, s := range stage {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			if ctx.Err() == nil {
				errs[i] = d.step(ctx, s)
			}
		})
	}
	running.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// mark writes the release to the metadata of Machines that needed no update. The next deploy updates those for which
// that fails.
func (d *Deploy) mark(ctx context.Context) error {
	version := strconv.Itoa(d.Release.Version)
	machines, err := d.p.Machines(ctx, d.o.App, hangar.MachineFilter{Metadata: map[string]string{keyPlatform: platformManaged}})
	if err != nil && ctx.Err() == nil {
		d.report(Event{Text: fmt.Sprintf("Machines that needed no update are not marked with the release: %s", err)})
	}
	for _, m := range machines {
		if m.State == hangar.MachineDestroying || m.Config.Metadata[keyVersion] == version {
			continue
		}
		if err := d.p.MergeMachineMetadata(ctx, m.Ref(), hangar.MetadataWrite{Pairs: map[string]string{
			keyVersion: version, keyRelease: string(d.Release.ID),
		}}); err != nil && ctx.Err() == nil {
			d.report(Event{Text: fmt.Sprintf("Machine %s needed no update and is not marked with the release: %s", m.ID, err)})
		}
	}
	return context.Cause(ctx)
}

// address allocates the shared address for an App that serves HTTP and has no address.
func (d *Deploy) address(ctx context.Context) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(d.groups)), shareable) {
		return
	}
	list, err := d.p.Addresses(ctx, d.o.App)
	if err != nil || len(list) > 0 {
		return
	}
	made, err := d.p.AllocateAddress(ctx, d.o.App, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
	if err != nil {
		d.report(Event{Text: fmt.Sprintf("App %s has no address, and none could be allocated: %s", d.o.App, err)})
		return
	}
	d.report(Event{Text: fmt.Sprintf("App %s had no address and is now served at %s, which Apps share", d.o.App, made.IP)})
}

// shareable reports whether a group has a port that can be served at a shared address.
func shareable(g appconfig.Group) bool {
	for i := range g.Config.Services {
		s := &g.Config.Services[i]
		for k := range s.Ports {
			if s.Handling(&s.Ports[k]).Shareable() {
				return true
			}
		}
	}
	return false
}

func (d *Deploy) ref(id hangar.MachineID) hangar.MachineRef {
	return hangar.MachineRef{App: d.o.App, ID: id}
}

func (d *Deploy) report(e Event) {
	if d.o.Report == nil {
		return
	}
	e.Time = time.Now()
	e.Stages = len(d.Plan.Stages)
	e.Stage = d.stage
	if d.Release != nil {
		e.Release = d.Release.Version
	}
	d.o.Report(e)
}

// leased returns a context that carries the lease of a Machine.
func (d *Deploy) leased(ctx context.Context, id hangar.MachineID) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return hangar.WithLeaseNonce(ctx, d.leases[id])
}

// leaseRequest returns the lease that the deploy has on each Machine.
func (d *Deploy) leaseRequest() hangar.LeaseAcquire {
	return hangar.LeaseAcquire{TTL: d.o.LeaseTTL, Description: fmt.Sprintf("hangar deploy, release v%d", d.Release.Version)}
}

// acquireAll leases every Machine of the plan, and checks that none has changed since then.
func (d *Deploy) acquireAll(ctx context.Context) error {
	until := time.Now().Add(d.o.WaitLease)
	for _, id := range slices.Sorted(maps.Keys(d.machines)) {
		for {
			lease, err := d.p.AcquireLease(ctx, d.ref(id), d.leaseRequest())
			if hangar.ReasonOf(err) == hangar.ReasonLeaseHeld && time.Now().Before(until) {
				d.report(Event{Machine: id, Group: GroupOf(d.machines[id]), Text: "waiting: " + cli.Message(err)})
				if err := pause.For(ctx, time.Second); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return err
			}
			d.mu.Lock()
			d.leases[id] = lease.Nonce
			d.mu.Unlock()
			if lease.Version != "" && lease.Version != d.machines[id].InstanceID {
				return cli.WithHint(hangar.Errorf(hangar.CodeConflict, hangar.ReasonStaleVersion, "Machine %s was changed since the deploy was planned", id), "deploy again")
			}
			break
		}
	}
	return nil
}

// heartbeat refreshes the release and the leases until ctx ends. A release that has ended, or a lost
// lease, means that another command has taken over, and ends the deploy. A refresh is not interrupted:
// one that arrives after the release of its lease would acquire a new one.
func (d *Deploy) heartbeat(ctx context.Context, lost context.CancelCauseFunc) {
	for pause.For(ctx, d.o.LeaseTTL/3) == nil {
		err := finish.Do(ctx, tidying, d.beat)
		if reason := hangar.ReasonOf(err); reason == hangar.ReasonLeaseHeld || reason == hangar.ReasonWrongState {
			lost(fmt.Errorf("another command has taken over: %w", err))
			return
		}
	}
}

// beat refreshes the release and the leases once. It returns ReasonWrongState if the release has ended: its leases are
// not acquired again then. It returns ReasonLeaseHeld if a lease is lost. The next beat retries after other failures.
func (d *Deploy) beat(ctx finish.Context) error {
	_, failed := d.p.UpdateRelease(ctx, d.Release.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseRunning})
	if hangar.ReasonOf(failed) == hangar.ReasonWrongState {
		return failed
	}
	d.mu.Lock()
	leases := maps.Clone(d.leases)
	d.mu.Unlock()
	for id, nonce := range leases {
		lease, err := d.p.AcquireLease(hangar.WithLeaseNonce(ctx, nonce), d.ref(id), d.leaseRequest())
		if hangar.ReasonOf(err) == hangar.ReasonLeaseHeld {
			return err
		}
		d.mu.Lock()
		if _, held := d.leases[id]; held && err == nil {
			d.leases[id] = lease.Nonce // another one, if the beat was late and the lease had ended
		}
		d.mu.Unlock()
	}
	return failed
}

// releaseAll releases the leases.
func (d *Deploy) releaseAll(ctx finish.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for id, nonce := range d.leases {
		err := d.p.ReleaseLease(hangar.WithLeaseNonce(ctx, nonce), d.ref(id))
		switch hangar.ReasonOf(err) {
		case hangar.ReasonLeaseNotFound, hangar.ReasonMachineNotFound, hangar.ReasonWrongState: // gone with its Machine
		default:
			errs = append(errs, err)
		}
	}
	clear(d.leases)
	return errors.Join(errs...)
}
