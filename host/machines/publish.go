package machines

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// rows publishes the Machines for the other planes.
type rows struct {
	index   *index
	journal *journal.Journal
	to      hangar.Publisher
	view    hangar.MachineView // nil: answers do not wait for the edge
	host    hangar.HostID
	log     *slog.Logger
}

// viewPatience bounds how long an answer waits for the edge. The change is recorded in any case.
const viewPatience = 2 * time.Second

// awaitView waits until the edge has seen a commit that admits requests, because the caller's next
// request may be for the Machine.
func (r *rows) awaitView(ctx context.Context, ref hangar.MachineRef) {
	m, err := r.index.machine(ref)
	if err != nil || r.view == nil {
		return
	}
	rec := m.rec.Load()
	if len(rec.Machine.Config.Services) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, viewPatience)
	defer cancel()
	if err := r.view.AwaitMachine(ctx, rec.Machine.Ref(), rec.Seq); err != nil {
		r.log.WarnContext(ctx, "edge does not follow yet", keyApp, rec.Machine.App, keyMachine, m.id, keyError, err)
	}
}

// PublishSome publishes some of the pending rows, the oldest, and returns how many.
func (r *rows) PublishSome(ctx context.Context) (int, error) {
	return journal.PublishSome(r.journal.Unpublished, r.journal.Published, func(p journal.Pending) error {
		return r.passOver(p.ID, r.publishRow(ctx, p))
	})
}

// passOver logs the refusal of one row, because other Machines' rows must not queue behind it. It
// returns temporary errors.
func (r *rows) passOver(id hangar.MachineID, err error) error {
	if hangar.CodeOf(err) != hangar.CodeInvalid && hangar.ReasonOf(err) != hangar.ReasonRecordDamaged {
		return err
	}
	r.log.Error("row of a machine is refused; it is published again when it changes", keyMachine, id, keyError, err)
	return nil
}

func (r *rows) publishRow(ctx context.Context, p journal.Pending) error {
	if p.Deleted {
		return r.to.RetractMachine(ctx, r.host, hangar.MachineRef{AppID: p.AppID, ID: p.ID})
	}
	// Read from the journal, because memory lags behind it.
	rec, err := r.journal.Machine(p.ID)
	if errors.Is(err, journal.ErrNotFound) {
		return nil // its removal is queued behind, or it is unreadable
	}
	if err != nil {
		return err
	}
	return r.to.PublishMachine(ctx, row(rec))
}

func row(rec *journal.Record) hangar.MachineRow {
	m := rec.Machine
	m.Checks = checksOf(rec, known(rec))
	return hangar.MachineRow{Machine: m, Org: rec.Org, OrgID: rec.OrgID, Network: rec.Network, Losses: rec.Losses, Crashes: rec.Crashes, Seq: rec.Seq}
}

// Republish publishes rows that lag although the outbox is empty, as after the cluster state was
// restored from a backup, and retracts rows without a record.
func (r *rows) Republish(ctx context.Context) error {
	published, err := r.to.PublishedMachines(ctx, r.host)
	if err != nil {
		return err
	}
	for _, m := range r.index.all() {
		if seq, ok := published[m.id]; !ok || seq < m.seq() {
			if err := r.passOver(m.id, r.publishRow(ctx, journal.Pending{ID: m.id})); err != nil {
				return err
			}
		}
		delete(published, m.id)
	}
	for id := range published {
		if r.index.Owns(id) {
			continue // its record cannot be parsed, or it was created meanwhile
		}
		if err := r.to.RetractMachine(ctx, r.host, hangar.MachineRef{ID: id}); err != nil {
			return err
		}
	}
	return nil
}
