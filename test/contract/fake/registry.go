package fake

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// registryLogin is a credential with its password.
type registryLogin struct {
	hangar.RegistryCredential
	password hangar.Sensitive
}

// RegistryCredentials implements hangar.RegistryService.
func (s *Service) RegistryCredentials(ctx context.Context) ([]hangar.RegistryCredential, error) {
	if err := adminOnly(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []hangar.RegistryCredential{}
	for _, login := range s.logins {
		list = append(list, login.RegistryCredential)
	}
	slices.SortFunc(list, func(a, b hangar.RegistryCredential) int { return strings.Compare(a.Registry, b.Registry) })
	return list, nil
}

// RegistryCredential implements hangar.RegistryService.
func (s *Service) RegistryCredential(ctx context.Context, registry string) (hangar.RegistryCredential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	login, err := s.login(ctx, registry)
	return login.RegistryCredential, err
}

// login finds a credential. The caller holds mu.
func (s *Service) login(ctx context.Context, registry string) (registryLogin, error) {
	if err := adminOnly(ctx); err != nil {
		return registryLogin{}, err
	}
	name, err := hangar.RegistryName(registry)
	if err != nil {
		return registryLogin{}, err
	}
	login, ok := s.logins[name]
	if !ok {
		return login, hangar.Errorf(hangar.CodeNotFound, "", "there is no credential for registry %s", name)
	}
	return login, nil
}

// SetRegistryCredential implements hangar.RegistryService.
func (s *Service) SetRegistryCredential(ctx context.Context, registry string, in hangar.RegistryLogin) (hangar.RegistryCredential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := s.login(ctx, registry)
	if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		return hangar.RegistryCredential{}, err
	}
	if err := in.Validate(); err != nil {
		return hangar.RegistryCredential{}, err
	}
	name, err := hangar.RegistryName(registry)
	if err != nil {
		return hangar.RegistryCredential{}, err
	}
	now := s.now().UTC().Truncate(time.Second)
	after := hangar.RegistryCredential{Registry: name, Username: in.Username, CreatedAt: before.CreatedAt, UpdatedAt: now}
	if after.CreatedAt.IsZero() {
		after.CreatedAt = now
	}
	s.logins[name] = registryLogin{after, in.Password}
	return after, nil
}

// DeleteRegistryCredential implements hangar.RegistryService.
func (s *Service) DeleteRegistryCredential(ctx context.Context, registry string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	login, err := s.login(ctx, registry)
	delete(s.logins, login.Registry)
	return err
}

// RotateEncryptionKey implements hangar.EncryptionService: there is nothing
// encrypted, so it counts what would be.
func (s *Service) RotateEncryptionKey(ctx context.Context) (hangar.KeyRotation, error) {
	if err := adminOnly(ctx); err != nil {
		return hangar.KeyRotation{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key++
	return hangar.KeyRotation{Key: s.key, Resealed: len(s.logins), Dropped: 1}, nil
}

func adminOnly(ctx context.Context) error {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && !p.Admin {
		err = hangar.Errorf(hangar.CodeForbidden, "", "only an administrator may do that")
	}
	return err
}
