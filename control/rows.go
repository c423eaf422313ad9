package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// Rows stores the rows of Machines and volumes: a hangar.Publisher and hangar.VolumePublisher for
// hosts, and a hangar.MachineFeed for the edge, over the state.
type Rows struct {
	store      state.Store
	ledger     *ledger.Ledger
	log        *slog.Logger
	pool       machinejson.Pool // of the rows that are read
	unreadable atomic.Uint64
}

var (
	_ hangar.Publisher   = (*Rows)(nil)
	_ hangar.MachineFeed = (*Rows)(nil)
)

// NewRows returns the Rows of a state. Until SetQuotas no host may claim anything.
func NewRows(store state.Store, log *slog.Logger) *Rows {
	return &Rows{store: store, ledger: ledger.New(store), log: log}
}

// SetQuotas sets the limits of organizations that have none of their own. Claims of hosts beyond
// them are refused.
func (r *Rows) SetQuotas(defaults ledger.Defaults) { r.ledger.SetDefaults(defaults) }

// AdmitImages refuses more images of an organization that uses so many bytes of a host. It
// answers CodeExhausted with ReasonQuota. It waits for SetQuotas: a host resumes Machines that were
// created before its server ended, and a refused image would fail its Machine for good.
func (r *Rows) AdmitImages(ctx context.Context, org hangar.OrgID, used int64) error {
	if err := r.ledger.Await(ctx); err != nil {
		return err
	}
	orgs, err := tenants.OrgsByID(ctx, r.store, func(state.Item, error) {})
	if err != nil {
		return err
	}
	rec, ok := orgs[org]
	if !ok {
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "organization not found")
	}
	limits, err := r.ledger.Limits(&rec)
	if err != nil {
		return err
	}
	limit, ok := limits.Limit(hangar.QuotaImageMB)
	if mb := used >> 20; ok && mb >= limit {
		return hangar.QuotaExceeded(rec.Slug, hangar.QuotaImageMB, limit, mb, 1)
	}
	return nil
}

// Unreadable returns how often a row was skipped because it could not be read.
func (r *Rows) Unreadable() uint64 { return r.unreadable.Load() }

// PublishMachine implements hangar.Publisher. An older row than the published one
// is dropped. The row of a Machine that is destroyed frees its name, and that of
// one that has no reservation, as after the state was restored from a backup,
// gives it one.
func (r *Rows) PublishMachine(ctx context.Context, row hangar.MachineRow) error {
	m := &row.Machine
	if m.Events != nil {
		bare := *m
		bare.Events = nil
		row.Machine, m = bare, &bare
	}
	put, err := state.Write(rowKey(m.Host, m.ID), row)
	if err != nil {
		return err
	}
	if gone(m.State) {
		if err := releaseName(ctx, r.store, m.Ref(), m.Name); err != nil {
			return state.HangarError(err)
		}
		if err := r.forget(ctx, m.Ref()); err != nil {
			return state.HangarError(err)
		}
	} else if err := r.settle(ctx, m); err != nil {
		return state.HangarError(err)
	}
	for {
		cond := state.Absent(put.Key)
		switch item, err := r.store.Get(ctx, put.Key); {
		case err == nil:
			if published(item) >= row.Seq {
				return nil
			}
			cond = state.Unchanged(item)
		case !errors.Is(err, state.ErrNotFound):
			return state.HangarError(err)
		default:
			if err := r.adopt(ctx, row); err != nil {
				return state.HangarError(err)
			}
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{cond}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// RetractMachine implements hangar.Publisher. The reservation of the Machine and its name go
// with the row.
func (r *Rows) RetractMachine(ctx context.Context, host hangar.HostID, ref hangar.MachineRef) error {
	key := rowKey(host, ref.ID)
	for {
		var txn state.Txn
		switch item, err := r.store.Get(ctx, key); {
		case err == nil:
			txn = state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(key)}}
			if row, err := r.parse(item); err == nil && ref.AppID == "" {
				ref.AppID = row.Machine.AppID
			}
		case !errors.Is(err, state.ErrNotFound):
			return state.HangarError(err)
		}
		if err := r.releaseReservation(ctx, host, ref, &txn); err != nil {
			return state.HangarError(err)
		}
		if len(txn.Then) == 0 {
			return nil
		}
		if _, err := r.store.Txn(ctx, txn); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// releaseReservation adds to a transaction the removal of a Machine's reservation, if it names the
// host, with its name and its quotas.
func (r *Rows) releaseReservation(ctx context.Context, host hangar.HostID, ref hangar.MachineRef, txn *state.Txn) error {
	held, item, err := state.Read[reservation](ctx, r.store, state.ReservationKey(ref))
	if errors.Is(err, state.ErrNotFound) || err == nil && held.Host != host {
		return nil
	}
	if err != nil {
		return err
	}
	txn.If, txn.Then = append(txn.If, state.Unchanged(item)), append(txn.Then, state.Delete(item.Key))
	named, name, err := state.Read[nameRecord](ctx, r.store, state.NameKey(ref.AppID, held.Name))
	switch {
	case err == nil && named.ID == ref.ID:
		txn.If, txn.Then = append(txn.If, state.Unchanged(name)), append(txn.Then, state.Delete(name.Key))
	case err != nil && !errors.Is(err, state.ErrNotFound):
		return err
	}
	return r.ledger.Credit(ctx, held.OrgID, ledger.Negative(held.Counts), txn)
}

// PublishedMachines implements hangar.Publisher. A row that cannot be read counts
// as the oldest, so that its host writes it again.
func (r *Rows) PublishedMachines(ctx context.Context, host hangar.HostID) (map[hangar.MachineID]uint64, error) {
	items, _, err := state.All(ctx, r.store, rowsPrefix(host), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	seqs := make(map[hangar.MachineID]uint64, len(items))
	for _, item := range items {
		if _, id, ok := parseRowKey(item.Key); ok {
			seqs[id] = published(item)
		}
	}
	return seqs, nil
}

// ReservedMachines returns the Machines that are reserved on a host: it has them, or may still make them. A reservation
// that cannot be read is left out.
func (r *Rows) ReservedMachines(ctx context.Context, host hangar.HostID) ([]hangar.MachineRef, error) {
	items, _, err := state.All(ctx, r.store, state.ReservationsPrefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	var refs []hangar.MachineRef
	for _, item := range items {
		held, err := state.Decode[reservation](item)
		if err != nil {
			r.log.ErrorContext(ctx, "reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if held.Host == host {
			app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, state.ReservationsPrefix), "/")
			refs = append(refs, hangar.MachineRef{AppID: hangar.AppID(app), ID: held.ID})
		}
	}
	return refs, nil
}

// WatchMachines implements hangar.MachineFeed.
func (r *Rows) WatchMachines(ctx context.Context) iter.Seq2[hangar.MachineRowChange, error] {
	return func(yield func(hangar.MachineRowChange, error) bool) {
		feed := rowFeed{rows: r, yield: yield, known: map[string]state.Revision{}}
		for synced := false; ctx.Err() == nil; synced = true {
			next, err := feed.list(ctx)
			if err == nil && !feed.stopped && !synced {
				feed.send(hangar.MachineRowChange{Synced: true})
			}
			if err == nil && !feed.stopped {
				err = feed.watch(ctx, next)
			}
			if feed.stopped || ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, state.ErrCompacted) {
				yield(hangar.MachineRowChange{}, state.HangarError(err))
				return
			}
		}
	}
}

// rowFeed is one watcher.
type rowFeed struct {
	rows    *Rows
	yield   func(hangar.MachineRowChange, error) bool
	known   map[string]state.Revision // the keys that the watcher has received, and their revisions
	stopped bool
}

// list yields the differences from what the watcher has received.
func (f *rowFeed) list(ctx context.Context) (next state.Revision, err error) {
	items, revision, err := state.All(ctx, f.rows.store, state.HostsPrefix, false)
	if err != nil {
		return 0, err
	}
	there := make(map[string]struct{}, len(items))
	for _, item := range items {
		there[item.Key] = struct{}{}
		if f.known[item.Key] != item.Revision {
			f.put(item)
		}
	}
	for key := range f.known {
		if _, ok := there[key]; !ok {
			f.retract(key)
		}
	}
	return revision + 1, nil
}

func (f *rowFeed) watch(ctx context.Context, from state.Revision) error {
	for batch, err := range f.rows.store.Watch(ctx, state.HostsPrefix, from) {
		if err != nil {
			return err
		}
		for _, c := range batch.Changes {
			if c.Deleted {
				f.retract(c.Key)
			} else {
				f.put(c.Item)
			}
		}
		if f.stopped {
			return nil
		}
	}
	return nil
}

func (f *rowFeed) put(item state.Item) {
	f.known[item.Key] = item.Revision
	if row, err := f.rows.parse(item); err == nil {
		f.send(hangar.MachineRowChange{ID: row.Machine.ID, Row: &row})
	}
}

func (f *rowFeed) retract(key string) {
	delete(f.known, key)
	if _, id, ok := parseRowKey(key); ok {
		f.send(hangar.MachineRowChange{ID: id})
	}
}

func (f *rowFeed) send(c hangar.MachineRowChange) {
	f.stopped = f.stopped || !f.yield(c, nil)
}

// row returns a row, state.ErrNotFound or hangar.ReasonRecordDamaged.
func (r *Rows) row(ctx context.Context, host hangar.HostID, id hangar.MachineID) (hangar.MachineRow, error) {
	item, err := r.store.Get(ctx, rowKey(host, id))
	if err != nil {
		return hangar.MachineRow{}, err
	}
	return r.parse(item)
}

// parse reads a row, or logs and counts why it is unreadable. A row under a wrong key, or with a
// state that this version does not know, is unreadable, too.
func (r *Rows) parse(item state.Item) (hangar.MachineRow, error) {
	row, err := r.decode(item.Value)
	if err == nil {
		err = rowFault(item.Key, &row.Machine)
	}
	if err != nil {
		r.unreadable.Add(1)
		r.log.Warn("row skipped", keyKey, item.Key, keyError, err)
		return hangar.MachineRow{}, state.Damaged(item.Key, err)
	}
	return row, nil
}

// decode reads what PublishMachine wrote.
func (r *Rows) decode(value []byte) (row hangar.MachineRow, err error) {
	stored := struct {
		*hangar.MachineRow
		Machine machinejson.Machine `json:"machine"`
	}{MachineRow: &row, Machine: r.pool.Stored(&row.Machine)}
	if err = json.Unmarshal(value, &stored); err == nil {
		stored.Machine.Restore()
	}
	return row, err
}

// published returns the Seq of a row, 0 if it cannot be read. It skips the config, which is most of
// the work.
func published(item state.Item) uint64 {
	var row struct {
		Machine struct {
			hangar.Machine
			Config struct{} `json:"config"`
		} `json:"machine"`
		Seq uint64 `json:"seq"`
	}
	if json.Unmarshal(item.Value, &row) != nil || rowFault(item.Key, &row.Machine.Machine) != nil {
		return 0
	}
	return row.Seq
}

// rowFault says why a row does not belong to its key.
func rowFault(key string, m *hangar.Machine) error {
	host, id, ok := parseRowKey(key)
	switch {
	case !ok:
		return errors.New("not the key of a row")
	case m.ID != id || m.Host != host:
		return fmt.Errorf("row of machine %q on host %q", m.ID, m.Host)
	case !m.State.Valid():
		return fmt.Errorf("unknown state %q", m.State)
	case tenants.NameFault(string(m.App)) != "":
		return fmt.Errorf("invalid app %q", m.App)
	default:
		return nil
	}
}
