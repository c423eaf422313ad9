package control_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/test/contract"
)

func (p *plane) generateKey(t *testing.T, app hangar.AppName, name string, kind hangar.SecretKeyType) hangar.SecretKeyRef {
	t.Helper()
	ref := hangar.SecretKeyRef{App: app, Name: name}
	if _, _, err := p.SecretKeys().GenerateSecretKey(admin(t), ref, kind); err != nil {
		t.Fatal(err)
	}
	return ref
}

// setKey sets a key of the type hs256.
func (p *plane) setKey(t *testing.T, app hangar.AppName, name, value string) hangar.SecretKeyRef {
	t.Helper()
	ref := hangar.SecretKeyRef{App: app, Name: name}
	in := hangar.SecretKeySet{Type: hangar.SecretKeyHS256, Value: hangar.NewSensitive(value)}
	if _, _, err := p.SecretKeys().SetSecretKey(admin(t), ref, in); err != nil {
		t.Fatal(err)
	}
	return ref
}

// TestWhoUsesSecretKeys: the right to read allows encrypting and verifying; the right to
// change the App also decrypting and signing; to others the App looks missing.
func TestWhoUsesSecretKeys(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	mac, box := p.generateKey(t, "web", "mac", hangar.SecretKeyHS256), p.generateKey(t, "web", "box", hangar.SecretKeyNaClSecretBox)
	text := []byte("text")
	signature, err := p.SecretKeys().SignWithKey(admin(t), mac, 0, text)
	if err != nil {
		t.Fatal(err)
	}
	ciphertext, err := p.SecretKeys().EncryptWithKey(admin(t), box, 0, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := p.SecretKeys()
	calls := map[string]func(ctx context.Context) error{
		"list": func(ctx context.Context) error {
			_, err := keys.SecretKeys(ctx, "web", hangar.SecretKeyQuery{})
			return err
		},
		"get":     func(ctx context.Context) error { _, err := keys.SecretKey(ctx, mac, 0); return err },
		"encrypt": func(ctx context.Context) error { _, err := keys.EncryptWithKey(ctx, box, 0, text, nil); return err },
		"verify":  func(ctx context.Context) error { return keys.VerifyWithKey(ctx, mac, 0, text, signature) },
		"decrypt": func(ctx context.Context) error {
			_, err := keys.DecryptWithKey(ctx, box, 0, ciphertext, nil)
			return err
		},
		"sign": func(ctx context.Context) error { _, err := keys.SignWithKey(ctx, mac, 0, text); return err },
		"generate": func(ctx context.Context) error {
			_, _, err := keys.GenerateSecretKey(ctx, hangar.SecretKeyRef{App: "web", Name: "new"}, hangar.SecretKeyHS256)
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := keys.DeleteSecretKey(ctx, hangar.SecretKeyRef{App: "web", Name: "new"})
			return err
		},
	}
	reading := map[string]bool{"list": true, "get": true, "encrypt": true, "verify": true}
	member := func(org hangar.OrgSlug, actions hangar.Action) context.Context {
		return as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: org, Actions: actions}}})
	}
	for _, name := range []string{"list", "get", "encrypt", "verify", "decrypt", "sign", "generate", "delete"} {
		t.Run(name, func(t *testing.T) {
			wantError(t, calls[name](member("other", hangar.ActionAll)), hangar.CodeNotFound, hangar.ReasonAppNotFound)
			if err := calls[name](member(hangar.OrgPersonal, hangar.ActionRead)); reading[name] {
				if err != nil {
					t.Errorf("a reader: %v", err)
				}
			} else {
				wantError(t, err, hangar.CodeForbidden, "")
			}
			if err := calls[name](member(hangar.OrgPersonal, hangar.ActionWrite)); !reading[name] && err != nil {
				t.Errorf("a writer: %v", err)
			}
		})
	}
}

// TestKeysOfAnother: the key of one App does not open what that of another one has made,
// even under the same name.
func TestKeysOfAnother(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.app(t, "api")
	mine, theirs := p.generateKey(t, "web", "key", hangar.SecretKeyXAES256GCM), p.generateKey(t, "api", "key", hangar.SecretKeyXAES256GCM)
	ciphertext, err := p.SecretKeys().EncryptWithKey(admin(t), theirs, 0, []byte("text"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.SecretKeys().DecryptWithKey(admin(t), mine, 0, ciphertext, nil)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonCiphertextMismatch)
}

// TestSecretKeysStay: Machines get the secrets of an App and none of its keys, with the
// version that both share.
func TestSecretKeysStay(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.setSecrets(t, "web", secret("SECRET", "plaintext"))
	p.setKey(t, "web", "KEY", strings.Repeat("key", 11))
	var got hangar.MachineSpec
	p.hosts[0].onCreate = func(spec hangar.MachineSpec) (error, error) { got = spec; return nil, nil }
	p.machine(t, "web", "")
	if len(got.Secrets.Values) != 1 || got.Secrets.Values["SECRET"].Reveal() != "plaintext" || got.Secrets.Version != 2 {
		t.Errorf("the host got version %d of %d secrets", got.Secrets.Version, len(got.Secrets.Values))
	}
}

// TestSecretKeysAreBounded: keys count with the secrets, of their App and of the
// organization, until they or the App are gone.
func TestSecretKeysAreBounded(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "acme")
	p.limit(t, "acme", hangar.Quotas{hangar.QuotaSecrets: 3})
	p.setSecrets(t, "acme", secret("SECRET", "plaintext"))
	first := p.generateKey(t, "acme", "k1", hangar.SecretKeyHS256)
	p.generateKey(t, "acme", "k2", hangar.SecretKeyHS256)
	beyond := func(n int) error {
		_, _, err := p.SecretKeys().GenerateSecretKey(admin(t), hangar.SecretKeyRef{App: "acme", Name: "l" + strconv.Itoa(n)}, hangar.SecretKeyHS256)
		return err
	}
	wantError(t, beyond(1), hangar.CodeExhausted, hangar.ReasonQuota)
	if _, err := p.SecretKeys().DeleteSecretKey(admin(t), first); err != nil {
		t.Fatal(err)
	}
	if err := beyond(2); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
	used := func() string {
		list, err := p.Orgs().OrgQuotas(admin(t), "acme")
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, q := range list {
			if q.Key == hangar.QuotaSecrets || q.Key == hangar.QuotaSecretBytes {
				text = append(text, fmt.Sprint(q.Used))
			}
		}
		return strings.Join(text, " ")
	}
	if got, want := used(), fmt.Sprint(3, len("SECRET"+"plaintext"+"k2"+"l2")+2*32); got != want {
		t.Errorf("used are %s, want %s", got, want)
	}
	if err := p.Apps().DestroyApp(admin(t), "acme", true); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != "0 0" {
		t.Errorf("without the App used are %s", got)
	}
	if left := p.records(t, "/secrets/"); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestSecretKeyService(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	contract.SecretKeyService(t, contract.Harness{
		Apps: p.Apps(), Secrets: p.Secrets(), SecretKeys: p.SecretKeys(),
		Context: func(tb testing.TB) context.Context { tb.Helper(); return admin(t) },
	})
}
