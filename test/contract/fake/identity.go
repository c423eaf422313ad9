package fake

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"

	"github.com/hangar-platform/hangar"
)

// The addresses of the platform and of its issuers, before the slug of an
// organization.
const (
	platformURL = "https://hangar.localhost/"
	issuerURL   = "https://oidc.hangar.localhost/"
)

// keyPeriod is for how long a key signs.
const keyPeriod = 30 * 24 * time.Hour

// signingKey is a key with what it signs with.
type signingKey struct {
	hangar.SigningKey
	private *rsa.PrivateKey
}

// signingKeys makes the first two keys when they are first needed. The caller holds
// mu.
func (s *Service) signingKeys() []signingKey {
	if len(s.signing) == 0 {
		now := s.now().UTC().Truncate(time.Second)
		s.signing = []signingKey{
			newSigningKey(hangar.SigningKey{State: hangar.SigningKeyCurrent, CreatedAt: now, NotBefore: now, NotAfter: now.Add(keyPeriod)}),
			newSigningKey(hangar.SigningKey{State: hangar.SigningKeyNext, CreatedAt: now, NotBefore: now.Add(keyPeriod)}),
		}
	}
	return s.signing
}

func newSigningKey(k hangar.SigningKey) signingKey {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // never fails: the reader aborts the program instead
	}
	k.ID = uuid.NewString()
	return signingKey{k, private}
}

// SigningKeys implements hangar.SigningKeyService.
func (s *Service) SigningKeys(ctx context.Context) ([]hangar.SigningKey, error) {
	if err := adminOnly(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []hangar.SigningKey{}
	for _, k := range s.signingKeys() {
		list = append(list, k.SigningKey)
	}
	return list, nil
}

// RotateSigningKey implements hangar.SigningKeyService. The next key is always ready.
func (s *Service) RotateSigningKey(ctx context.Context) ([]hangar.SigningKey, error) {
	if err := adminOnly(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	now := s.now().UTC().Truncate(time.Second)
	keys := s.signingKeys()
	current, next := &keys[len(keys)-2], &keys[len(keys)-1]
	current.State, current.NotAfter = hangar.SigningKeyRetired, now
	next.State, next.NotBefore, next.NotAfter = hangar.SigningKeyCurrent, now, now.Add(keyPeriod)
	s.signing = append(keys, newSigningKey(hangar.SigningKey{State: hangar.SigningKeyNext, CreatedAt: now, NotBefore: now.Add(keyPeriod)}))
	s.mu.Unlock()
	return s.SigningKeys(ctx)
}

// IssueIdentityToken implements hangar.IdentityService.
func (s *Service) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	p, err := principal(ctx)
	if err == nil && ref == (hangar.MachineRef{}) {
		ref, err = hangar.CallerMachine(ctx)
	}
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findIf(ctx, ref, func(_ hangar.Principal, t hangar.Target) bool { return hangar.MayIdentify(ctx, p, t) })
	if err != nil {
		return "", err
	}
	if err := in.Validate(); err != nil {
		return "", err
	}
	if !m.State.HasIdentity() {
		return "", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine not running, currently %s", m.State)
	}
	claims := hangar.IdentityOf(s.apps[ref.App], &m.Machine)
	now := s.now().Unix()
	claims.IssuedAt, claims.NotBefore, claims.Expiry = now, now, now+int64(hangar.IdentityTokenLifetime.Seconds())
	claims.ID, claims.Issuer = uuid.NewString(), issuerURL+string(claims.OrgName)
	if claims.Audience = in.Audience; claims.Audience == "" {
		claims.Audience = platformURL + string(claims.OrgName)
	}
	if in.AWSPrincipalTags {
		claims.AWSTags = claims.Tags()
	}
	return s.sign(claims)
}

// sign returns a JSON Web Token. The caller holds mu.
func (s *Service) sign(claims hangar.IdentityClaims) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	keys := s.signingKeys()
	at := slices.IndexFunc(keys, func(k signingKey) bool { return k.State == hangar.SigningKeyCurrent })
	key := jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: keys[at].private, KeyID: keys[at].ID}}
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// IssuerMetadata implements hangar.IdentityIssuer.
func (s *Service) IssuerMetadata(_ context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orgs[org] == nil {
		return hangar.IssuerDocument{}, orgNotFound(org)
	}
	return document(map[string]any{
		"issuer": issuerURL + string(org), "jwks_uri": fmt.Sprintf("%s%s/.well-known/jwks", issuerURL, org),
		"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
	})
}

// IssuerKeys implements hangar.IdentityIssuer.
func (s *Service) IssuerKeys(_ context.Context, org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orgs[org] == nil {
		return hangar.IssuerDocument{}, orgNotFound(org)
	}
	var set jose.JSONWebKeySet
	for _, k := range s.signingKeys() {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.private.Public(), KeyID: k.ID, Algorithm: string(jose.RS256), Use: "sig"})
	}
	return document(set)
}

func document(v any) (hangar.IssuerDocument, error) {
	body, err := json.Marshal(v)
	return hangar.IssuerDocument{Body: body, MaxAge: time.Minute}, err
}
