package contract

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// SecretKeyService checks an implementation of hangar.SecretKeyService.
func SecretKeyService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"set and delete":  secretKeysSet,
		"every type":      secretKeyTypes,
		"generate again":  secretKeyReplaced,
		"bad input":       secretKeysBadInput,
		"at most so much": secretKeysSize,
		"versions":        secretKeyVersions,
		"not there":       secretKeysNotThere,
		"beside secrets":  secretKeysBesideSecrets,
		"empty text":      secretKeyEmptyText,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// keyValue is a value of n bytes.
func keyValue(kind hangar.SecretKeyType, n int) hangar.SecretKeySet {
	return hangar.SecretKeySet{Type: kind, Value: hangar.NewSensitive(strings.Repeat("\xf7", n))}
}

func (h Harness) setKey(t *testing.T, ref hangar.SecretKeyRef, in hangar.SecretKeySet) (hangar.SecretKey, int) {
	t.Helper()
	key, version, err := h.SecretKeys.SetSecretKey(h.Context(t), ref, in)
	must(t, "set secret key", err)
	return key, version
}

func (h Harness) generateKey(t *testing.T, ref hangar.SecretKeyRef, kind hangar.SecretKeyType) hangar.SecretKey {
	t.Helper()
	key, _, err := h.SecretKeys.GenerateSecretKey(h.Context(t), ref, kind)
	must(t, "generate secret key", err)
	return key
}

// keyNames are those of the secret keys of an App.
func (h Harness) keyNames(t *testing.T, app hangar.AppName, types ...hangar.SecretKeyType) []string {
	t.Helper()
	list, err := h.SecretKeys.SecretKeys(h.Context(t), app, hangar.SecretKeyQuery{Types: types})
	must(t, "list secret keys", err)
	names := []string{}
	for _, key := range list {
		names = append(names, key.Name)
	}
	return names
}

func secretKeysSet(t *testing.T, h Harness) {
	app := h.newApp(t)
	if got := h.keyNames(t, app); len(got) != 0 {
		t.Errorf("an app without secret keys has %v", got)
	}
	b, mac := hangar.SecretKeyRef{App: app, Name: "b"}, keyValue(hangar.SecretKeyHS256, 32)
	key, version := h.setKey(t, b, mac)
	if key.Name != "b" || key.Type != hangar.SecretKeyHS256 || key.PublicKey != nil || key.CreatedAt.IsZero() || key.UpdatedAt.IsZero() || version != 1 {
		t.Errorf("made %+v at version %d", key, version)
	}
	if _, version := h.setKey(t, b, mac); version != 1 {
		t.Errorf("what is so already makes version %d", version)
	}
	if _, version := h.setKey(t, b, keyValue(hangar.SecretKeyHS256, 33)); version != 2 {
		t.Errorf("another value makes version %d", version)
	}
	if _, version := h.setKey(t, hangar.SecretKeyRef{App: app, Name: "A.1-x_y"}, keyValue(hangar.SecretKeyXAES256GCM, 32)); version != 3 {
		t.Errorf("another key makes version %d", version)
	}
	key, err := h.SecretKeys.SecretKey(h.Context(t), b, 3)
	must(t, "get", err)
	if key.Name != "b" || key.Type != hangar.SecretKeyHS256 {
		t.Errorf("got %+v", key)
	}
	if got, want := h.keyNames(t, app), []string{"A.1-x_y", "b"}; !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	if got, want := h.keyNames(t, app, hangar.SecretKeyHS256, hangar.SecretKeyES256), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("listed %v of two types, want %v", got, want)
	}
	version, err = h.SecretKeys.DeleteSecretKey(h.Context(t), b)
	must(t, "delete", err)
	if got := h.keyNames(t, app); version != 4 || len(got) != 1 {
		t.Errorf("deleted at version %d, left %v", version, got)
	}
}

// secretKeyTypes takes a generated key of every type through what it does.
func secretKeyTypes(t *testing.T, h Harness) {
	app := h.newApp(t)
	text, other := []byte("a text \x00\xff"), []byte("another")
	for _, kind := range hangar.SecretKeyTypes() {
		t.Run(string(kind), func(t *testing.T) {
			ref := hangar.SecretKeyRef{App: app, Name: string(kind)}
			key := h.generateKey(t, ref, kind)
			if public := map[hangar.SecretKeyType]int{"es256": 65, "nacl_box": 32, "nacl_sign": 32}[kind]; len(key.PublicKey) != public {
				t.Errorf("a public key of %d bytes, want %d", len(key.PublicKey), public)
			}
			switch kind {
			case hangar.SecretKeyXAES256GCM, hangar.SecretKeyNaClBox, hangar.SecretKeyNaClSecretBox:
				data := []byte("associated")
				if kind != hangar.SecretKeyXAES256GCM {
					_, err := h.SecretKeys.EncryptWithKey(h.Context(t), ref, 0, text, data)
					wantError(t, "encrypt with associated data", err, hangar.CodeInvalid, "")
					data = nil
				}
				ciphertext, err := h.SecretKeys.EncryptWithKey(h.Context(t), ref, 1, text, data)
				must(t, "encrypt", err)
				got, err := h.SecretKeys.DecryptWithKey(h.Context(t), ref, 1, ciphertext, data)
				must(t, "decrypt", err)
				if !bytes.Equal(got, text) {
					t.Errorf("decrypted %q", got)
				}
				ciphertext[len(ciphertext)-1] ^= 1
				_, err = h.SecretKeys.DecryptWithKey(h.Context(t), ref, 0, ciphertext, data)
				wantError(t, "decrypt what was changed", err, hangar.CodeInvalid, hangar.ReasonCiphertextMismatch)
				_, err = h.SecretKeys.SignWithKey(h.Context(t), ref, 0, text)
				wantError(t, "sign", err, hangar.CodeInvalid, hangar.ReasonUnsupported)
				wantError(t, "verify", h.SecretKeys.VerifyWithKey(h.Context(t), ref, 0, text, other), hangar.CodeInvalid, hangar.ReasonUnsupported)
			default:
				signature, err := h.SecretKeys.SignWithKey(h.Context(t), ref, 1, text)
				must(t, "sign", err)
				must(t, "verify", h.SecretKeys.VerifyWithKey(h.Context(t), ref, 1, text, signature))
				err = h.SecretKeys.VerifyWithKey(h.Context(t), ref, 0, other, signature)
				wantError(t, "verify another text", err, hangar.CodeInvalid, hangar.ReasonSignatureMismatch)
				_, err = h.SecretKeys.EncryptWithKey(h.Context(t), ref, 0, text, nil)
				wantError(t, "encrypt", err, hangar.CodeInvalid, hangar.ReasonUnsupported)
				_, err = h.SecretKeys.DecryptWithKey(h.Context(t), ref, 0, text, nil)
				wantError(t, "decrypt", err, hangar.CodeInvalid, hangar.ReasonUnsupported)
			}
		})
	}
}

func secretKeyReplaced(t *testing.T, h Harness) {
	ref := hangar.SecretKeyRef{App: h.newApp(t), Name: "key"}
	before := h.generateKey(t, ref, hangar.SecretKeyNaClSign)
	signature, err := h.SecretKeys.SignWithKey(h.Context(t), ref, 0, []byte("text"))
	must(t, "sign", err)
	after := h.generateKey(t, ref, hangar.SecretKeyNaClSign)
	if bytes.Equal(before.PublicKey, after.PublicKey) || !after.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("%+v became %+v", before, after)
	}
	err = h.SecretKeys.VerifyWithKey(h.Context(t), ref, 2, []byte("text"), signature)
	wantError(t, "verify a signature of before", err, hangar.CodeInvalid, hangar.ReasonSignatureMismatch)
}

func secretKeysBadInput(t *testing.T, h Harness) {
	app := h.newApp(t)
	for _, name := range []string{"-a", ".a", "a b", "a/b", "ü", strings.Repeat("a", hangar.MaxSecretKeyName+1)} {
		_, _, err := h.SecretKeys.GenerateSecretKey(h.Context(t), hangar.SecretKeyRef{App: app, Name: name}, hangar.SecretKeyHS256)
		wantError(t, "generate "+name, err, hangar.CodeInvalid, "")
	}
	ref := hangar.SecretKeyRef{App: app, Name: "key"}
	for what, in := range map[string]hangar.SecretKeySet{
		"no type": keyValue("", 32), "another type": keyValue("rsa", 32), "too short": keyValue(hangar.SecretKeyHS512, 63),
		"too long": keyValue(hangar.SecretKeyNaClBox, 33), "no point": keyValue(hangar.SecretKeyES256, 31),
	} {
		_, _, err := h.SecretKeys.SetSecretKey(h.Context(t), ref, in)
		wantError(t, what, err, hangar.CodeInvalid, "")
		if err != nil && strings.Contains(err.Error(), "\xf7") {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
	_, _, err := h.SecretKeys.GenerateSecretKey(h.Context(t), ref, "rsa")
	wantError(t, "generate another type", err, hangar.CodeInvalid, "")
	_, err = h.SecretKeys.SecretKeys(h.Context(t), app, hangar.SecretKeyQuery{Types: []hangar.SecretKeyType{"rsa"}})
	wantError(t, "list another type", err, hangar.CodeInvalid, "")
	if got := h.keyNames(t, app); len(got) != 0 {
		t.Errorf("a refused change left %v", got)
	}
	h.generateKey(t, ref, hangar.SecretKeyHS256)
	_, err = h.SecretKeys.SignWithKey(h.Context(t), ref, 0, make([]byte, hangar.MaxSecretKeyData))
	must(t, "sign as much as there may be", err)
	_, err = h.SecretKeys.SignWithKey(h.Context(t), ref, 0, make([]byte, hangar.MaxSecretKeyData+1))
	wantError(t, "sign too much", err, hangar.CodeInvalid, "")
}

func secretKeysSize(t *testing.T, h Harness) {
	app := h.newApp(t)
	h.setSecrets(t, app, values("A", strings.Repeat("a", hangar.MaxSecretsSize-len("A")-len("k")-32)))
	h.generateKey(t, hangar.SecretKeyRef{App: app, Name: "k"}, hangar.SecretKeyHS256)
	_, _, err := h.SecretKeys.GenerateSecretKey(h.Context(t), hangar.SecretKeyRef{App: app, Name: "l"}, hangar.SecretKeyHS256)
	wantError(t, "generate one too many", err, hangar.CodeInvalid, "")
	_, err = h.Secrets.SetSecrets(h.Context(t), app, values("B", ""))
	wantError(t, "set one secret too many", err, hangar.CodeInvalid, "")
}

func secretKeyVersions(t *testing.T, h Harness) {
	app := h.newApp(t)
	ctx, ref := h.Context(t), hangar.SecretKeyRef{App: app, Name: "key"}
	h.generateKey(t, ref, hangar.SecretKeyHS256)
	const next = 2
	calls := map[string]func() error{
		"list": func() error {
			_, err := h.SecretKeys.SecretKeys(ctx, app, hangar.SecretKeyQuery{MinVersion: next})
			return err
		},
		"get":     func() error { _, err := h.SecretKeys.SecretKey(ctx, ref, next); return err },
		"encrypt": func() error { _, err := h.SecretKeys.EncryptWithKey(ctx, ref, next, nil, nil); return err },
		"decrypt": func() error { _, err := h.SecretKeys.DecryptWithKey(ctx, ref, next, nil, nil); return err },
		"sign":    func() error { _, err := h.SecretKeys.SignWithKey(ctx, ref, next, nil); return err },
		"verify":  func() error { return h.SecretKeys.VerifyWithKey(ctx, ref, next, nil, nil) },
	}
	for what, call := range calls {
		wantError(t, what+" at a version to come", call(), hangar.CodeFailedPrecondition, hangar.ReasonSecretsVersion)
	}
	h.setSecrets(t, app, values("A", "1"))
	for what, call := range calls {
		if err := call(); hangar.ReasonOf(err) == hangar.ReasonSecretsVersion {
			t.Errorf("%s at the version that there is: %v", what, err)
		}
	}
}

func secretKeysNotThere(t *testing.T, h Harness) {
	ctx, app := h.Context(t), h.newApp(t)
	for _, test := range []struct {
		ref    hangar.SecretKeyRef
		reason string
	}{
		{hangar.SecretKeyRef{App: app, Name: "key"}, hangar.ReasonSecretKeyNotFound},
		{hangar.SecretKeyRef{App: uniqueName(), Name: "key"}, hangar.ReasonAppNotFound},
	} {
		_, err := h.SecretKeys.SecretKey(ctx, test.ref, 0)
		wantError(t, "get", err, hangar.CodeNotFound, test.reason)
		_, err = h.SecretKeys.DeleteSecretKey(ctx, test.ref)
		wantError(t, "delete", err, hangar.CodeNotFound, test.reason)
		_, err = h.SecretKeys.EncryptWithKey(ctx, test.ref, 0, nil, nil)
		wantError(t, "encrypt", err, hangar.CodeNotFound, test.reason)
		_, err = h.SecretKeys.DecryptWithKey(ctx, test.ref, 0, nil, nil)
		wantError(t, "decrypt", err, hangar.CodeNotFound, test.reason)
		_, err = h.SecretKeys.SignWithKey(ctx, test.ref, 0, nil)
		wantError(t, "sign", err, hangar.CodeNotFound, test.reason)
		wantError(t, "verify", h.SecretKeys.VerifyWithKey(ctx, test.ref, 0, nil, nil), hangar.CodeNotFound, test.reason)
	}
	_, _, err := h.SecretKeys.GenerateSecretKey(ctx, hangar.SecretKeyRef{App: uniqueName(), Name: "key"}, hangar.SecretKeyHS256)
	wantError(t, "generate in no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

// secretKeysBesideSecrets: they share a version and nothing else, and go with the App.
func secretKeysBesideSecrets(t *testing.T, h Harness) {
	app := h.newApp(t)
	h.setSecrets(t, app, values("SAME", "secret"))
	key, version := h.setKey(t, hangar.SecretKeyRef{App: app, Name: "SAME"}, keyValue(hangar.SecretKeyHS256, 32))
	if version != 2 {
		t.Errorf("%+v is at version %d", key, version)
	}
	if got := h.shown(t, app); len(got) != 1 || got["SAME"] != "secret" {
		t.Errorf("the secrets are %q", got)
	}
	after := h.setSecrets(t, app, map[string]hangar.Sensitive{"SAME": {}})
	if got := h.keyNames(t, app); after.Version != 3 || len(got) != 1 {
		t.Errorf("without the secret: version %d, keys %v", after.Version, got)
	}
	must(t, "destroy", h.Apps.DestroyApp(h.Context(t), app, true))
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	must(t, "create again", err)
	if got := h.keyNames(t, app); len(got) != 0 {
		t.Errorf("a new app of an old name has the secret keys %v", got)
	}
}

// secretKeyEmptyText: an empty text is one, too.
func secretKeyEmptyText(t *testing.T, h Harness) {
	ref := hangar.SecretKeyRef{App: h.newApp(t), Name: "key"}
	h.generateKey(t, ref, hangar.SecretKeyXAES256GCM)
	ciphertext, err := h.SecretKeys.EncryptWithKey(h.Context(t), ref, 0, nil, nil)
	must(t, "encrypt nothing", err)
	got, err := h.SecretKeys.DecryptWithKey(h.Context(t), ref, 0, ciphertext, nil)
	must(t, "decrypt", err)
	if got == nil || len(got) != 0 {
		t.Errorf("decrypted %q", got)
	}
}
