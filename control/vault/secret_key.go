package vault

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/secretkey"
)

// SecretKeys implements hangar.SecretKeyService. The keys of an App are in the record of
// its secrets, and never leave this server.
type SecretKeys struct{ secrets *AppSecrets }

var _ hangar.SecretKeyService = (*SecretKeys)(nil)

// NewSecretKeys returns the service of Apps' secret keys.
func NewSecretKeys(secrets *AppSecrets) *SecretKeys { return &SecretKeys{secrets} }

type secretKeyRecord struct {
	Type      hangar.SecretKeyType `json:"type"`
	Value     []byte               `json:"value"`
	Public    []byte               `json:"public,omitempty"` // follows from the value, which takes time
	CreatedAt time.Time            `json:"created_at"`
	UpdatedAt time.Time            `json:"updated_at"`
}

func (k secretKeyRecord) view(name string) hangar.SecretKey {
	return hangar.SecretKey{Name: name, Type: k.Type, PublicKey: k.Public, CreatedAt: k.CreatedAt, UpdatedAt: k.UpdatedAt}
}

// key returns one of the keys of an App.
func (r *secretsRecord) key(ref hangar.SecretKeyRef) (secretKeyRecord, error) {
	key, ok := r.Keys[ref.Name]
	if !ok {
		return secretKeyRecord{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSecretKeyNotFound, "app %q has no secret key %.100q", ref.App, ref.Name)
	}
	return key, nil
}

// setKey reports whether anything was changed.
func (r *secretsRecord) setKey(name string, key secretKeyRecord, now time.Time) bool {
	before, known := r.Keys[name]
	if known && before.Type == key.Type && bytes.Equal(before.Value, key.Value) {
		return false
	}
	key.CreatedAt, key.UpdatedAt = now, now
	if known {
		key.CreatedAt = before.CreatedAt
	}
	if r.Keys == nil {
		r.Keys = map[string]secretKeyRecord{}
	}
	r.Keys[name] = key
	return true
}

// SecretKeys implements hangar.SecretKeyService.
func (s *SecretKeys) SecretKeys(ctx context.Context, app hangar.AppName, q hangar.SecretKeyQuery) ([]hangar.SecretKey, error) {
	rec, err := s.secrets.of(ctx, app, hangar.ActionRead, q.MinVersion)
	if err == nil {
		err = q.Validate()
	}
	if err != nil {
		return nil, err
	}
	list := []hangar.SecretKey{}
	for _, name := range slices.Sorted(maps.Keys(rec.Keys)) {
		if key := rec.Keys[name]; q.Types == nil || slices.Contains(q.Types, key.Type) {
			list = append(list, key.view(name))
		}
	}
	return list, nil
}

// SecretKey implements hangar.SecretKeyService.
func (s *SecretKeys) SecretKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int) (hangar.SecretKey, error) {
	key, err := s.find(ctx, ref, hangar.ActionRead, minVersion)
	return key.view(ref.Name), err
}

// find returns a key if the caller may do action to the App.
func (s *SecretKeys) find(ctx context.Context, ref hangar.SecretKeyRef, action hangar.Action, minVersion int) (secretKeyRecord, error) {
	rec, err := s.secrets.of(ctx, ref.App, action, minVersion)
	if err != nil {
		return secretKeyRecord{}, err
	}
	return rec.key(ref)
}

// use returns a key ready for use if the caller may do action to the App.
func (s *SecretKeys) use(ctx context.Context, ref hangar.SecretKeyRef, action hangar.Action, minVersion int) (secretkey.Key, error) {
	key, err := s.find(ctx, ref, action, minVersion)
	if err != nil {
		return secretkey.Key{}, err
	}
	return secretkey.Parse(key.Type, key.Value)
}

// SetSecretKey implements hangar.SecretKeyService.
func (s *SecretKeys) SetSecretKey(ctx context.Context, ref hangar.SecretKeyRef, in hangar.SecretKeySet) (hangar.SecretKey, int, error) {
	return s.set(ctx, ref, in.Type, func() ([]byte, error) { return []byte(in.Value.Reveal()), nil })
}

// GenerateSecretKey implements hangar.SecretKeyService.
func (s *SecretKeys) GenerateSecretKey(ctx context.Context, ref hangar.SecretKeyRef, t hangar.SecretKeyType) (hangar.SecretKey, int, error) {
	return s.set(ctx, ref, t, func() ([]byte, error) { return secretkey.Generate(t) })
}

func (s *SecretKeys) set(ctx context.Context, ref hangar.SecretKeyRef, t hangar.SecretKeyType, valueOf func() ([]byte, error)) (hangar.SecretKey, int, error) {
	if _, _, err := s.secrets.tenants.App(ctx, ref.App, hangar.ActionWrite); err != nil {
		return hangar.SecretKey{}, 0, err
	}
	if err := hangar.ValidateSecretKeyName(ref.Name); err != nil {
		return hangar.SecretKey{}, 0, err
	}
	value, err := valueOf()
	if err != nil {
		return hangar.SecretKey{}, 0, err
	}
	key, err := secretkey.Parse(t, value)
	if err != nil {
		return hangar.SecretKey{}, 0, err
	}
	rec, err := s.secrets.change(ctx, ref.App, "value", func(rec *secretsRecord, now time.Time) (bool, error) {
		return rec.setKey(ref.Name, secretKeyRecord{Type: t, Value: value, Public: key.Public()}, now), nil
	})
	if err != nil {
		return hangar.SecretKey{}, 0, err
	}
	return rec.Keys[ref.Name].view(ref.Name), rec.Version, nil
}

// DeleteSecretKey implements hangar.SecretKeyService.
func (s *SecretKeys) DeleteSecretKey(ctx context.Context, ref hangar.SecretKeyRef) (int, error) {
	rec, err := s.secrets.change(ctx, ref.App, "name", func(rec *secretsRecord, _ time.Time) (bool, error) {
		_, err := rec.key(ref)
		delete(rec.Keys, ref.Name)
		return err == nil, err
	})
	return rec.Version, err
}

// EncryptWithKey implements hangar.SecretKeyService.
func (s *SecretKeys) EncryptWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext, associated []byte) ([]byte, error) {
	key, err := s.use(ctx, ref, hangar.ActionRead, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Encrypt(plaintext, associated)
}

// DecryptWithKey implements hangar.SecretKeyService.
func (s *SecretKeys) DecryptWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, ciphertext, associated []byte) ([]byte, error) {
	key, err := s.use(ctx, ref, hangar.ActionWrite, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Decrypt(ciphertext, associated)
}

// SignWithKey implements hangar.SecretKeyService.
func (s *SecretKeys) SignWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext []byte) ([]byte, error) {
	key, err := s.use(ctx, ref, hangar.ActionWrite, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Sign(plaintext)
}

// VerifyWithKey implements hangar.SecretKeyService.
func (s *SecretKeys) VerifyWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext, signature []byte) error {
	key, err := s.use(ctx, ref, hangar.ActionRead, minVersion)
	if err != nil {
		return err
	}
	return key.Verify(plaintext, signature)
}
