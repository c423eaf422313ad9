package sshca_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/sshca"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

var now = time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)

// world is a state with the Apps web and api of the organization acme, and shop of the organization
// other.
func world(t *testing.T) (state.Store, *sshca.Authority) {
	t.Helper()
	store := state.NewMemory()
	acme, other := hangar.Org{ID: "acmeacmeacmeacme", Slug: "acme"}, hangar.Org{ID: "otherotherothero", Slug: "other"}
	var txn state.Txn
	for key, record := range map[string]any{
		state.OrgKey("acme"):  tenants.OrgRecord{Org: acme},
		state.OrgKey("other"): tenants.OrgRecord{Org: other},
		state.AppKey("web"):   tenants.AppRecord{ID: "webwebwebwebwebw", Name: "web", Org: "acme", OrgID: acme.ID},
		state.AppKey("api"):   tenants.AppRecord{ID: "apiapiapiapiapia", Name: "api", Org: "acme", OrgID: acme.ID},
		state.AppKey("shop"):  tenants.AppRecord{ID: "shopshopshopshop", Name: "shop", Org: "other", OrgID: other.ID},
	} {
		put, err := state.Write(key, record)
		if err != nil {
			t.Fatal(err)
		}
		txn.Then = append(txn.Then, put)
	}
	if _, err := store.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	keys, err := keyset.Create(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	sealed := vault.New(store, keys, log)
	if err := sealed.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, sshca.New(store, tenants.NewDirectory(store), sealed, func() time.Time { return now })
}

func as(t *testing.T, grants ...hangar.Grant) context.Context {
	t.Helper()
	return hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "ann@example.com", Grants: grants})
}

var (
	ofOrg   = hangar.Grant{Org: "acme", Actions: hangar.ActionAll}
	ofWeb   = hangar.Grant{Org: "acme", Actions: hangar.ActionAll, Apps: []hangar.AppName{"web"}}
	ofOther = hangar.Grant{Org: "other", Actions: hangar.ActionAll}
	reader  = hangar.Grant{Org: "acme", Actions: hangar.ActionRead}
	limited = hangar.Grant{Org: "acme", Actions: hangar.ActionAll, Commands: []hangar.CommandRule{{Args: []string{"ls"}}}}
)

// parsed reads a certificate as it is handed out.
func parsed(t *testing.T, made *hangar.SSHCertificate) *ssh.Certificate {
	t.Helper()
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(made.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	c, ok := key.(*ssh.Certificate)
	if !ok {
		t.Fatalf("%T is no certificate", key)
	}
	return c
}

// accepted reports whether a server that trusts the authority of an organization lets the holder in as a user.
func accepted(t *testing.T, a *sshca.Authority, grant hangar.Grant, c *ssh.Certificate, principal string) error {
	t.Helper()
	list, err := a.SSHAuthorities(as(t, grant), grant.Org)
	if err != nil || len(list) > 1 {
		t.Fatalf("authorities %v, %v", list, err)
	}
	if len(list) == 0 {
		return ssh.ErrNoAuth
	}
	trusted, _, _, _, err := ssh.ParseAuthorizedKey([]byte(list[0].PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	checker := ssh.CertChecker{
		IsUserAuthority:          func(key ssh.PublicKey) bool { return bytes.Equal(key.Marshal(), trusted.Marshal()) },
		Clock:                    func() time.Time { return now.Add(time.Hour) },
		SupportedCriticalOptions: []string{"source-address"},
	}
	if !checker.IsUserAuthority(c.SignatureKey) {
		return ssh.ErrNoAuth
	}
	return checker.CheckCert(principal, c)
}

func TestIssue(t *testing.T) {
	_, a := world(t)
	if list, err := a.SSHAuthorities(as(t, reader), "acme"); err != nil || len(list) != 0 {
		t.Errorf("authorities before the first certificate: %v, %v", list, err)
	}
	made, err := a.IssueSSHCertificate(as(t, ofOrg), "acme", hangar.SSHCertificateCreate{SourceAddress: "203.0.113.0/24,2001:db8::1"})
	if err != nil {
		t.Fatal(err)
	}
	c := parsed(t, made)
	if err := accepted(t, a, ofOrg, c, "root"); err != nil {
		t.Errorf("as root: %v", err)
	}
	if err := accepted(t, a, ofOrg, c, "nobody"); err == nil {
		t.Error("is let in as another user")
	}
	if _, err := a.IssueSSHCertificate(as(t, ofOther), "other", hangar.SSHCertificateCreate{}); err != nil {
		t.Fatal(err)
	}
	if err := accepted(t, a, ofOther, c, "root"); err == nil {
		t.Error("is let in by another organization")
	}
	if c.CertType != ssh.UserCert || c.KeyId != "acme/ann@example.com" || c.CriticalOptions["source-address"] != "203.0.113.0/24,2001:db8::1" ||
		c.ValidBefore != uint64(now.Add(24*time.Hour).Unix()) || !made.ExpiresAt.Equal(now.Add(24*time.Hour)) {
		t.Errorf("certificate %+v", c)
	}
	signer, err := ssh.ParsePrivateKey([]byte(made.PrivateKey.Reveal()))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(signer.PublicKey().Marshal(), c.Key.Marshal()) {
		t.Error("the private key is not that of the certificate")
	}
	again, err := a.IssueSSHCertificate(as(t, ofOrg), "acme", hangar.SSHCertificateCreate{})
	if err != nil || !bytes.Equal(parsed(t, again).SignatureKey.Marshal(), c.SignatureKey.Marshal()) || parsed(t, again).Serial == c.Serial {
		t.Errorf("the second is signed by another authority, or has the same number: %v", err)
	}
}

// TestWhoMay has it that a certificate allows no more than the token that asked for it.
func TestWhoMay(t *testing.T) {
	_, a := world(t)
	apps := func(names ...hangar.AppName) hangar.SSHCertificateCreate {
		return hangar.SSHCertificateCreate{Apps: names, Principals: []string{"root", "app"}}
	}
	for name, c := range map[string]struct {
		grant hangar.Grant
		in    hangar.SSHCertificateCreate
		want  []string
		code  hangar.Code
	}{
		"all of the organization":   {ofOrg, apps(), []string{"root", "app"}, ""},
		"one of its Apps":           {ofOrg, apps("web"), []string{"root", "root@web", "app", "app@web"}, ""},
		"its own App":               {ofWeb, apps("web"), []string{"root@web", "app@web"}, ""},
		"another App":               {ofWeb, apps("api"), nil, hangar.CodeNotFound},
		"one more App":              {ofWeb, apps("web", "api"), nil, hangar.CodeNotFound},
		"more than its App":         {ofWeb, apps(), nil, hangar.CodeForbidden},
		"who may read":              {reader, apps(), nil, hangar.CodeForbidden},
		"who may execute a command": {limited, apps("web"), nil, hangar.CodeForbidden},
		"a stranger":                {ofOther, apps(), nil, hangar.CodeNotFound},
		"a stranger's App":          {ofOrg, apps("shop"), nil, hangar.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := a.IssueSSHCertificate(as(t, c.grant), "acme", c.in)
			if code := hangar.CodeOf(err); code != c.code {
				t.Fatalf("%v, want %q", err, c.code)
			}
			if err == nil && !slices.Equal(parsed(t, made).ValidPrincipals, c.want) {
				t.Errorf("principals %q, want %q", parsed(t, made).ValidPrincipals, c.want)
			}
		})
	}
	both := as(t, ofOrg, ofOther)
	if _, err := a.IssueSSHCertificate(both, "acme", apps("shop")); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("an App of another organization: %v", err)
	}
}

func TestFieldsAreChecked(t *testing.T) {
	_, a := world(t)
	for name, in := range map[string]hangar.SSHCertificateCreate{
		"hours":      {ValidHours: 73},
		"no hours":   {ValidHours: -1},
		"principal":  {Principals: []string{"root,admin"}},
		"with an at": {Principals: []string{"root@web"}},
		"source":     {SourceAddress: "everywhere"},
		"key":        {PublicKey: "ssh-rsa AAAA"},
		"two keys":   {PublicKey: publicKey(t) + "\n" + publicKey(t)},
		"options":    {PublicKey: `command="sh" ` + publicKey(t)},
	} {
		if _, err := a.IssueSSHCertificate(as(t, ofOrg), "acme", in); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	own := publicKey(t)
	made, err := a.IssueSSHCertificate(as(t, ofOrg), "acme", hangar.SSHCertificateCreate{PublicKey: own, ValidHours: 1})
	if err != nil || !made.PrivateKey.IsZero() {
		t.Fatalf("%+v, %v", made, err)
	}
	if got := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(parsed(t, made).Key))); got != own {
		t.Errorf("the certificate is of %s, want %s", got, own)
	}
}

func publicKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// TestAuthorityIsEncrypted has it that the state does not hold the key in clear.
func TestAuthorityIsEncrypted(t *testing.T) {
	store, a := world(t)
	if _, err := a.IssueSSHCertificate(as(t, ofOrg), "acme", hangar.SSHCertificateCreate{}); err != nil {
		t.Fatal(err)
	}
	item, err := store.Get(t.Context(), state.SSHAuthorityKey("acmeacmeacmeacme"))
	if err != nil || bytes.Contains(item.Value, []byte("seed")) {
		t.Errorf("kept as %s, %v", item.Value, err)
	}
}

// TestOpenSSHReadsIt asks ssh-keygen(1).
func TestOpenSSHReadsIt(t *testing.T) {
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("there is no ssh-keygen")
	}
	_, a := world(t)
	made, err := a.IssueSSHCertificate(as(t, ofWeb), "acme", hangar.SSHCertificateCreate{Apps: []hangar.AppName{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program, "-L", "-f", "-")
	c.Stdin = strings.NewReader(made.Certificate + "\n")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ssh-ed25519-cert-v01@openssh.com user certificate") || !strings.Contains(string(out), "root@web") {
		t.Errorf("%v\n%s", err, out)
	}
}
