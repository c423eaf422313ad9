// Package extensions has providers make, change and delete extensions of Apps.
//
// Promises. Each step is journaled in the record of an extension before a provider is asked, and its
// result afterwards, so that every step may run twice and a crash at any moment leaves nothing behind
// on either side: an extension whose answer was lost is requested again under the same id, and the
// record of a destroyed one stays until the provider has confirmed its deletion. What a provider
// answers becomes secrets of the App in the transaction that makes the extension ready: all or none.
// A name is unique on the whole platform.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state. The
// Provisioner has a queue for each provider, so that a slow one does not delay others, and serves
// the organizations in a queue in turn.
//
// The package trusts no provider: answers and webhooks are bounded here and in package call, and an
// App serves the address of an extension only if the App is the provider's own.
package extensions

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/control/vault"
)

// Keys of log records.
const (
	keyKey       = "key"
	keyExtension = "extension"
	keyProvider  = "provider"
	keyError     = "error"
)

// Config is what the types of this package need.
type Config struct {
	Store     state.Store
	Tenants   *tenants.Directory // of the same state, like all that follows
	Ledger    *ledger.Ledger
	Vault     *vault.Vault
	Secrets   *vault.AppSecrets
	Addresses *addresses.Records
	Providers *providers.Registry
	Users     users.Upkeep
	Caller    *call.Caller
	Log       *slog.Logger
	Now       func() time.Time
}

// shared is the part that the types of this package share.
type shared struct{ Config }

// Extensions implements hangar.ExtensionService.
type Extensions struct {
	*shared
	work *Provisioner
}

var _ hangar.ExtensionService = (*Extensions)(nil)

// New returns the service of extensions, the Provisioner that carries out its requests, and the
// receiver of webhooks. Until the Provisioner runs, requests are only journaled.
func New(cfg Config) (*Extensions, *Provisioner, *Hooks) {
	s := &shared{cfg}
	work := newProvisioner(s)
	return &Extensions{s, work}, work, newHooks(s)
}

// settleTime bounds how long a request waits until its extension has reached the requested state.
const settleTime = 5 * time.Second

// settled waits until done reports true for an extension, at most for settleTime, and returns the
// extension; nil: it was removed. It continues from the revision of known.
func (e *Extensions) settled(ctx context.Context, known found, done func(*record) bool) *hangar.Extension {
	if !e.work.running.Load() || done(&known.record) {
		return known.view()
	}
	last := &known.record
	waiting, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for batch, err := range e.Store.Watch(waiting, known.item.Key, known.item.Revision+1) {
		if err != nil {
			break // the last known record is an answer, too
		}
		for _, c := range batch.Changes {
			switch rec, err := state.Decode[record](c.Item); {
			case c.Key != known.item.Key:
			case c.Deleted:
				return nil
			case err == nil:
				last = &rec
			}
		}
		if done(last) {
			break
		}
	}
	return last.view()
}

// settledPhase reports whether no step is pending.
func settledPhase(r *record) bool { return r.Phase == phaseLive || r.Phase == phaseFailed }

// Extensions implements hangar.ExtensionService.
func (e *Extensions) Extensions(ctx context.Context, app hangar.AppName) ([]*hangar.Extension, error) {
	owner, _, err := e.Tenants.App(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	all, err := e.ofOrg(ctx, owner.OrgID)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Extension{}
	for i := range all {
		if all[i].App == owner.ID {
			list = append(list, all[i].view())
		}
	}
	sortByName(list)
	return list, nil
}

// OrgExtensions implements hangar.ExtensionService.
func (e *Extensions) OrgExtensions(ctx context.Context, slug hangar.OrgSlug) ([]*hangar.Extension, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	org, _, err := e.Tenants.Org(ctx, p, slug, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	all, err := e.ofOrg(ctx, org.ID)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Extension{}
	for i := range all {
		list = append(list, all[i].view())
	}
	sortByName(list)
	return list, nil
}

// Extension implements hangar.ExtensionService.
func (e *Extensions) Extension(ctx context.Context, app hangar.AppName, name string) (*hangar.Extension, error) {
	f, err := e.find(ctx, app, name, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return f.view(), nil
}

// find returns an extension of an App if the caller may do action to the App.
func (e *Extensions) find(ctx context.Context, app hangar.AppName, name string, action hangar.Action) (found, error) {
	owner, _, err := e.Tenants.App(ctx, app, action)
	if err != nil {
		return found{}, err
	}
	if tenants.NameFault(name) != "" {
		return found{}, hangar.ExtensionNotFound(name)
	}
	at, _, err := state.Read[ref](ctx, e.Store, nameKey(name))
	var f found
	if err == nil {
		f, err = e.read(ctx, at)
	}
	if errors.Is(err, state.ErrNotFound) || err == nil && (f.App != owner.ID || f.Body.Name != name) {
		return found{}, hangar.ExtensionNotFound(name)
	}
	return f, state.HangarError(err)
}

// change applies edit to the record of an extension. It repeats that after a conflict.
func (e *Extensions) change(ctx context.Context, app hangar.AppName, name string, edit func(r *record, now time.Time) error) (found, error) {
	for {
		f, err := e.find(ctx, app, name, hangar.ActionWrite)
		if err != nil {
			return f, err
		}
		next := f.record
		if err := edit(&next, e.Now()); err != nil {
			return f, err
		}
		put, err := state.Write(f.item.Key, next)
		if err != nil {
			return f, err
		}
		revision, err := e.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(f.item)}, Then: []state.Op{put}})
		if err == nil {
			return found{next, state.Item{Key: put.Key, Value: put.Value, Revision: revision}}, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return f, state.HangarError(err)
		}
	}
}

// UpdateExtension implements hangar.ExtensionService.
func (e *Extensions) UpdateExtension(ctx context.Context, app hangar.AppName, name string, in hangar.ExtensionUpdate) (*hangar.Extension, error) {
	was, err := e.find(ctx, app, name, hangar.ActionWrite)
	if err != nil {
		return nil, err
	}
	by, _, err := e.Providers.Find(ctx, was.Provider)
	if err != nil {
		return nil, err
	}
	f, err := e.change(ctx, app, name, func(r *record, now time.Time) error {
		if r.Phase != phaseLive {
			return wrongState(r)
		}
		before := r.choices()
		next := before
		if in.Plan != nil {
			next.Plan = *in.Plan
		}
		if in.PrimaryRegion != nil {
			next.PrimaryRegion = string(*in.PrimaryRegion)
		}
		if in.ReadRegions != nil {
			next.ReadRegions = texts(*in.ReadRegions)
		}
		if err := checkChoices(&by, next); err != nil {
			return err
		}
		r.choose(next)
		r.Before, r.Error = &before, ""
		r.enter(phaseChange, now)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e.settled(ctx, f, settledPhase), nil
}

// RetryExtension implements hangar.ExtensionService.
func (e *Extensions) RetryExtension(ctx context.Context, app hangar.AppName, name string, in hangar.ExtensionRetry) (*hangar.Extension, error) {
	f, err := e.change(ctx, app, name, func(r *record, now time.Time) error {
		if r.Phase != phaseFailed {
			return wrongState(r)
		}
		next := phaseCreate
		if r.Remote != "" {
			next = phaseAwait
		}
		r.Error, r.Overwrite = "", r.Overwrite || in.Overwrite
		r.enter(next, now)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e.settled(ctx, f, settledPhase), nil
}

// DestroyExtension implements hangar.ExtensionService.
func (e *Extensions) DestroyExtension(ctx context.Context, app hangar.AppName, name string) (*hangar.Extension, error) {
	for {
		f, err := e.find(ctx, app, name, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		if f.Phase != phaseDestroy {
			if err = e.beginDestroy(ctx, f, ""); errors.Is(err, errStale) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if f, err = e.read(ctx, f.ref()); errors.Is(err, state.ErrNotFound) {
				return nil, nil //nolint:nilnil // it is gone
			}
			if err != nil {
				return nil, state.HangarError(err)
			}
		}
		return e.settled(ctx, f, func(*record) bool { return false }), nil
	}
}

// ExtensionLink implements hangar.ExtensionService.
func (e *Extensions) ExtensionLink(ctx context.Context, app hangar.AppName, name string) (*hangar.ExtensionLink, error) {
	f, err := e.find(ctx, app, name, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	if f.Remote == "" || f.Phase == phaseDestroy {
		return nil, wrongState(&f.record)
	}
	to, err := e.target(ctx, f.Provider)
	if err != nil {
		return nil, err
	}
	link, err := e.Caller.Link(to.Target, f.Remote)
	if err != nil {
		return nil, hangar.Errorf(hangar.CodeInternal, "", "link to an extension: %w", err)
	}
	return &hangar.ExtensionLink{URL: link}, nil
}

func wrongState(r *record) error {
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonWrongState, "extension %s is %s", r.Body.Name, r.status())
}

// target is a provider that can be called.
type target struct {
	call.Target
	by providers.Record
}

// target returns how a provider is called. It answers CodeNotFound with ReasonProviderNotFound for
// one that is unknown or being removed.
func (s *shared) target(ctx context.Context, name hangar.ProviderName) (target, error) {
	by, _, err := s.Providers.Find(ctx, name)
	if err == nil && by.Removing {
		err = hangar.ProviderNotFound(name)
	}
	if err != nil {
		return target{}, err
	}
	secret, err := s.Providers.RequestSecret(ctx, name)
	return target{call.Target{Base: by.BaseURL, Secret: secret.Reveal(), Private: by.AllowPrivate}, by}, err
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

func texts(regions []hangar.Region) []string {
	var list []string
	for _, r := range regions {
		list = append(list, string(r))
	}
	return list
}
