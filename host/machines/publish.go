package machines

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// How many rows are published in one go.
const (
	publishBatch = 256
	publishers   = 16 // at once
)

// viewPatience bounds how long an answer waits for the edge to follow. What was recorded stays
// recorded.
const viewPatience = 2 * time.Second

// awaitView lets the edge follow a commit that lets requests in, before the caller is answered,
// whose next request may be for the Machine.
func (s *Store) awaitView(ctx context.Context, ref hangar.MachineRef) {
	m, err := s.machine(ref)
	if err != nil || s.o.View == nil {
		return
	}
	rec := m.rec.Load()
	if len(rec.Machine.Config.Services) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, viewPatience)
	defer cancel()
	if err := s.o.View.AwaitMachine(ctx, rec.Machine.Ref(), rec.Seq); err != nil {
		s.o.Log.WarnContext(ctx, "edge does not follow yet", keyApp, rec.Machine.App, keyMachine, m.id, keyError, err)
	}
}

// PublishSome sends some of the rows that wait, the oldest, and returns how many.
func (s *Store) PublishSome(ctx context.Context) (int, error) {
	pending, err := s.o.Journal.Unpublished(publishBatch)
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(publishers)
	for _, p := range pending { // each of another Machine
		group.Go(func() error { return s.passOver(p.ID, s.publishRow(ctx, p)) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return len(pending), s.o.Journal.Published(pending)
}

// passOver turns the refusal of one row into a line of the log: it concerns no other
// Machine, whose rows must not queue behind it. What may succeed later stays an
// error.
func (s *Store) passOver(id hangar.MachineID, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid {
		return err
	}
	s.o.Log.Error("row of a machine is refused; it is published again when it changes", keyMachine, id, keyError, err)
	return nil
}

func (s *Store) publishRow(ctx context.Context, p journal.Pending) error {
	if p.Deleted {
		return s.o.Publisher.RetractMachine(ctx, s.o.Host.ID, hangar.MachineRef{AppID: p.AppID, ID: p.ID})
	}
	// The journal is read, not memory, which is a moment behind it.
	rec, err := s.o.Journal.Machine(p.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its retraction is queued behind
	}
	if err != nil {
		return err
	}
	return s.o.Publisher.PublishMachine(ctx, row(rec))
}

func row(rec *journal.Record) hangar.MachineRow {
	m := rec.Machine
	m.Checks = checksOf(rec, known(rec))
	return hangar.MachineRow{Machine: m, Org: rec.Org, OrgID: rec.OrgID, Network: rec.Network, Losses: rec.Losses, Crashes: rec.Crashes, Seq: rec.Seq}
}

// Republish sends what lags although nothing waits in the journal, as after the
// cluster state was restored from a backup, and retracts what no record claims.
func (s *Store) Republish(ctx context.Context) error {
	published, err := s.o.Publisher.PublishedMachines(ctx, s.o.Host.ID)
	if err != nil {
		return err
	}
	for _, m := range s.all() {
		if seq, ok := published[m.id]; !ok || seq < m.seq() {
			if err := s.passOver(m.id, s.publishRow(ctx, journal.Pending{ID: m.id})); err != nil {
				return err
			}
		}
		delete(published, m.id)
	}
	for id := range published {
		if s.Owns(id) {
			continue // its record cannot be read, or it was created meanwhile
		}
		if err := s.o.Publisher.RetractMachine(ctx, s.o.Host.ID, hangar.MachineRef{ID: id}); err != nil {
			return err
		}
	}
	return nil
}
