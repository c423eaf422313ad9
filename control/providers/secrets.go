package providers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Prefixes by which leaked secrets are recognized.
const (
	clientPrefix  = "hgpc_"
	requestPrefix = "hgpr_"
	webhookPrefix = "hgpw_"
)

const secretBytes = 32 // random bytes of a secret

// signing has the secrets of signatures, encrypted as one record. The current one of each list is
// last.
type signing struct {
	Request []secret `json:"request"`
	Webhook []secret `json:"webhook"`
}

type secret struct {
	Value string    `json:"value"`
	Until time.Time `json:"until,omitzero"` // zero: without end
}

// valid are the secrets that have not expired.
func valid(secrets []secret, now time.Time) []secret {
	return slices.DeleteFunc(slices.Clone(secrets), func(s secret) bool { return !s.Until.IsZero() && !s.Until.After(now) })
}

// madeSecrets has new secrets; those that were not requested are empty.
type madeSecrets struct{ client, request, webhook string }

func (p *Providers) newSecrets(which []hangar.ProviderSecret) (m madeSecrets) {
	for _, one := range which {
		switch one {
		case hangar.SecretOfClient:
			m.client = newSecret(clientPrefix)
		case hangar.SecretOfRequests:
			m.request = newSecret(requestPrefix)
		case hangar.SecretOfWebhooks:
			m.webhook = newSecret(webhookPrefix)
		}
	}
	return m
}

func newSecret(prefix string) string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand.Read aborts the program instead
	return prefix + hex.EncodeToString(b)
}

func digestOf(secret string) Digest {
	sum := sha256.Sum256([]byte(secret))
	return Digest{SHA256: hex.EncodeToString(sum[:])}
}

// withSecrets returns a provider, which has so many extensions, with its new secrets.
func (p *Providers) withSecrets(rec *Record, extensions int, made madeSecrets) *hangar.NewProvider {
	n := &hangar.NewProvider{Provider: *p.registry.view(rec, extensions)}
	for to, text := range map[*hangar.Sensitive]string{&n.ClientSecret: made.client, &n.RequestSecret: made.request, &n.WebhookSecret: made.webhook} {
		if text != "" {
			*to = hangar.NewSensitive(text)
		}
	}
	return n
}

// RotateProvider implements hangar.ProviderService.
func (p *Providers) RotateProvider(ctx context.Context, name hangar.ProviderName, in hangar.ProviderRotate) (*hangar.NewProvider, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	which, overlap, err := rotation(in)
	if err != nil {
		return nil, err
	}
	for {
		rec, item, err := p.registry.Find(ctx, name)
		if err != nil {
			return nil, err
		}
		sealed, sealedItem, err := p.registry.signing(ctx, name)
		if err != nil {
			return nil, err
		}
		extensions, _, err := p.registry.Count(ctx, name)
		if err != nil {
			return nil, err
		}
		now := p.registry.Now()
		until := now.Add(overlap).UTC().Truncate(time.Second)
		made := p.newSecrets(which)
		busy := false
		if made.client != "" {
			current := slices.DeleteFunc(slices.Clone(rec.ClientSecrets), func(d Digest) bool { return !d.Until.IsZero() && !d.Until.After(now) })
			busy = busy || len(current) > 1
			current[len(current)-1].Until = until
			rec.ClientSecrets = append(current, digestOf(made.client))
		}
		for text, list := range map[string]*[]secret{made.request: &sealed.Request, made.webhook: &sealed.Webhook} {
			if text == "" {
				continue
			}
			current := valid(*list, now)
			busy = busy || len(current) > 1
			current[len(current)-1].Until = until
			*list = append(current, secret{Value: text})
		}
		if busy {
			return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState,
				"An old secret of provider %s is valid until %s; rotate again after that", name, rec.RotationEndsAt.Format(time.RFC3339))
		}
		rec.UpdatedAt = now.UTC().Truncate(time.Second)
		rec.RotationEndsAt = slices.MaxFunc([]time.Time{rec.RotationEndsAt, until}, time.Time.Compare)
		err = p.registry.Vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := state.Write(item.Key, rec)
			seal, sealErr := vault.Sealed(keys, sealedItem.Key, sealed)
			return state.Txn{If: []state.Compare{state.Unchanged(item), state.Unchanged(sealedItem)}, Then: []state.Op{put, seal}}, errors.Join(err, sealErr)
		})
		if err == nil {
			return p.withSecrets(&rec, extensions, made), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// rotation completes the request for a rotation.
func rotation(in hangar.ProviderRotate) (which []hangar.ProviderSecret, overlap time.Duration, err error) {
	for _, one := range in.Secrets {
		if !slices.Contains(hangar.ProviderSecrets(), one) {
			return nil, 0, hangar.Errorf(hangar.CodeInvalid, "", "invalid secrets: %.40q is none of %v", string(one), hangar.ProviderSecrets())
		}
	}
	if which = in.Secrets; len(which) == 0 {
		which = hangar.ProviderSecrets()
	}
	overlap = hangar.DefaultRotationOverlap
	if in.Overlap != nil {
		overlap = time.Duration(*in.Overlap)
	}
	if overlap < 0 || overlap > hangar.MaxRotationOverlap {
		return nil, 0, hangar.Errorf(hangar.CodeInvalid, "", "invalid overlap: must be from 0s to %s", hangar.MaxRotationOverlap)
	}
	return which, overlap, nil
}

// signing reads the secrets of signatures.
func (r *Registry) signing(ctx context.Context, name hangar.ProviderName) (signing, state.Item, error) {
	item, err := r.Store.Get(ctx, secretsKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return signing{}, item, hangar.ProviderNotFound(name)
	}
	if err != nil {
		return signing{}, item, state.HangarError(err)
	}
	var all signing
	err = r.Vault.Get(ctx, item.Key, &all)
	if err == nil && (len(all.Request) == 0 || len(all.Webhook) == 0) {
		err = hangar.Errorf(hangar.CodeInternal, "", "A provider has no secrets")
	}
	return all, item, state.HangarError(err)
}

// RequestSecret returns the secret that signs requests to a provider now: during a rotation the old
// one, because the provider may not have the new one yet.
func (r *Registry) RequestSecret(ctx context.Context, name hangar.ProviderName) (hangar.Sensitive, error) {
	all, _, err := r.signing(ctx, name)
	if err != nil {
		return hangar.Sensitive{}, err
	}
	return hangar.NewSensitive(valid(all.Request, r.Now())[0].Value), nil
}

// WebhookSecrets returns the secrets that may sign a provider's webhooks now.
func (r *Registry) WebhookSecrets(ctx context.Context, name hangar.ProviderName) ([]string, error) {
	all, _, err := r.signing(ctx, name)
	if err != nil {
		return nil, err
	}
	var values []string
	for _, s := range valid(all.Webhook, r.Now()) {
		values = append(values, s.Value)
	}
	return values, nil
}
