package host

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/pause"
)

// How many rows are published in one go, and the pauses while that fails.
const (
	publishBatch    = 256
	publishers      = 16 // at once
	minPublishPause = 50 * time.Millisecond
	maxPublishPause = 5 * time.Second
)

// publish sends the rows of Machines and volumes to the other planes, after each commit, for
// as long as it takes: while the cluster state is away they queue in the journal.
func (a *Agent) publish(ctx context.Context) {
	delay := minPublishPause
	next := func(ctx context.Context) (int, error) {
		return 1, errors.Join(a.republish(ctx), a.volumes.Republish(ctx))
	}
	for ctx.Err() == nil {
		sent, err := next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.o.Log.Warn("publish machines and volumes", keyError, err)
			}
			_ = pause.For(ctx, delay)
			delay = min(2*delay, maxPublishPause)
			continue
		}
		delay = minPublishPause
		next = a.publishSome
		if sent > 0 {
			continue
		}
		select {
		case <-a.o.Journal.Changed():
		case <-ctx.Done():
		}
	}
}

// viewPatience bounds how long an answer waits for the edge to follow. What was recorded stays
// recorded.
const viewPatience = 2 * time.Second

// awaitView lets the edge follow a commit that lets requests in, before the caller is answered,
// whose next request may be for the Machine.
func (a *Agent) awaitView(ctx context.Context, ref hangar.MachineRef) {
	m, err := a.machine(ref)
	if err != nil || a.o.View == nil {
		return
	}
	rec := m.rec.Load()
	if len(rec.Machine.Config.Services) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, viewPatience)
	defer cancel()
	if err := a.o.View.AwaitMachine(ctx, rec.Machine.Ref(), rec.Seq); err != nil {
		a.o.Log.WarnContext(ctx, "edge does not follow yet", keyApp, rec.Machine.App, keyMachine, m.id, keyError, err)
	}
}

// publishSome sends some of what waits of either kind, and returns how much that was.
func (a *Agent) publishSome(ctx context.Context) (int, error) {
	machines, err := a.publishOnce(ctx)
	volumes, verr := a.volumes.PublishSome(ctx)
	return machines + volumes, errors.Join(err, verr)
}

// publishOnce sends some of what waits, the oldest, and returns how much that was.
func (a *Agent) publishOnce(ctx context.Context) (int, error) {
	pending, err := a.o.Journal.Unpublished(publishBatch)
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(publishers)
	for _, p := range pending { // each of another Machine
		group.Go(func() error { return a.passOver(p.ID, a.publishRow(ctx, p)) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return len(pending), a.o.Journal.Published(pending)
}

// passOver turns the refusal of one row into a line of the log: it concerns no other
// Machine, whose rows must not queue behind it. What may succeed later stays an
// error.
func (a *Agent) passOver(id hangar.MachineID, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid {
		return err
	}
	a.o.Log.Error("row of a machine is refused; it is published again when it changes", keyMachine, id, keyError, err)
	return nil
}

func (a *Agent) publishRow(ctx context.Context, p journal.Pending) error {
	if p.Deleted {
		return a.o.Publisher.RetractMachine(ctx, a.o.Host.ID, hangar.MachineRef{AppID: p.AppID, ID: p.ID})
	}
	// The journal is read, not memory, which is a moment behind it.
	rec, err := a.o.Journal.Machine(p.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its retraction is queued behind
	}
	if err != nil {
		return err
	}
	return a.o.Publisher.PublishMachine(ctx, row(rec))
}

func row(rec *journal.Record) hangar.MachineRow {
	m := rec.Machine
	m.Checks = checksOf(rec, known(rec))
	return hangar.MachineRow{Machine: m, Org: rec.Org, OrgID: rec.OrgID, Network: rec.Network, Losses: rec.Losses, Crashes: rec.Crashes, Seq: rec.Seq}
}

// republish sends what lags although nothing waits in the journal, as after the
// cluster state was restored from a backup, and retracts what no record claims.
func (a *Agent) republish(ctx context.Context) error {
	published, err := a.o.Publisher.PublishedMachines(ctx, a.o.Host.ID)
	if err != nil {
		return err
	}
	for _, m := range a.all() {
		if seq, ok := published[m.id]; !ok || seq < m.seq() {
			if err := a.passOver(m.id, a.publishRow(ctx, journal.Pending{ID: m.id})); err != nil {
				return err
			}
		}
		delete(published, m.id)
	}
	for id := range published {
		if a.claims(id) {
			continue // its record cannot be read, or it was created meanwhile
		}
		if err := a.o.Publisher.RetractMachine(ctx, a.o.Host.ID, hangar.MachineRef{ID: id}); err != nil {
			return err
		}
	}
	return nil
}
