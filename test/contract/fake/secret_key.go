package fake

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/secretkey"
)

type secretKey struct {
	hangar.SecretKey
	value []byte
}

// secretsOf returns the secrets of an App, of a version at least, to somebody who may do
// action to it.
func (s *Service) secretsOf(ctx context.Context, app hangar.AppName, action hangar.Action, least int) (secrets, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, action, hangar.MachineRef{App: app}); err != nil {
		return secrets{}, err
	}
	all := s.secrets[app]
	all.keys = maps.Clone(all.keys)
	return all, all.atLeast("min_version", least)
}

// SecretKeys implements hangar.SecretKeyService.
func (s *Service) SecretKeys(ctx context.Context, app hangar.AppName, q hangar.SecretKeyQuery) ([]hangar.SecretKey, error) {
	all, err := s.secretsOf(ctx, app, hangar.ActionRead, q.MinVersion)
	if err == nil {
		err = q.Validate()
	}
	if err != nil {
		return nil, err
	}
	list := []hangar.SecretKey{}
	for _, name := range slices.Sorted(maps.Keys(all.keys)) {
		if key := all.keys[name]; q.Types == nil || slices.Contains(q.Types, key.Type) {
			list = append(list, key.SecretKey)
		}
	}
	return list, nil
}

// SecretKey implements hangar.SecretKeyService.
func (s *Service) SecretKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int) (hangar.SecretKey, error) {
	key, err := s.secretKey(ctx, ref, hangar.ActionRead, minVersion)
	return key.SecretKey, err
}

func (s *Service) secretKey(ctx context.Context, ref hangar.SecretKeyRef, action hangar.Action, minVersion int) (secretKey, error) {
	all, err := s.secretsOf(ctx, ref.App, action, minVersion)
	if err != nil {
		return secretKey{}, err
	}
	return all.key(ref)
}

func (s secrets) key(ref hangar.SecretKeyRef) (secretKey, error) {
	key, ok := s.keys[ref.Name]
	if !ok {
		return secretKey{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSecretKeyNotFound, "app %q has no secret key %q", ref.App, ref.Name)
	}
	return key, nil
}

// readyKey returns a key ready for use.
func (s *Service) readyKey(ctx context.Context, ref hangar.SecretKeyRef, action hangar.Action, minVersion int) (secretkey.Key, error) {
	key, err := s.secretKey(ctx, ref, action, minVersion)
	if err != nil {
		return secretkey.Key{}, err
	}
	return secretkey.Parse(key.Type, key.value)
}

// SetSecretKey implements hangar.SecretKeyService.
func (s *Service) SetSecretKey(ctx context.Context, ref hangar.SecretKeyRef, in hangar.SecretKeySet) (hangar.SecretKey, int, error) {
	return s.setKey(ctx, ref, in.Type, func() ([]byte, error) { return []byte(in.Value.Reveal()), nil })
}

// GenerateSecretKey implements hangar.SecretKeyService.
func (s *Service) GenerateSecretKey(ctx context.Context, ref hangar.SecretKeyRef, t hangar.SecretKeyType) (hangar.SecretKey, int, error) {
	return s.setKey(ctx, ref, t, func() ([]byte, error) { return secretkey.Generate(t) })
}

func (s *Service) setKey(ctx context.Context, ref hangar.SecretKeyRef, t hangar.SecretKeyType, valueOf func() ([]byte, error)) (hangar.SecretKey, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: ref.App}); err != nil {
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
	after, now := s.secrets[ref.App], s.now().UTC().Truncate(time.Second)
	before, known := after.keys[ref.Name]
	if known && before.Type == t && bytes.Equal(before.value, value) {
		return before.SecretKey, after.version, nil
	}
	next := secretKey{hangar.SecretKey{Name: ref.Name, Type: t, PublicKey: key.Public(), CreatedAt: now, UpdatedAt: now}, value}
	if known {
		next.CreatedAt = before.CreatedAt
	}
	after.keys = maps.Clone(after.keys)
	if after.keys == nil {
		after.keys = map[string]secretKey{}
	}
	after.keys[ref.Name] = next
	if err := after.fit("value"); err != nil {
		return hangar.SecretKey{}, 0, err
	}
	after.version++
	s.secrets[ref.App] = after
	return next.SecretKey, after.version, nil
}

// DeleteSecretKey implements hangar.SecretKeyService.
func (s *Service) DeleteSecretKey(ctx context.Context, ref hangar.SecretKeyRef) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: ref.App}); err != nil {
		return 0, err
	}
	all := s.secrets[ref.App]
	if _, err := all.key(ref); err != nil {
		return 0, err
	}
	delete(all.keys, ref.Name)
	all.version++
	s.secrets[ref.App] = all
	return all.version, nil
}

// EncryptWithKey implements hangar.SecretKeyService.
func (s *Service) EncryptWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext, associated []byte) ([]byte, error) {
	key, err := s.readyKey(ctx, ref, hangar.ActionRead, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Encrypt(plaintext, associated)
}

// DecryptWithKey implements hangar.SecretKeyService.
func (s *Service) DecryptWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, ciphertext, associated []byte) ([]byte, error) {
	key, err := s.readyKey(ctx, ref, hangar.ActionWrite, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Decrypt(ciphertext, associated)
}

// SignWithKey implements hangar.SecretKeyService.
func (s *Service) SignWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext []byte) ([]byte, error) {
	key, err := s.readyKey(ctx, ref, hangar.ActionWrite, minVersion)
	if err != nil {
		return nil, err
	}
	return key.Sign(plaintext)
}

// VerifyWithKey implements hangar.SecretKeyService.
func (s *Service) VerifyWithKey(ctx context.Context, ref hangar.SecretKeyRef, minVersion int, plaintext, signature []byte) error {
	key, err := s.readyKey(ctx, ref, hangar.ActionRead, minVersion)
	if err != nil {
		return err
	}
	return key.Verify(plaintext, signature)
}
