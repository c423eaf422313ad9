package vault

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// AppSecrets has the secrets of Apps. All of an App are one record, with its secret keys,
// encrypted as a whole, so that a version is all or nothing. Where an App is given by its record,
// the caller has been let in already.
type AppSecrets struct {
	store   state.Store
	vault   *Vault
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	now     func() time.Time
}

// NewAppSecrets returns the secrets that are in a Vault, of the Apps of a Directory of the same
// state.
func NewAppSecrets(v *Vault, dir *tenants.Directory, book *ledger.Ledger, now func() time.Time) *AppSecrets {
	return &AppSecrets{store: v.store, vault: v, tenants: dir, ledger: book, now: now}
}

// Secrets implements hangar.SecretService.
type Secrets struct{ secrets *AppSecrets }

var _ hangar.SecretService = (*Secrets)(nil)

// NewSecrets returns the service of Apps' secrets.
func NewSecrets(secrets *AppSecrets) *Secrets { return &Secrets{secrets} }

// secretsRecord is what is encrypted in the record of an App's secrets.
type secretsRecord struct {
	Version int                        `json:"version"`
	Secrets map[string]secretRecord    `json:"secrets"`
	Keys    map[string]secretKeyRecord `json:"keys,omitempty"`
	// DigestKey keys the digests that people see, who must not be able to try out
	// what a short value is. It stays when the encryption key is replaced.
	DigestKey []byte `json:"digest_key"`
}

type secretRecord struct {
	Value     string    `json:"value"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Of is the extension that has set the value. It is empty once another caller sets a value.
	Of hangar.ExtensionID `json:"of,omitempty"`
}

const (
	digestKeyBytes = 32
	digestBytes    = 8 // of the 32 of SHA-256 are shown
)

// SecretsKey is the key of the secrets of an App in the state.
func SecretsKey(app hangar.AppID) string { return state.SecretsPrefix + string(app) }

// of is what binds the record to its version, as its key does to the App.
func (r *secretsRecord) of() []string { return []string{strconv.Itoa(r.Version)} }

func (r *secretsRecord) size() (n int) {
	for name, s := range r.Secrets {
		n += len(name) + len(s.Value)
	}
	for name, k := range r.Keys {
		n += len(name) + len(k.Value)
	}
	return n
}

// counts are what the secrets and keys count against quotas.
func (r *secretsRecord) counts() hangar.Quotas {
	return hangar.Quotas{hangar.QuotaSecrets: int64(len(r.Secrets) + len(r.Keys)), hangar.QuotaSecretBytes: int64(r.size())}
}

func (r *secretsRecord) view(name string, show bool) hangar.Secret {
	s := r.Secrets[name]
	mac := hmac.New(sha256.New, r.DigestKey)
	_, _ = mac.Write([]byte(s.Value)) // a hash never fails
	v := hangar.Secret{Name: name, Digest: hex.EncodeToString(mac.Sum(nil)[:digestBytes]), CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt}
	if show {
		v.Value = hangar.NewSensitive(s.Value)
	}
	return v
}

func (r *secretsRecord) list(show bool) hangar.Secrets {
	all := hangar.Secrets{List: []hangar.Secret{}, Version: r.Version}
	for _, name := range slices.Sorted(maps.Keys(r.Secrets)) {
		all.List = append(all.List, r.view(name, show))
	}
	return all
}

// read returns the secrets of an App, and what must hold when they are changed.
func (a *AppSecrets) read(ctx context.Context, app tenants.AppRecord) (rec secretsRecord, unchanged state.Compare, err error) {
	key := SecretsKey(app.ID)
	err = a.vault.keys.Use(func(keys keyset.Keys) error {
		item, err := a.store.Get(ctx, key)
		if errors.Is(err, state.ErrNotFound) {
			unchanged = state.Absent(key)
			return nil
		}
		if err != nil {
			return err
		}
		unchanged = state.Unchanged(item)
		return unseal(keys, item, &rec)
	})
	return rec, unchanged, state.HangarError(err)
}

// query reads the secrets of an App for a caller.
func (s *Secrets) query(ctx context.Context, app hangar.AppName, q hangar.SecretQuery) (secretsRecord, error) {
	action := hangar.ActionRead
	if q.Show {
		action = hangar.ActionWrite
	}
	return s.secrets.of(ctx, app, action, q.MinVersion)
}

// of reads the secrets of an App, of a version at least, if the caller may do action to
// it.
func (a *AppSecrets) of(ctx context.Context, app hangar.AppName, action hangar.Action, least int) (secretsRecord, error) {
	owner, _, err := a.tenants.App(ctx, app, action)
	if err != nil {
		return secretsRecord{}, err
	}
	rec, _, err := a.read(ctx, owner)
	if err == nil {
		err = rec.atLeast(app, "min_version", least)
	}
	return rec, err
}

// atLeast returns an error while the version is older than the one that a field of the request
// names.
func (r *secretsRecord) atLeast(app hangar.AppName, field string, version int) error {
	if r.Version >= version {
		return nil
	}
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion,
		"invalid %s: the secrets of app %q are at version %d, not at %d", field, app, r.Version, version)
}

// Secrets implements hangar.SecretService.
func (s *Secrets) Secrets(ctx context.Context, app hangar.AppName, q hangar.SecretQuery) (hangar.Secrets, error) {
	rec, err := s.query(ctx, app, q)
	if err != nil {
		return hangar.Secrets{}, err
	}
	return rec.list(q.Show), nil
}

// Secret implements hangar.SecretService.
func (s *Secrets) Secret(ctx context.Context, app hangar.AppName, name string, q hangar.SecretQuery) (hangar.Secret, error) {
	rec, err := s.query(ctx, app, q)
	if err != nil {
		return hangar.Secret{}, err
	}
	if _, ok := rec.Secrets[name]; !ok {
		return hangar.Secret{}, secretNotFound(app, name)
	}
	return rec.view(name, q.Show), nil
}

func secretNotFound(app hangar.AppName, name string) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSecretNotFound, "app %q has no secret %.100q", app, name)
}

// SetSecrets implements hangar.SecretService.
func (s *Secrets) SetSecrets(ctx context.Context, app hangar.AppName, values map[string]hangar.Sensitive) (hangar.Secrets, error) {
	if _, _, err := s.secrets.tenants.App(ctx, app, hangar.ActionWrite); err != nil {
		return hangar.Secrets{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := hangar.ValidateSecret(name, values[name]); err != nil {
			return hangar.Secrets{}, err
		}
	}
	rec, err := s.secrets.change(ctx, app, "values", func(rec *secretsRecord, now time.Time) (bool, error) { return rec.apply(values, now), nil })
	if err != nil {
		return hangar.Secrets{}, err
	}
	return rec.list(false), nil
}

// DeleteSecret implements hangar.SecretService.
func (s *Secrets) DeleteSecret(ctx context.Context, app hangar.AppName, name string) (int, error) {
	rec, err := s.secrets.change(ctx, app, "values", func(rec *secretsRecord, now time.Time) (bool, error) {
		if _, ok := rec.Secrets[name]; !ok {
			return false, secretNotFound(app, name)
		}
		return rec.apply(map[string]hangar.Sensitive{name: {}}, now), nil
	})
	return rec.Version, err
}

// change stores what edit makes of the secrets as they are, which is a new version
// unless edit reports that nothing is different. field is what an error is about if they
// would be too large.
func (a *AppSecrets) change(ctx context.Context, app hangar.AppName, field string, edit func(rec *secretsRecord, now time.Time) (bool, error)) (secretsRecord, error) {
	for {
		owner, item, err := a.tenants.App(ctx, app, hangar.ActionWrite)
		if err != nil {
			return secretsRecord{}, err
		}
		if owner.Deleting {
			return secretsRecord{}, tenants.AppIsGoing(app)
		}
		rec, unchanged, err := a.read(ctx, owner)
		if err != nil {
			return secretsRecord{}, err
		}
		before := rec.counts()
		changed, err := edit(&rec, a.now().UTC().Truncate(time.Second))
		if err != nil || !changed {
			return rec, err
		}
		rec.next()
		if n := rec.size(); n > hangar.MaxSecretsSize {
			return secretsRecord{}, hangar.Errorf(hangar.CodeInvalid, "",
				"invalid %s: the secrets of the app would have %d bytes, more than the %d that are allowed", field, n, hangar.MaxSecretsSize)
		}
		org, err := a.tenants.OrgOfApp(ctx, owner)
		if err != nil {
			return secretsRecord{}, err
		}
		err = a.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := Sealed(keys, SecretsKey(owner.ID), rec, rec.of()...)
			// The App must not be destroyed meanwhile, or the record would stay.
			txn := state.Txn{If: []state.Compare{state.Unchanged(item), unchanged}, Then: []state.Op{put}}
			return txn, errors.Join(err, a.ledger.Charge(ctx, org, ledger.Sum(rec.counts(), ledger.Negative(before)), &txn))
		})
		if !errors.Is(err, state.ErrConflict) {
			return rec, state.HangarError(err)
		}
	}
}

// next makes the record that of the next version.
func (r *secretsRecord) next() {
	if r.DigestKey == nil {
		r.DigestKey = make([]byte, digestKeyBytes)
		_, _ = rand.Read(r.DigestKey) // never fails: crypto/rand.Read aborts the program instead
	}
	r.Version++
}

// apply reports whether anything was changed.
func (r *secretsRecord) apply(changes map[string]hangar.Sensitive, now time.Time) bool {
	changed := false
	for name, value := range changes {
		before, known := r.Secrets[name]
		switch {
		case value.IsZero() && known:
			delete(r.Secrets, name)
		case value.IsZero(), known && before.Value == value.Reveal():
			continue
		default:
			next := secretRecord{Value: value.Reveal(), CreatedAt: now, UpdatedAt: now}
			if known {
				next.CreatedAt = before.CreatedAt
			}
			if r.Secrets == nil {
				r.Secrets = map[string]secretRecord{}
			}
			r.Secrets[name] = next
		}
		changed = true
	}
	return changed
}

// Count returns what the secrets and keys of an App count against the quotas of its organization.
func (a *AppSecrets) Count(ctx context.Context, app tenants.AppRecord) (hangar.Quotas, error) {
	rec, _, err := a.read(ctx, app)
	return rec.counts(), err
}

// For returns what a new version of a Machine of an App gets, of a version of the secrets at least.
func (a *AppSecrets) For(ctx context.Context, app tenants.AppRecord, skip bool, least int) (hangar.SecretValues, error) {
	if least < 0 {
		return hangar.SecretValues{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid min_secrets_version: %d is negative", least)
	}
	if skip {
		return hangar.SecretValues{}, nil
	}
	rec, _, err := a.read(ctx, app)
	if err != nil {
		return hangar.SecretValues{}, err
	}
	if err := rec.atLeast(app.Name, "min_secrets_version", least); err != nil {
		return hangar.SecretValues{}, err
	}
	values := hangar.SecretValues{Version: rec.Version, Values: make(map[string]hangar.Sensitive, len(rec.Secrets))}
	for name, s := range rec.Secrets {
		values.Values[name] = hangar.NewSensitive(s.Value)
	}
	return values, nil
}
