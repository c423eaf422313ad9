package extensions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/provider"
)

// How long failing requests are repeated.
const (
	createPatience = time.Hour      // until a POST is answered
	awaitPatience  = 24 * time.Hour // until an extension is ready
	changePatience = 24 * time.Hour
	lagPause       = 20 * time.Millisecond // until memory and the watch agree on whether the record exists
	checkEvery     = 24 * time.Hour        // between two checks of a live extension
)

// nextStep says when the next step of an extension is due.
type nextStep struct {
	after time.Duration // 0: at once
	// failed says that the step did not succeed. The pause before the next grows with each failure.
	failed bool
	// never says that there is no next step until the record changes.
	never bool
}

// step does the step of an extension's phase. seen is its record from the watch; zero: none. A step
// may be interrupted at any moment, and repeated.
func (s *shared) step(ctx context.Context, at ref, seen state.Item) (nextStep, error) {
	f, err := s.read(ctx, at)
	if err == nil && seen.Revision > f.item.Revision { // memory is behind the watch
		f.item = seen
		f.record, err = state.Decode[record](seen)
	}
	if errors.Is(err, state.ErrNotFound) {
		if seen.Key != "" { // either memory or the watch is behind
			return nextStep{after: lagPause}, nil
		}
		return nextStep{never: true}, nil
	}
	if err != nil {
		return nextStep{failed: true}, state.HangarError(err)
	}
	if f.Phase == phaseFailed {
		return nextStep{never: true}, nil
	}
	if f.Phase == phaseLive {
		if age := s.Now().Sub(f.CheckedAt); age >= 0 && age < checkEvery { // otherwise a clock was set back
			return nextStep{after: checkEvery - age}, nil
		}
	}
	to, err := s.target(ctx, f.Provider)
	if hangar.ReasonOf(err) == hangar.ReasonProviderNotFound {
		return atOnce(s.drop(ctx, f)) // there is no provider left to ask
	}
	if err != nil {
		return nextStep{failed: true}, err
	}
	switch f.Phase {
	case phaseCreate:
		return s.create(ctx, to, f)
	case phaseAwait:
		return s.await(ctx, to, f)
	case phaseChange:
		return s.patch(ctx, to, f)
	case phaseDestroy:
		return s.destroy(ctx, to, f)
	default:
		return s.check(ctx, to, f)
	}
}

// atOnce returns the result of a step that has journaled its outcome: the next one follows at once.
func atOnce(err error) (nextStep, error) {
	return nextStep{failed: err != nil && !errors.Is(err, errStale)}, err
}

// create requests an extension from its provider.
func (s *shared) create(ctx context.Context, to target, f found) (nextStep, error) {
	f, answer, pending, err := s.provision(ctx, to, f)
	if err != nil {
		switch {
		case retryable(err) && s.Now().Sub(f.Since) < createPatience:
			return s.later(ctx, f, err)
		case retryable(err), call.KindOf(err) != call.Temporary:
			return atOnce(s.fail(ctx, f, text(err)))
		default:
			return nextStep{failed: true}, err
		}
	}
	return atOnce(s.bind(ctx, to, f, answer, pending, phaseAwait))
}

// retryable reports whether err is a provider's, and the same request may succeed later.
func retryable(err error) bool {
	e, ok := errors.AsType[*call.Error](err)
	return ok && (e.Kind == call.Temporary || e.Kind == call.Unsent)
}

func text(err error) string { return err.Error() }

// provision sends the POST of an extension. Before the first one it journals Sent.
func (s *shared) provision(ctx context.Context, to target, f found) (found, provider.Provisioned, bool, error) {
	first := !f.Sent
	if first {
		var err error
		if f, err = s.note(ctx, f, func(r *record) { r.Sent = true }); err != nil {
			return f, provider.Provisioned{}, false, err
		}
	}
	answer, pending, err := s.Caller.Provision(ctx, to.Target, f.Body)
	if first && call.KindOf(err) == call.Unsent && err != nil {
		noted, noteErr := s.note(ctx, f, func(r *record) { r.Sent = false })
		if noteErr != nil {
			return f, answer, false, noteErr
		}
		f = noted
	}
	return f, answer, pending, err
}

// note journals a change within a phase, and returns the new record.
func (s *shared) note(ctx context.Context, f found, edit func(r *record)) (found, error) {
	rec := f.record
	edit(&rec)
	put, err := state.Write(f.item.Key, rec)
	if err != nil {
		return f, err
	}
	revision, err := s.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(f.item)}, Then: []state.Op{put}})
	if err != nil {
		return f, stale(err)
	}
	return found{rec, state.Item{Key: put.Key, Value: put.Value, Revision: revision}}, nil
}

// later journals the reason of a failure if it is a new one, and schedules a retry.
func (s *shared) later(ctx context.Context, f found, why error) (nextStep, error) {
	a := nextStep{failed: true}
	if e, ok := errors.AsType[*call.Error](why); ok {
		a.after = e.RetryAfter
	}
	if f.Error == text(why) {
		return a, nil
	}
	_, err := s.note(ctx, f, func(r *record) { r.Error = text(why) })
	return a, err
}

// fail enters the phase failed, in which only a user can retry or destroy the extension.
func (s *shared) fail(ctx context.Context, f found, why string) error {
	rec := f.record
	rec.Error = why
	rec.enter(phaseFailed, s.Now())
	return s.put(ctx, f, rec)
}

// bind journals the provider's answer to a POST. From then on the extension is known by the
// provider's id. If the rest of the answer is unusable, the extension fails.
func (s *shared) bind(ctx context.Context, to target, f found, answer provider.Provisioned, pending bool, into phase) error {
	rec := f.record
	now := s.Now()
	rec.Error = ""
	rec.enter(into, now)
	own, err := s.adopt(ctx, f, answer.ID)
	if hangar.CodeOf(err) == hangar.CodeInvalid {
		if into == phaseDestroy {
			return err
		}
		return s.fail(ctx, f, hangar.MessageOf(err))
	}
	if err != nil {
		return err
	}
	rec.Remote, rec.Pending = answer.ID, pending
	if into == phaseDestroy {
		return s.commit(ctx, f, &rec, own)
	}
	more, fault, err := s.accept(ctx, to, &rec, answer)
	if err != nil {
		return err
	}
	txn := state.Txn{If: append(own.If, more.If...), Then: append(own.Then, more.Then...)}
	if fault != "" {
		rec = f.record
		rec.Remote, rec.Pending, rec.Error = answer.ID, pending, fault
		rec.enter(phaseFailed, now)
		return s.commit(ctx, f, &rec, own)
	}
	op, err := operation(f, &rec)
	if err != nil {
		return err
	}
	txn.If, txn.Then = append(txn.If, state.Unchanged(f.item)), append(txn.Then, op)
	return stale(s.Vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
		sealed, err := vault.Sealed(keys, rec.ref().configKey(), answer.Config)
		return state.Txn{If: txn.If, Then: append(slices.Clone(txn.Then), sealed)}, err
	}))
}

// adopt returns the transaction that assigns a provider's id to an extension. It removes the record
// that a webhook with that id may have made before. It answers CodeInvalid for the id of another
// extension.
func (s *shared) adopt(ctx context.Context, f found, remote string) (state.Txn, error) {
	own, err := state.Write(resourceKey(f.Provider, remote), resource{ref: f.ref()})
	if err != nil {
		return state.Txn{}, err
	}
	txn := state.Txn{Then: []state.Op{own}}
	known, item, err := state.Read[resource](ctx, s.Store, own.Key)
	if errors.Is(err, state.ErrNotFound) {
		txn.If = append(txn.If, state.Absent(own.Key))
		return txn, nil
	}
	if err != nil {
		return txn, state.HangarError(err)
	}
	txn.If = append(txn.If, state.Unchanged(item))
	if known.ref == f.ref() || known.ID == "" {
		return txn, nil
	}
	other, err := s.read(ctx, known.ref)
	if errors.Is(err, state.ErrNotFound) {
		return txn, nil
	}
	if err != nil {
		return txn, state.HangarError(err)
	}
	if !other.foreign() || other.Org != f.Org {
		return txn, hangar.Errorf(hangar.CodeInvalid, "", "the provider's answer has the id of another extension")
	}
	txn.If, txn.Then = append(txn.If, state.Unchanged(other.item)), append(txn.Then, state.Delete(other.item.Key))
	if err := s.Providers.Counted(ctx, f.Provider, -1, 0, &txn); err != nil {
		return txn, err
	}
	return txn, s.Ledger.Credit(ctx, f.Org, hangar.Quotas{hangar.QuotaExtensions: -1}, &txn)
}

// accept takes over the name and the App of an answer. fault says what is wrong with them or with
// the config.
func (s *shared) accept(ctx context.Context, to target, rec *record, answer provider.Provisioned) (txn state.Txn, fault string, err error) {
	for _, name := range slices.Sorted(maps.Keys(answer.Config)) {
		if !isSecret(name, answer.Config[name]) {
			return txn, "the provider's answer has a config that cannot become secrets", nil
		}
	}
	if answer.Name != "" && answer.Name != rec.Body.Name {
		if tenants.NameFault(answer.Name) != "" {
			return txn, "the provider's answer has a name that no extension can have", nil
		}
		put, err := state.Write(nameKey(answer.Name), rec.ref())
		if err != nil {
			return txn, "", err
		}
		switch _, err := s.Store.Get(ctx, put.Key); {
		case err == nil:
			return txn, "the provider's answer has the name of another extension", nil
		case !errors.Is(err, state.ErrNotFound):
			return txn, "", state.HangarError(err)
		}
		txn.If = append(txn.If, state.Absent(put.Key))
		txn.Then = append(txn.Then, put, state.Delete(nameKey(rec.Body.Name)))
		rec.Body.Name = answer.Name
	}
	if answer.PlatformAppName == "" {
		return txn, "", nil
	}
	app, item, err := s.Tenants.AnyApp(ctx, hangar.AppName(answer.PlatformAppName))
	unknown := hangar.CodeOf(err) == hangar.CodeNotFound
	if err != nil && !unknown {
		return txn, "", err
	}
	if unknown || app.Deleting || to.by.PlatformOrgID == "" || app.OrgID != to.by.PlatformOrgID {
		return txn, "the provider's answer names an App that is not the provider's", nil
	}
	serve, err := s.Addresses.Serve(app, item, rec.ID, rec.address(), rec.Network, rec.NetworkID)
	if err != nil {
		return txn, "", err
	}
	rec.PlatformApp = app.Name
	return state.Txn{If: append(txn.If, serve.If...), Then: append(txn.Then, serve.Then...)}, "", nil
}

// isSecret reports whether a name and a value are valid as a secret of an App.
func isSecret(name, value string) bool {
	return hangar.ValidateSecret(name, hangar.NewSensitive(value)) == nil
}

// await asks the provider whether an extension is ready, and completes it.
func (s *shared) await(ctx context.Context, to target, f found) (nextStep, error) {
	of, err := s.Caller.Resource(ctx, to.Target, f.Remote)
	status := of.Status
	if err != nil {
		switch _, ok := errors.AsType[*call.Error](err); {
		case !ok:
			return nextStep{failed: true}, err
		case hasNoGET(err) && !f.Pending && !to.by.Asynchronous:
			f.Silent = true
			status = provider.StatusReady // with its answer to the POST
		case s.Now().Sub(f.Since) >= awaitPatience:
			return atOnce(s.fail(ctx, f, text(err)))
		default:
			return s.later(ctx, f, err)
		}
	}
	rec := f.record
	rec.learn(of, s.Now())
	switch status {
	case provider.StatusReady, provider.StatusSleeping, "":
		rec.Error = ""
		return atOnce(s.complete(ctx, f, rec))
	case provider.StatusError:
		return atOnce(s.fail(ctx, found{rec, f.item}, "the provider could not make the extension"))
	}
	if s.Now().Sub(f.Since) >= awaitPatience {
		return atOnce(s.fail(ctx, f, fmt.Sprintf("the extension was not ready after %s", awaitPatience)))
	}
	if rec.Status != f.Status || f.Error != "" {
		rec.Error = ""
		if err := s.put(ctx, f, rec); err != nil {
			return atOnce(err)
		}
	}
	return nextStep{failed: true}, nil
}

// hasNoGET reports whether a provider's answer to a GET may mean that it has none.
func hasNoGET(err error) bool {
	e, ok := errors.AsType[*call.Error](err)
	return ok && (e.Kind == call.Missing || e.Status == http.StatusMethodNotAllowed || e.Status == http.StatusNotImplemented)
}

// complete sets the secrets of an extension that is ready, and makes it live.
func (s *shared) complete(ctx context.Context, f found, rec record) error {
	var config map[string]string
	err := s.Vault.Get(ctx, rec.ref().configKey(), &config)
	if errors.Is(err, state.ErrNotFound) { // it was lost with the keys; the provider returns it again
		rec.Remote, rec.Pending = f.Remote, false
		rec.enter(phaseCreate, s.Now())
		return s.put(ctx, f, rec)
	}
	if err != nil {
		return state.HangarError(err)
	}
	app, item, err := s.Tenants.AnyApp(ctx, rec.AppName)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && (app.ID != rec.App || app.Deleting) {
		return s.beginDestroy(ctx, f, "") // the extension is destroyed with its App
	}
	if err != nil {
		return err
	}
	edit, taken, err := s.Secrets.EditSecrets(ctx, app, item, rec.ID, config)
	if hangar.CodeOf(err) == hangar.CodeInvalid {
		return s.fail(ctx, found{rec, f.item}, hangar.MessageOf(err))
	}
	if err != nil {
		return err
	}
	if len(taken) > 0 && !rec.Overwrite {
		return s.fail(ctx, found{rec, f.item}, fmt.Sprintf(
			"the App has secrets %s already: none of the extension's was set; retry with overwrite to replace them", strings.Join(taken, ", ")))
	}
	org, err := s.Tenants.OrgOfApp(ctx, app)
	if err != nil {
		return err
	}
	rec.Secrets = slices.Sorted(maps.Keys(config))
	rec.Overwrite = false
	rec.enter(phaseLive, s.Now())
	op, err := operation(f, &rec)
	if err != nil {
		return err
	}
	err = s.Vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(f.item)}, Then: []state.Op{op, state.Delete(rec.ref().configKey())}}
		return txn, errors.Join(edit.AddTo(keys, &txn), s.Ledger.Charge(ctx, org, edit.Counts(), &txn))
	})
	if hangar.ReasonOf(err) == hangar.ReasonQuota {
		rec = f.record
		return s.fail(ctx, f, hangar.MessageOf(err))
	}
	return stale(err)
}

// patch requests a change from the provider.
func (s *shared) patch(ctx context.Context, to target, f found) (nextStep, error) {
	of, err := s.Caller.Change(ctx, to.Target, f.Remote, f.Body)
	rec := f.record
	switch {
	case err == nil:
		rec.Error = ""
		rec.learn(of, s.Now())
	case retryable(err) && s.Now().Sub(f.Since) < changePatience:
		return s.later(ctx, f, err)
	case !retryable(err) && call.KindOf(err) == call.Temporary:
		return nextStep{failed: true}, err
	case call.KindOf(err) == call.Unusable: // the provider has made the change
		rec.Error = text(err)
	default:
		rec.choose(*f.Before)
		rec.Error = "the change was not made: " + text(err)
	}
	rec.Before = nil
	rec.enter(phaseLive, s.Now())
	return atOnce(s.put(ctx, f, rec))
}

// check reads the status of a live extension from its provider.
func (s *shared) check(ctx context.Context, to target, f found) (nextStep, error) {
	of, err := s.Caller.Resource(ctx, to.Target, f.Remote)
	switch {
	case err == nil:
		f.Silent = false
	case f.Silent && hasNoGET(err):
		of, err = provider.Resource{Extra: f.Usage}, nil
	case call.KindOf(err) == call.Missing:
		of = provider.Resource{Status: provider.StatusError}
	default:
		return s.later(ctx, f, err)
	}
	rec := f.record
	rec.Error = ""
	if !rec.learn(of, s.Now()) {
		rec.Error = "the provider says more of the extension than is kept"
	}
	if err != nil {
		rec.Error = "the provider does not have the extension any more"
	}
	return atOnce(s.put(ctx, f, rec))
}

// destroy deletes an extension at its provider, and removes the record once the provider has
// confirmed that.
func (s *shared) destroy(ctx context.Context, to target, f found) (nextStep, error) {
	remote := f.Remote
	if remote == "" && f.Sent {
		// The provider's id may have been lost with its answer. The same request returns it again.
		var answer provider.Provisioned
		var err error
		f, answer, _, err = s.provision(ctx, to, f)
		switch {
		case err == nil:
			err = s.bind(ctx, to, f, answer, false, phaseDestroy)
			if hangar.CodeOf(err) != hangar.CodeInvalid {
				return atOnce(err)
			}
		case retryable(err):
			return s.later(ctx, f, err)
		case call.KindOf(err) == call.Temporary:
			return nextStep{failed: true}, err
		}
		remote = string(f.ID) // the only other id that the provider may know
	}
	if remote != "" {
		if err := s.Caller.Delete(ctx, to.Target, remote); err != nil {
			return s.later(ctx, f, err)
		}
	}
	return atOnce(s.drop(ctx, f))
}

// beginDestroy enters the phase destroy, and removes the secrets that the extension has set.
func (s *shared) beginDestroy(ctx context.Context, f found, why string) error {
	rec := f.record
	rec.Secrets, rec.Error, rec.Before = nil, why, nil
	rec.enter(phaseDestroy, s.Now())
	return s.endSecrets(ctx, f, &rec, state.Txn{})
}

// endSecrets is commit that also removes the secrets which the extension has set, unless they were
// changed since.
func (s *shared) endSecrets(ctx context.Context, f found, next *record, txn state.Txn) error {
	op, err := operation(f, next)
	if err != nil {
		return err
	}
	txn.If = append(txn.If, state.Unchanged(f.item))
	txn.Then = append(txn.Then, op, state.Delete(f.ref().configKey()))
	counted := hangar.Quotas{}
	if next == nil {
		counted[hangar.QuotaExtensions] = -1
	}
	edit := (*vault.Edit)(nil)
	if len(f.Secrets) > 0 {
		app, item, err := s.Tenants.AnyApp(ctx, f.AppName)
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound, err == nil && (app.ID != f.App || app.Deleting):
			// They go with the App.
		case err != nil:
			return err
		default:
			if edit, _, err = s.Secrets.EditSecrets(ctx, app, item, f.ID, nil); err != nil {
				return err
			}
			counted = ledger.Sum(counted, edit.Counts())
		}
	}
	if edit == nil && len(counted) == 0 {
		_, err := s.Store.Txn(ctx, txn)
		return stale(err)
	}
	return stale(s.Vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
		all := state.Txn{If: slices.Clone(txn.If), Then: slices.Clone(txn.Then)}
		if edit != nil {
			if err := edit.AddTo(keys, &all); err != nil {
				return all, err
			}
		}
		return all, s.Ledger.Credit(ctx, f.Org, counted, &all)
	}))
}

// tombstoneLife is how long a deleted id of a provider is remembered. Afterwards, webhooks from
// before the deletion are too old to be accepted.
const tombstoneLife = 3 * provider.Window

// drop removes the record of an extension that the provider has deleted, or whose provider was
// removed.
func (s *shared) drop(ctx context.Context, f found) error {
	var txn state.Txn
	if own, item, err := state.Read[ref](ctx, s.Store, nameKey(f.Body.Name)); err == nil && own == f.ref() {
		txn.If, txn.Then = append(txn.If, state.Unchanged(item)), append(txn.Then, state.Delete(item.Key))
	} else if err != nil && !errors.Is(err, state.ErrNotFound) {
		return state.HangarError(err)
	}
	if f.Remote != "" {
		gone, err := state.Write(resourceKey(f.Provider, f.Remote), resource{
			Gone: max(f.EventAt, provider.Timestamp(s.Now().Unix())), Until: s.Now().Add(tombstoneLife).UTC(),
		})
		if err != nil {
			return err
		}
		txn.Then = append(txn.Then, gone)
	}
	if f.address().IsValid() {
		release, err := s.Addresses.Release(ctx, f.ID, f.address())
		if err != nil {
			return state.HangarError(err)
		}
		txn.If, txn.Then = append(txn.If, release.If...), append(txn.Then, release.Then...)
	}
	if err := s.Providers.Counted(ctx, f.Provider, -1, 0, &txn); err != nil {
		return err
	}
	return s.endSecrets(ctx, f, nil, txn)
}
