package extensions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/random"
	"github.com/hangar-platform/hangar/internal/ratelimit"
	"github.com/hangar-platform/hangar/provider"
)

// Hooks receives webhooks of providers. It asks for no principal, because the signature of a webhook
// says who sends it.
type Hooks struct {
	*shared
	pace *ratelimit.Limiter[hangar.ProviderName]

	mu        sync.Mutex // guards what follows
	verifiers map[hangar.ProviderName]*provider.Verifier
}

const (
	maxHookBody   = 256 << 10       // bytes
	maxHookNonces = 20_000          // remembered for each provider
	hookRest      = 2 * time.Minute // after which an unused limit is full again
)

func newHooks(s *shared) *Hooks {
	return &Hooks{
		shared: s, pace: ratelimit.New[hangar.ProviderName](2*hangar.MaxProviders, hookRest, s.Now),
		verifiers: map[hangar.ProviderName]*provider.Verifier{},
	}
}

// ReceiveHook takes a webhook of a provider. It answers CodeNotFound with ReasonProviderNotFound,
// CodeUnauthenticated with the broken rule of package provider as the reason, CodeInvalid for a
// malformed event, CodeExhausted beyond the provider's rate limit, CodeNotFound with
// ReasonExtensionNotFound for a change of an unknown resource, and CodeUnavailable.
func (h *Hooks) ReceiveHook(r *http.Request, name hangar.ProviderName) error {
	ctx := r.Context()
	by, _, err := h.Providers.Find(ctx, name)
	if err == nil && by.Removing {
		err = hangar.ProviderNotFound(name)
	}
	if err != nil {
		return err
	}
	verifier, err := h.verifier(ctx, name)
	if err != nil {
		return err
	}
	if err := verifier.Verify(r); err != nil {
		return refusal(err)
	}
	limit := by.Limits.WithDefaults().Webhooks
	if wait := h.pace.Take(name, ratelimit.Pace{PerSecond: float64(limit) / 60, Burst: max(1, limit/6)}); wait > 0 {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "more than %d webhooks a minute", limit)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return hangar.Errorf(hangar.CodeInternal, "", "read a verified body: %w", err)
	}
	event, err := parseEvent(raw)
	if err != nil {
		return err
	}
	return h.apply(ctx, &by, event)
}

// refusal converts the error of a Verifier to the answer.
func refusal(err error) error {
	e, ok := errors.AsType[*provider.VerifyError](err)
	if !ok {
		return err
	}
	code := hangar.CodeUnauthenticated
	switch e.Rule {
	case provider.RuleBody, provider.RuleParameters, provider.RuleMethod, provider.RuleSize:
		code = hangar.CodeInvalid
	case provider.RuleSignature, provider.RuleTimestamp, provider.RuleURL, provider.RuleNonce:
	}
	return hangar.Errorf(code, "webhook_"+string(e.Rule), "the webhook is refused by the rule %s: %s", e.Rule, e.Reason)
}

// verifier returns the Verifier of a provider, with the secrets that are valid now. Each provider
// keeps one, because it remembers the nonces of past webhooks.
func (h *Hooks) verifier(ctx context.Context, name hangar.ProviderName) (*provider.Verifier, error) {
	secrets, err := h.Providers.WebhookSecrets(ctx, name)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.verifiers[name]; known != nil {
		return known, known.SetSecrets(secrets)
	}
	// Drop the Verifiers of removed providers.
	if len(h.verifiers) >= 2*hangar.MaxProviders {
		for other := range h.verifiers {
			if _, _, err := h.Providers.Find(ctx, other); hangar.CodeOf(err) == hangar.CodeNotFound {
				delete(h.verifiers, other)
			}
		}
	}
	v, err := provider.NewVerifier(provider.VerifierConfig{
		BaseURL: "https://any.invalid", AnyOrigin: true, Secrets: secrets, MaxBody: maxHookBody, MaxNonces: maxHookNonces,
		AllowBare: true, Now: h.Now,
	})
	if err != nil {
		return nil, hangar.Errorf(hangar.CodeInternal, "", "verify webhooks of provider %s: %w", name, err)
	}
	h.verifiers[name] = v
	return v, nil
}

// parseEvent reads the body of a webhook.
func parseEvent(raw []byte) (provider.Event, error) {
	var event provider.Event
	bad := func(why string) error { return hangar.Errorf(hangar.CodeInvalid, "", "the body is no event: %s", why) }
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&event); err != nil {
		return event, bad("it is not the JSON that is expected")
	}
	if err := event.Validate(); err != nil {
		return event, bad(strings.TrimPrefix(err.Error(), "provider: event: "))
	}
	of := &event.Resource
	switch {
	case !call.ValidID(of.ID):
		return event, bad("the id of the resource cannot be used")
	case len(of.Name) > maxName || !printable(of.Name):
		return event, bad("the name of the resource cannot be used")
	case len(of.OrganizationID) > maxWord || len(of.UserID) > maxWord || strings.ContainsAny(of.OrganizationID+of.UserID, "/"):
		return event, bad("organization_id or user_id is none of this platform")
	}
	if fits := new(record).learn(event.Resource, time.Time{}); !fits {
		return event, bad("the resource has a status, a plan or further members that are too large")
	}
	return event, nil
}

// apply journals an event. It repeats that after a conflict.
func (h *Hooks) apply(ctx context.Context, by *providers.Record, event provider.Event) error {
	for {
		err := h.tryApply(ctx, by, event)
		if !errors.Is(err, errStale) && !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

func (h *Hooks) tryApply(ctx context.Context, by *providers.Record, event provider.Event) error {
	key := resourceKey(by.Name, event.Resource.ID)
	known, item, err := state.Read[resource](ctx, h.Store, key)
	switch {
	case errors.Is(err, state.ErrNotFound):
		return h.unknown(ctx, by, event, state.Absent(key))
	case err != nil:
		return err
	case known.ID == "" && event.Timestamp <= known.Gone:
		return nil // the resource was deleted after the event
	case known.ID == "":
		return h.unknown(ctx, by, event, state.Unchanged(item))
	}
	f, err := h.read(ctx, known.ref)
	if errors.Is(err, state.ErrNotFound) {
		return h.unknown(ctx, by, event, state.Unchanged(item))
	}
	if err != nil {
		return err
	}
	if event.Timestamp < f.EventAt || f.Phase == phaseDestroy {
		return nil
	}
	rec := f.record
	rec.EventAt = event.Timestamp
	if event.Action == provider.ResourceDeleted {
		rec.Secrets, rec.Before = nil, nil
		rec.Error = "the provider has deleted the extension"
		rec.enter(phaseDestroy, h.Now())
		return h.endSecrets(ctx, f, &rec, state.Txn{})
	}
	rec.learn(event.Resource, h.Now())
	rec.CheckedAt = f.CheckedAt // polling continues, because events may be lost
	rec.UpdatedAt = h.Now().UTC().Truncate(time.Second)
	return h.put(ctx, f, rec)
}

// unknown applies an event about a resource that the platform does not know.
func (h *Hooks) unknown(ctx context.Context, by *providers.Record, event provider.Event, cond state.Compare) error {
	switch event.Action {
	case provider.ResourceDeleted:
		return nil
	case provider.ResourceCreated:
	default:
		return hangar.ExtensionNotFound(event.Resource.ID)
	}
	of := event.Resource
	org, orgItem, err := h.owner(ctx, &of)
	if err != nil {
		return err
	}
	if err := h.roomFor(ctx, by, org.ID); err != nil {
		return err
	}
	now := h.Now()
	rec := record{
		ID: hangar.ExtensionID(random.ID()), Provider: by.Name, Org: org.ID, OrgSlug: org.Slug, Sent: true, Remote: of.ID, EventAt: event.Timestamp,
		CreatedAt: now.UTC().Truncate(time.Second),
		Body:      provider.Provision{Name: cmp.Or(of.Name, of.ID), OrganizationID: of.OrganizationID, UserID: of.UserID},
	}
	rec.learn(of, now)
	rec.enter(phaseLive, now)
	put, err := state.Write(rec.ref().key(), rec)
	if err != nil {
		return err
	}
	own, err := state.Write(cond.Key, resource{ref: rec.ref()})
	if err != nil {
		return err
	}
	txn := state.Txn{If: []state.Compare{cond, state.Unchanged(orgItem), state.Absent(put.Key)}, Then: []state.Op{put, own}}
	if err := h.Providers.Counted(ctx, by.Name, 1, by.Limits.WithDefaults().Extensions, &txn); err != nil {
		return err
	}
	if err := h.Ledger.Charge(ctx, &org, hangar.Quotas{hangar.QuotaExtensions: 1}, &txn); err != nil {
		return err
	}
	_, err = h.Store.Txn(ctx, txn)
	return err
}

// owner returns the organization that a resource names. The resource's user must be a member.
func (h *Hooks) owner(ctx context.Context, of *provider.Resource) (tenants.OrgRecord, state.Item, error) {
	noMember := hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUserNotFound, "user_id is no user of this platform who is a member of organization_id")
	person, err := h.Users.Person(ctx, hangar.UserID(of.UserID))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		err = noMember
	}
	if err != nil {
		return tenants.OrgRecord{}, state.Item{}, err
	}
	slug := hangar.OrgSlug("")
	id := hangar.OrgID(of.OrganizationID)
	if at := slices.IndexFunc(person.Memberships, func(m hangar.Membership) bool { return m.OrgID == id }); at >= 0 {
		slug = person.Memberships[at].Org
	} else if person.Role(id) != "" { // an administrator without a membership
		orgs, err := tenants.OrgsByID(ctx, h.Store, func(item state.Item, err error) {
			h.Log.Error("organization skipped", keyKey, item.Key, keyError, err)
		})
		if err != nil {
			return tenants.OrgRecord{}, state.Item{}, err
		}
		slug = orgs[id].Slug
	}
	org, item, err := h.Tenants.AnyOrg(ctx, slug)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && org.ID != id {
		err = noMember
	}
	return org, item, err
}
