package control_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/test/contract"
)

func (p *plane) setSecrets(t *testing.T, app hangar.AppName, values map[string]hangar.Sensitive) hangar.Secrets {
	t.Helper()
	all, err := p.Secrets().SetSecrets(admin(t), app, values)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func secret(name, value string) map[string]hangar.Sensitive {
	return map[string]hangar.Sensitive{name: hangar.NewSensitive(value)}
}

func TestSecretsGoToHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.setSecrets(t, "web", secret("KEY", "plaintext"))
	var got hangar.MachineSpec
	p.hosts[0].onCreate = func(spec hangar.MachineSpec) (error, error) { got = spec; return nil, nil }
	m := p.machine(t, "web", "")
	if got.Secrets.Version != 1 || got.Secrets.Values["KEY"].Reveal() != "plaintext" {
		t.Fatalf("the host got version %d with %q", got.Secrets.Version, got.Secrets.Values["KEY"].Reveal())
	}
	// However it is printed, the value is not.
	for _, text := range []string{fmt.Sprint(got), fmt.Sprintf("%+v %#v", got, got), fmt.Sprint(got.Secrets), fmt.Sprintf("%#v", struct{ hidden hangar.MachineSpec }{got})} {
		if strings.Contains(text, "plaintext") {
			t.Errorf("printed as %s", text)
		}
	}
	in := hangar.MachineUpdate{Config: wish("").Config, Secrets: hangar.SecretValues{Version: 7, Values: secret("KEY", "forged")}}
	if _, err := p.Machines().UpdateMachine(admin(t), m.Ref(), in); err != nil {
		t.Fatal(err)
	}
	p.hosts[0].mu.Lock()
	defer p.hosts[0].mu.Unlock()
	if u := p.hosts[0].updated; u.Secrets.Version != 1 || u.Secrets.Values["KEY"].Reveal() != "plaintext" {
		t.Errorf("an update hands on version %d with %q", u.Secrets.Version, u.Secrets.Values["KEY"].Reveal())
	}
}

func TestSecretsAreEncrypted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		p.setSecrets(t, "web", secret("SECRET_NAME", "plaintext"))
		key := p.setKey(t, "web", "KEY_NAME", strings.Repeat("key", 11))
		signature, err := p.SecretKeys().SignWithKey(admin(t), key, 0, []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		items, _, err := state.All(t.Context(), store, "/", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			for _, clear := range []string{"plaintext", "SECRET_NAME", "KEY_NAME", "keykey", base64.StdEncoding.EncodeToString([]byte("keykey"))} {
				if bytes.Contains(i.Value, []byte(clear)) {
					t.Errorf("%s holds %s in clear: %s", i.Key, clear, i.Value)
				}
			}
		}
		before, err := p.Secrets().Secret(admin(t), "web", "SECRET_NAME", hangar.SecretQuery{Show: true})
		if err != nil {
			t.Fatal(err)
		}
		if done, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil || done.Resealed != 3 { // the seal, these, and the keys of identity tokens
			t.Fatalf("rotated %+v, %v", done, err)
		}
		p.restart(t)
		after, err := p.Secrets().Secret(admin(t), "web", "SECRET_NAME", hangar.SecretQuery{Show: true})
		if err != nil || after.Digest != before.Digest || after.Value.Reveal() != "plaintext" {
			t.Errorf("%+v became %+v, %v", before, after, err)
		}
		if err := p.SecretKeys().VerifyWithKey(admin(t), key, 0, []byte("text"), signature); err != nil {
			t.Errorf("an earlier signature: %v", err)
		}
	})
}

// TestDigestsTellNothing: the digest of a value that can be guessed is another one in
// another App.
func TestDigestsTellNothing(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.app(t, "api")
	a, b := p.setSecrets(t, "web", secret("PIN", "1234")), p.setSecrets(t, "api", secret("PIN", "1234"))
	if a.List[0].Digest == b.List[0].Digest {
		t.Errorf("both have the digest %s", a.List[0].Digest)
	}
}

// TestMovedSecretsDoNotOpen moves the record of one App, and an older one, as an
// attacker with access to the state would.
func TestMovedSecretsDoNotOpen(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	web, api := p.app(t, "web"), p.app(t, "api")
	p.setSecrets(t, "web", secret("KEY", "plaintext"))
	stolen, err := p.store.Get(t.Context(), "/secrets/"+string(web.ID))
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, value []byte) {
		t.Helper()
		if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, value)}}); err != nil {
			t.Fatal(err)
		}
	}
	put("/secrets/"+string(api.ID), stolen.Value)
	_, err = p.Secrets().Secrets(admin(t), "api", hangar.SecretQuery{Show: true})
	wantError(t, err, hangar.CodeInternal, hangar.ReasonRecordDamaged)
	put("/secrets/"+string(web.ID), bytes.Replace(stolen.Value, []byte(`["1"]`), []byte(`["2"]`), 1))
	_, err = p.Secrets().Secrets(admin(t), "web", hangar.SecretQuery{Show: true})
	wantError(t, err, hangar.CodeInternal, hangar.ReasonRecordDamaged)
}

func TestWhoSeesSecrets(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.setSecrets(t, "web", secret("KEY", "plaintext"))
	mine := as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: hangar.ActionAll}}})
	other := as(t, hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}})
	if got, err := p.Secrets().Secret(mine, "web", "KEY", hangar.SecretQuery{Show: true}); err != nil || got.Value.Reveal() != "plaintext" {
		t.Errorf("one's own: %v, %v", got, err)
	}
	_, err := p.Secrets().Secrets(other, "web", hangar.SecretQuery{})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = p.Secrets().SetSecrets(other, "web", secret("KEY", "mine"))
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = p.Secrets().DeleteSecret(other, "web", "KEY")
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func TestSecretsGoWithTheirApp(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.setSecrets(t, "web", secret("KEY", "plaintext"))
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Fatal(err)
	}
	if left := p.records(t, "/secrets/"); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestSecretService(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	h := contract.Harness{
		Apps: p.Apps(), Machines: instant{p.Machines()}, Secrets: p.Secrets(), Image: "nginx:alpine",
		Context: func(tb testing.TB) context.Context { tb.Helper(); return admin(t) },
	}
	contract.SecretService(t, h)
}

// instant are Machines of a host that has finished each request when it answers.
type instant struct{ hangar.MachineService }

func (instant) WaitMachine(context.Context, hangar.MachineRef, hangar.MachineWait) (hangar.MachineReached, error) {
	return hangar.MachineReached{}, nil
}
