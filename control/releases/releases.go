// Package releases keeps what was deployed to Apps, in the cluster state.
//
// Promises. A version is unique in its App. Of an App, the newest hangar.MaxReleases are kept, and
// hangar.MaxReleaseDocuments of their definitions; the current release stays with its definition at
// any age. The number of Apps bounds the rest. The releases of an App are removed with it.
//
// Concurrency. All is safe for concurrent use; nothing is kept in memory.
//
// It changes no Machine, and adds nothing to a deployer's report.
package releases

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Releases implements hangar.ReleaseService.
type Releases struct {
	store   state.Store
	tenants *tenants.Directory
	log     *slog.Logger
	now     func() time.Time
}

var _ hangar.ReleaseService = (*Releases)(nil)

// New returns the service of what is in a state.
func New(store state.Store, dir *tenants.Directory, log *slog.Logger, now func() time.Time) *Releases {
	return &Releases{store: store, tenants: dir, log: log, now: now}
}

// prefix is that of the keys of an App's releases.
func prefix(app hangar.AppID) string { return state.ReleasesPrefix + string(app) + "/" }

// key is that of a release. Keys sort as versions do.
func key(app hangar.AppID, version int) string { return prefix(app) + fmt.Sprintf("%010d", version) }

// kept is a release with the item that it was read from.
type kept struct {
	hangar.Release

	item state.Item
}

// of returns the releases of an App, the newest first, and the newest version. A release that cannot be
// read is left out; its version is not given again.
func (s *Releases) of(ctx context.Context, app hangar.AppID) (list []kept, newest int, err error) {
	items, _, err := state.All(ctx, s.store, prefix(app), false)
	if err != nil {
		return nil, 0, state.HangarError(err)
	}
	if len(items) > 0 {
		if newest, err = strconv.Atoi(strings.TrimPrefix(items[len(items)-1].Key, prefix(app))); err != nil {
			return nil, 0, err
		}
	}
	list = make([]kept, 0, len(items))
	for _, item := range slices.Backward(items) {
		rec, err := state.Decode[hangar.Release](item)
		if err != nil {
			s.log.ErrorContext(ctx, "release skipped", "key", item.Key, "error", err)
			continue
		}
		list = append(list, kept{rec, item})
	}
	return list, newest, nil
}

// current is the newest that is complete or, if none is, the newest; nil: there is none.
func current(list []kept) *kept {
	if i := slices.IndexFunc(list, func(r kept) bool { return r.Status == hangar.ReleaseComplete }); i >= 0 {
		return &list[i]
	}
	if len(list) > 0 {
		return &list[0]
	}
	return nil
}

// shown is a release as the caller sees it. A third party does not learn what users are called.
func shown(ctx context.Context, r hangar.Release) *hangar.Release {
	if p, err := tenants.Caller(ctx); err != nil || p.Client != "" {
		r.User = ""
	}
	return &r
}

// CreateRelease implements hangar.ReleaseService.
func (s *Releases) CreateRelease(ctx context.Context, name hangar.AppName, in hangar.ReleaseCreate) (*hangar.Release, error) {
	for {
		app, item, err := s.tenants.App(ctx, name, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		if app.Deleting {
			return nil, tenants.AppIsGoing(name)
		}
		if err := in.Validate(); err != nil {
			return nil, err
		}
		made, err := s.tryCreate(ctx, app, item, in)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		return shown(ctx, made), nil
	}
}

// tryCreate returns state.ErrConflict when another version was made meanwhile, or the App changed.
func (s *Releases) tryCreate(ctx context.Context, app tenants.AppRecord, item state.Item, in hangar.ReleaseCreate) (hangar.Release, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return hangar.Release{}, err
	}
	list, newest, err := s.of(ctx, app.ID)
	if err != nil {
		return hangar.Release{}, err
	}
	version := newest + 1
	now := s.now().UTC().Truncate(time.Second)
	made := hangar.Release{
		ID: hangar.NewReleaseID(app.ID, version), App: app.Name, Version: version, Status: hangar.ReleasePending, Strategy: in.Strategy,
		Image: in.Image, Definition: compact(in.Definition), Reason: in.Reason, Description: in.Description,
		User: p.Subject, UserID: p.User, CreatedAt: now, UpdatedAt: now,
	}
	if made.Strategy == "" {
		made.Strategy = hangar.StrategyRolling
	}
	if in.Rollback > 0 {
		i := slices.IndexFunc(list, func(r kept) bool { return r.Version == in.Rollback })
		if i < 0 {
			return hangar.Release{}, hangar.ReleaseNotFound()
		}
		made.Image, made.Definition = list[i].Image, list[i].Definition
	}
	put, err := state.Write(key(app.ID, version), made)
	if err != nil {
		return hangar.Release{}, err
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(item), state.Absent(put.Key)}, Then: []state.Op{put}}
	if err := trim(&txn, list, len(made.Definition)); err != nil {
		return hangar.Release{}, err
	}
	_, err = s.store.Txn(ctx, txn)
	return made, err
}

// trim forgets in a transaction what is too much beside a new release with a definition of so many
// bytes: the oldest releases, and then the definitions of the oldest.
func trim(txn *state.Txn, list []kept, definition int) error {
	stays := current(list)
	count, size := 1, definition
	for i := range list {
		r := &list[i]
		if r == stays || count < hangar.MaxReleases {
			count++
			size += len(r.Definition)
			if size > hangar.MaxReleaseDocuments && r != stays && r.Definition != nil {
				size -= len(r.Definition)
				rec := r.Release
				rec.Definition = nil
				put, err := state.Write(r.item.Key, rec)
				if err != nil {
					return err
				}
				txn.If, txn.Then = append(txn.If, state.Unchanged(r.item)), append(txn.Then, put)
			}
			continue
		}
		txn.If, txn.Then = append(txn.If, state.Unchanged(r.item)), append(txn.Then, state.Delete(r.item.Key))
	}
	return nil
}

// compact is a document without blanks; nil for null and for none.
func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil || b.Len() == 0 || b.String() == "null" {
		return nil
	}
	return b.Bytes()
}

// UpdateRelease implements hangar.ReleaseService.
func (s *Releases) UpdateRelease(ctx context.Context, id hangar.ReleaseID, in hangar.ReleaseUpdate) (*hangar.Release, error) {
	if _, err := tenants.Caller(ctx); err != nil {
		return nil, err
	}
	app, version, ok := id.Parts()
	if !ok {
		return nil, hangar.ReleaseNotFound()
	}
	for {
		rec, item, err := state.Read[hangar.Release](ctx, s.store, key(app, version))
		if errors.Is(err, state.ErrNotFound) {
			return nil, hangar.ReleaseNotFound()
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		_, appItem, err := s.tenants.AppFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: rec.App, AppID: app})
		if hangar.CodeOf(err) == hangar.CodeNotFound {
			return nil, hangar.ReleaseNotFound() // in the words of one that is not there
		}
		if err == nil {
			err = in.Validate()
		}
		if err != nil {
			return nil, err
		}
		if !rec.Status.InProgress() && rec.Status != in.Status {
			return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "release v%d is %s already", rec.Version, rec.Status)
		}
		rec.Status, rec.UpdatedAt = in.Status, s.now().UTC().Truncate(time.Second)
		if metadata := compact(in.Metadata); metadata != nil {
			rec.Metadata = metadata
		}
		put, err := state.Write(item.Key, rec)
		if err != nil {
			return nil, err
		}
		_, err = s.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item), state.Unchanged(appItem)}, Then: []state.Op{put}})
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		return shown(ctx, rec), nil
	}
}

// readable returns the releases of an App that the caller may read.
func (s *Releases) readable(ctx context.Context, name hangar.AppName) ([]kept, error) {
	app, _, err := s.tenants.App(ctx, name, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	list, _, err := s.of(ctx, app.ID)
	return list, err
}

// Releases implements hangar.ReleaseService.
func (s *Releases) Releases(ctx context.Context, name hangar.AppName, limit int) ([]*hangar.Release, error) {
	list, err := s.readable(ctx, name)
	if err != nil {
		return nil, err
	}
	if limit > 0 {
		list = list[:min(limit, len(list))]
	}
	found := make([]*hangar.Release, 0, len(list))
	for _, r := range list {
		found = append(found, shown(ctx, r.Release))
	}
	return found, nil
}

// CurrentRelease implements hangar.ReleaseService.
func (s *Releases) CurrentRelease(ctx context.Context, name hangar.AppName) (*hangar.Release, error) {
	list, err := s.readable(ctx, name)
	if err != nil {
		return nil, err
	}
	found := current(list)
	if found == nil {
		return nil, hangar.ReleaseNotFound()
	}
	return shown(ctx, found.Release), nil
}

// Upkeep forgets releases; it asks for no principal.
type Upkeep struct{ store state.Store }

// NewUpkeep returns the Upkeep of a state.
func NewUpkeep(store state.Store) Upkeep { return Upkeep{store} }

// Forget removes the releases of an App that is marked.
func (s Upkeep) Forget(ctx context.Context, app hangar.AppID, marked state.Item) error {
	items, _, err := state.All(ctx, s.store, prefix(app), true)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(items, state.MaxTxnOps-1) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(marked)}}
		for _, item := range batch {
			txn.Then = append(txn.Then, state.Delete(item.Key))
		}
		if _, err := s.store.Txn(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}
