// Package sshca issues the certificates by which users sign in to Machines with OpenSSH.
//
// Promises. Each organization has an authority of its own, an Ed25519 key that is made with its
// first certificate, kept encrypted in the cluster state, and gone with the organization. A certificate is
// for users, of no host, and lasts hangar.MaxSSHHours at most. It allows no more than the caller may do:
// see hangar.SSHService. Private keys that are made for callers are not kept.
//
// Concurrency. All is safe for concurrent use; nothing is kept in memory.
//
// It does not see SSH connections: the host of a Machine admits holders of a certificate, and so does an
// sshd in the Machine that is configured to trust the authority.
package sshca

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Trust implements hangar.SSHTrust.
type Trust struct {
	store state.Store
	vault *vault.Vault
}

// NewTrust returns what hosts know of the authorities that are in a state, with the Vault of that state.
func NewTrust(store state.Store, v *vault.Vault) *Trust { return &Trust{store, v} }

// Authority implements hangar.SSHService.
type Authority struct {
	trust   *Trust
	tenants *tenants.Directory
	now     func() time.Time
}

var (
	_ hangar.SSHService = (*Authority)(nil)
	_ hangar.SSHTrust   = (*Trust)(nil)
)

// New returns the service of what is in a state, with the Vault of that state.
func New(store state.Store, dir *tenants.Directory, v *vault.Vault, now func() time.Time) *Authority {
	return &Authority{NewTrust(store, v), dir, now}
}

// record is an authority as the state keeps it, encrypted.
type record struct {
	Seed []byte `json:"seed"` // of an Ed25519 key
}

// skew is how much earlier than now a certificate begins, for Machines whose clocks are behind.
const skew = time.Minute

// read returns the authority of an organization; nil: there is none.
func (t *Trust) read(ctx context.Context, org hangar.OrgID) (ssh.Signer, error) {
	key := state.SSHAuthorityKey(org)
	item, err := t.store.Get(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return nil, nil //nolint:nilnil // none
	}
	if err != nil {
		return nil, state.HangarError(err)
	}
	rec, err := vault.Decode[record](t.vault, item)
	if err != nil {
		return nil, err
	}
	if len(rec.Seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("record %s: seed of %d bytes", key, len(rec.Seed))
	}
	return ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(rec.Seed))
}

// signer returns the authority of an organization, which it makes if there is none.
func (a *Authority) signer(ctx context.Context, org hangar.Org, orgItem state.Item) (ssh.Signer, error) {
	key := state.SSHAuthorityKey(org.ID)
	for {
		if signer, err := a.trust.read(ctx, org.ID); signer != nil || err != nil {
			return signer, err
		}
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		err = a.trust.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := vault.Sealed(keys, key, record{private.Seed()})
			// An organization that goes gets none.
			return state.Txn{If: []state.Compare{state.Absent(key), state.Unchanged(orgItem)}, Then: []state.Op{put}}, err
		})
		if errors.Is(err, state.ErrConflict) {
			if _, gone, err := a.tenants.AnyOrg(ctx, org.Slug); err != nil || gone.Revision != orgItem.Revision {
				return nil, hangar.Errorf(hangar.CodeConflict, "", "the organization %q was changed meanwhile; try again", string(org.Slug))
			}
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
	}
}

// SSHAuthorities implements hangar.SSHService.
func (a *Authority) SSHAuthorities(ctx context.Context, slug hangar.OrgSlug) ([]hangar.SSHAuthority, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	org, _, err := a.tenants.Org(ctx, p, slug, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return a.trust.TrustedSSHAuthorities(ctx, org.ID)
}

// TrustedSSHAuthorities implements hangar.SSHTrust.
func (t *Trust) TrustedSSHAuthorities(ctx context.Context, org hangar.OrgID) ([]hangar.SSHAuthority, error) {
	signer, err := t.read(ctx, org)
	if signer == nil || err != nil {
		return []hangar.SSHAuthority{}, err
	}
	return []hangar.SSHAuthority{{PublicKey: authorized(signer.PublicKey())}}, nil
}

// authorized is a key or a certificate as in authorized_keys.
func authorized(key ssh.PublicKey) string {
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n")
}

// mayIn reports whether a caller may execute every command in a target.
func mayIn(p hangar.Principal, t hangar.Target) bool { return p.May(hangar.ActionControl, t) }

// scope finds the organization, and whether the caller may execute commands in all of it.
func (a *Authority) scope(ctx context.Context, slug hangar.OrgSlug, apps []hangar.AppName) (org hangar.Org, item state.Item, everywhere bool, err error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return org, item, false, err
	}
	rec, item, err := a.tenants.AnyOrg(ctx, slug)
	if err != nil {
		return org, item, false, err
	}
	target := tenants.OrgTarget(rec.Org)
	if everywhere = mayIn(p, target); len(apps) == 0 && !everywhere || !p.Sees(target) {
		return org, item, false, tenants.Denied(p, target)
	}
	for _, name := range apps {
		app, _, err := a.tenants.AppIf(ctx, hangar.MachineRef{App: name}, mayIn)
		if err == nil && app.OrgID != rec.ID {
			err = hangar.Errorf(hangar.CodeInvalid, "", "invalid appNames: the App %q is one of another organization", string(name))
		}
		if err != nil {
			return org, item, false, err
		}
	}
	return rec.Org, item, everywhere, nil
}

// IssueSSHCertificate implements hangar.SSHService.
func (a *Authority) IssueSSHCertificate(ctx context.Context, slug hangar.OrgSlug, in hangar.SSHCertificateCreate) (*hangar.SSHCertificate, error) {
	org, item, everywhere, err := a.scope(ctx, slug, in.Apps)
	if err != nil {
		return nil, err
	}
	if err := in.Complete(); err != nil {
		return nil, err
	}
	public, private, err := keyOf(in.PublicKey)
	if err != nil {
		return nil, err
	}
	authority, err := a.signer(ctx, org, item)
	if err != nil {
		return nil, err
	}
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	var serial [8]byte
	_, _ = rand.Read(serial[:]) // never fails: crypto/rand.Read aborts the program instead
	now := a.now().UTC()
	ends := now.Add(time.Duration(in.ValidHours) * time.Hour)
	certificate := &ssh.Certificate{
		Key: public, Serial: binary.BigEndian.Uint64(serial[:]), CertType: ssh.UserCert, KeyId: string(org.Slug) + "/" + p.Subject,
		ValidPrincipals: hangar.SSHPrincipals(in.Principals, in.Apps, everywhere),
		ValidAfter:      uint64(now.Add(-skew).Unix()), ValidBefore: uint64(ends.Unix()),
		Permissions: ssh.Permissions{CriticalOptions: map[string]string{}, Extensions: map[string]string{
			"permit-agent-forwarding": "", "permit-port-forwarding": "", "permit-pty": "", "permit-user-rc": "",
		}},
	}
	if in.SourceAddress != "" {
		certificate.CriticalOptions["source-address"] = in.SourceAddress
	}
	if err := certificate.SignCert(rand.Reader, authority); err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return &hangar.SSHCertificate{Certificate: authorized(certificate), PrivateKey: private, ExpiresAt: ends.Truncate(time.Second)}, nil
}

// keyOf reads the public key of a request or, for none, makes a pair.
func keyOf(text string) (ssh.PublicKey, hangar.Sensitive, error) {
	if text == "" {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, hangar.Sensitive{}, err
		}
		block, err := ssh.MarshalPrivateKey(private, "")
		if err != nil {
			return nil, hangar.Sensitive{}, err
		}
		key, err := ssh.NewPublicKey(public)
		return key, hangar.NewSensitive(string(pem.EncodeToMemory(block))), err
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil || len(options) > 0 || len(strings.TrimSpace(string(rest))) > 0 || key.Type() != ssh.KeyAlgoED25519 {
		return nil, hangar.Sensitive{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid publicKey: is not an Ed25519 key as in authorized_keys")
	}
	return key, hangar.Sensitive{}, nil
}
