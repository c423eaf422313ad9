package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
)

// secrets are those of an App.
type secrets struct {
	version int
	values  map[string]hangar.Secret // with their values
	keys    map[string]secretKey
}

// Secrets implements hangar.SecretService.
func (s *Service) Secrets(ctx context.Context, app hangar.AppName, q hangar.SecretQuery) (hangar.Secrets, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	action := hangar.ActionRead
	if q.Show {
		action = hangar.ActionWrite
	}
	if _, err := s.appFor(ctx, action, hangar.MachineRef{App: app}); err != nil {
		return hangar.Secrets{}, err
	}
	all := s.secrets[app]
	if err := all.atLeast("min_version", q.MinVersion); err != nil {
		return hangar.Secrets{}, err
	}
	return all.list(q.Show), nil
}

func (s secrets) atLeast(field string, version int) error {
	if s.version >= version {
		return nil
	}
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion,
		"invalid %s: the secrets are at version %d, not at %d", field, s.version, version)
}

func (s secrets) list(show bool) hangar.Secrets {
	all := hangar.Secrets{List: []hangar.Secret{}, Version: s.version}
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		secret := s.values[name]
		if !show {
			secret.Value = hangar.Sensitive{}
		}
		all.List = append(all.List, secret)
	}
	return all
}

// Secret implements hangar.SecretService.
func (s *Service) Secret(ctx context.Context, app hangar.AppName, name string, q hangar.SecretQuery) (hangar.Secret, error) {
	all, err := s.Secrets(ctx, app, q)
	if err != nil {
		return hangar.Secret{}, err
	}
	for _, secret := range all.List {
		if secret.Name == name {
			return secret, nil
		}
	}
	return hangar.Secret{}, secretNotFound(app, name)
}

func secretNotFound(app hangar.AppName, name string) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSecretNotFound, "app %q has no secret %q", app, name)
}

// SetSecrets implements hangar.SecretService.
func (s *Service) SetSecrets(ctx context.Context, app hangar.AppName, values map[string]hangar.Sensitive) (hangar.Secrets, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: app}); err != nil {
		return hangar.Secrets{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := hangar.ValidateSecret(name, values[name]); err != nil {
			return hangar.Secrets{}, err
		}
	}
	after := s.secrets[app]
	after.values = maps.Clone(after.values)
	if after.values == nil {
		after.values = map[string]hangar.Secret{}
	}
	if after.apply(values, s.now().UTC().Truncate(time.Second)) {
		after.version++
	}
	if err := after.fit("values"); err != nil {
		return hangar.Secrets{}, err
	}
	s.secrets[app] = after
	return after.list(false), nil
}

// fit answers an error if the secrets and keys are too large.
func (s secrets) fit(field string) error {
	size := 0
	for name, secret := range s.values {
		size += len(name) + len(secret.Value.Reveal())
	}
	for name, key := range s.keys {
		size += len(name) + len(key.value)
	}
	if size <= hangar.MaxSecretsSize {
		return nil
	}
	return hangar.Errorf(hangar.CodeInvalid, "",
		"invalid %s: the secrets of the app would have %d bytes, more than the %d that are allowed", field, size, hangar.MaxSecretsSize)
}

// apply reports whether anything was changed.
func (s secrets) apply(changes map[string]hangar.Sensitive, now time.Time) (changed bool) {
	for name, value := range changes {
		before, known := s.values[name]
		switch {
		case value.IsZero():
			delete(s.values, name)
			changed = changed || known
		case !known || before.Value.Reveal() != value.Reveal():
			sum := sha256.Sum256([]byte(value.Reveal()))
			next := hangar.Secret{Name: name, Digest: hex.EncodeToString(sum[:8]), CreatedAt: now, UpdatedAt: now, Value: value}
			if known {
				next.CreatedAt = before.CreatedAt
			}
			s.values[name] = next
			changed = true
		}
	}
	return changed
}

// DeleteSecret implements hangar.SecretService.
func (s *Service) DeleteSecret(ctx context.Context, app hangar.AppName, name string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: app}); err != nil {
		return 0, err
	}
	all := s.secrets[app]
	if _, ok := all.values[name]; !ok {
		return 0, secretNotFound(app, name)
	}
	delete(all.values, name)
	all.version++
	s.secrets[app] = all
	return all.version, nil
}

// secretsFor returns the version of the secrets that a new version of a Machine gets.
// The caller holds mu.
func (s *Service) secretsFor(app hangar.AppName, skip bool, least int) (int, error) {
	if least < 0 {
		return 0, hangar.Errorf(hangar.CodeInvalid, "", "invalid min_secrets_version: %d is negative", least)
	}
	if skip {
		return 0, nil
	}
	all := s.secrets[app]
	return all.version, all.atLeast("min_secrets_version", least)
}
