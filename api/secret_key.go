package api

import (
	"encoding/base64"
	"math"
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) secretKeyRoutes() {
	const all = "/v1/apps/{app}/secretkeys"
	const one = all + "/{secretkey}"
	example := viewSecretKey(hangar.SecretKey{
		Name: exampleSecretKey, Type: hangar.SecretKeyNaClSign, PublicKey: exampleBytes(32), CreatedAt: exampleTime, UpdatedAt: exampleTime,
	})
	made := madeSecretKeyView{example, secretKeyVersionView{3}}
	least := []router.Param{{Name: "min_version", Example: 3, Text: "The least acceptable version of the App's secrets. The answer is 412 while they are older."}}
	text, ciphertext, signature := exampleBytes(5), exampleBytes(45), exampleBytes(64)
	s.Handle("GET "+all, s.listSecretKeys, router.Operation{
		ID: "listSecretKeys", Tag: "Keys", Summary: "List secret keys", Text: "Sorted by name.",
		Query:  append(least, router.Param{Name: "types", Example: []string{string(hangar.SecretKeyNaClSign)}, Text: "Only keys of these types."}),
		Answer: secretKeysView{[]secretKeyView{example}}, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("GET "+one, s.getSecretKey, router.Operation{
		ID: "getSecretKey", Tag: "Keys", Summary: "Get a secret key", Query: least, Answer: example,
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one, s.setSecretKey, router.Operation{
		ID: "setSecretKey", Tag: "Keys", Summary: "Set a secret key",
		Text: "With your own value, whose form depends on the type. A request that changes nothing keeps the version, " +
			"which is that of the App's secrets. Names and values count towards the bytes that its secrets may have.",
		Body: secretKeyRequest{hangar.SecretKeyHS256, base64Of(exampleBytes(32))}, Status: http.StatusCreated, Answer: made,
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one+"/generate", s.generateSecretKey, router.Operation{
		ID: "generateSecretKey", Tag: "Keys", Summary: "Generate a secret key",
		Text: "Its value is never shown. A key of the same name is replaced. Data that only the old key decrypts is lost.",
		Body: secretKeyKind{hangar.SecretKeyNaClSign}, Status: http.StatusCreated, Answer: made,
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("DELETE "+one, s.deleteSecretKey, router.Operation{
		ID: "deleteSecretKey", Tag: "Keys", Summary: "Delete a secret key", Answer: secretKeyVersionView{4},
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one+"/encrypt", s.encryptWithKey, router.Operation{
		ID: "encryptWithKey", Tag: "Keys", Summary: "Encrypt with a secret key",
		Text:  "The ciphertext differs every time. Only `xaes256gcm` takes associated data.",
		Query: least, Body: plaintextRequest{base64Of(text), base64Of(text)}, Answer: ciphertextView{ciphertext},
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one+"/decrypt", s.decryptWithKey, router.Operation{
		ID: "decryptWithKey", Tag: "Keys", Summary: "Decrypt with a secret key",
		Text: "Needs the right to change the key. The reason is `ciphertext_mismatch` when the ciphertext was made with another key or other " +
			"associated data, or changed since.",
		Query: least, Body: ciphertextRequest{base64Of(ciphertext), base64Of(text)}, Answer: plaintextView{text},
		Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one+"/sign", s.signWithKey, router.Operation{
		ID: "signWithKey", Tag: "Keys", Summary: "Sign with a secret key", Text: "Needs the right to change the key.",
		Query: least, Body: messageRequest{base64Of(text)}, Answer: signatureView{signature}, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Handle("POST "+one+"/verify", s.verifyWithKey, router.Operation{
		ID: "verifyWithKey", Tag: "Keys", Summary: "Verify a signature with a secret key",
		Text:  "The reason is `signature_mismatch` when the signature was not made of the plaintext with the key.",
		Query: least, Body: signatureRequest{base64Of(text), base64Of(signature)}, Status: http.StatusNoContent,
		Errors: []int{http.StatusPreconditionFailed},
	})
}

const exampleSecretKey = "sessions"

// exampleBytes returns n bytes that look like real ones.
func exampleBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(37*i + 104)
	}
	return b
}

// secretKeyView is a secret key as clients decode it; its fields hide those of the
// SecretKey.
type secretKeyView struct {
	hangar.SecretKey
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`
}

func viewSecretKey(k hangar.SecretKey) secretKeyView {
	return secretKeyView{SecretKey: k, CreatedAt: view.Time(k.CreatedAt), UpdatedAt: view.Time(k.UpdatedAt)}
}

type secretKeysView struct {
	SecretKeys []secretKeyView `json:"secret_keys"`
}

// madeSecretKeyView answers the setting of a secret key.
type madeSecretKeyView struct {
	secretKeyView
	secretKeyVersionView
}

// secretKeyVersionView has the version of the App's secrets after a change.
type secretKeyVersionView struct {
	Version int `json:"version"`
}

// secretKeyRequest is the body that sets a secret key.
type secretKeyRequest struct {
	Type  hangar.SecretKeyType `json:"type"`
	Value *encoded             `json:"value"`
}

// secretKeyKind is the body that generates a secret key.
type secretKeyKind struct {
	Type hangar.SecretKeyType `json:"type"`
}

// encoded is bytes in base64. Unlike []byte it is decoded by the handler, whose error can name the
// property.
type encoded string

func base64Of(data []byte) *encoded { return new(encoded(base64.StdEncoding.EncodeToString(data))) }

// decode answers errors that do not repeat the text, which may be a secret.
func (e encoded) decode(name string) ([]byte, error) {
	data, err := base64.StdEncoding.DecodeString(string(e))
	if err != nil {
		return nil, input.Invalid(name, "is not base64 with padding")
	}
	return data, nil
}

// given decodes a property that must not be left out.
func given(name string, e *encoded) ([]byte, error) {
	if e == nil {
		return nil, input.Invalid(name, "is required: bytes in base64")
	}
	return e.decode(name)
}

type plaintextRequest struct {
	Plaintext      *encoded `json:"plaintext"`
	AssociatedData *encoded `json:"associated_data"`
}

type ciphertextRequest struct {
	Ciphertext     *encoded `json:"ciphertext"`
	AssociatedData *encoded `json:"associated_data"`
}

type messageRequest struct {
	Plaintext *encoded `json:"plaintext"`
}

type signatureRequest struct {
	Plaintext *encoded `json:"plaintext"`
	Signature *encoded `json:"signature"`
}

// associated decodes optional associated data.
func associated(e *encoded) ([]byte, error) {
	if e == nil {
		return nil, nil
	}
	return e.decode("associated_data")
}

type ciphertextView struct {
	Ciphertext []byte `json:"ciphertext"`
}

type plaintextView struct {
	Plaintext []byte `json:"plaintext"`
}

type signatureView struct {
	Signature []byte `json:"signature"`
}

func secretKeyRef(r *http.Request) (hangar.SecretKeyRef, error) {
	app, err := appName(r)
	return hangar.SecretKeyRef{App: app, Name: r.PathValue("secretkey")}, err
}

// keyUse reads a request that uses a key: the key, the least version of the secrets, and the body.
func keyUse[T any](r *http.Request) (ref hangar.SecretKeyRef, least int, body T, err error) {
	if ref, err = secretKeyRef(r); err != nil {
		return ref, 0, body, err
	}
	q := input.QueryOf(r)
	if least = q.Int("min_version", 0, math.MaxInt32); q.Err != nil {
		return ref, 0, body, q.Err
	}
	body, err = input.Decode[T](r)
	return ref, least, body, err
}

func (s *server) listSecretKeys(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	query := hangar.SecretKeyQuery{MinVersion: q.Int("min_version", 0, math.MaxInt32)}
	for _, w := range q.Words("types") {
		query.Types = append(query.Types, hangar.SecretKeyType(w))
	}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	list, err := s.SecretKeys.SecretKeys(r.Context(), app, query)
	if err != nil {
		return router.Answer{}, err
	}
	all := secretKeysView{[]secretKeyView{}}
	for _, key := range list {
		all.SecretKeys = append(all.SecretKeys, viewSecretKey(key))
	}
	return router.OK(all)
}

func (s *server) getSecretKey(r *http.Request) (router.Answer, error) {
	ref, err := secretKeyRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	least := q.Int("min_version", 0, math.MaxInt32)
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	key, err := s.SecretKeys.SecretKey(r.Context(), ref, least)
	return router.AnswerOf(viewSecretKey(key), err)
}

func (s *server) setSecretKey(r *http.Request) (router.Answer, error) {
	ref, err := secretKeyRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[secretKeyRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	value, err := given("value", in.Value)
	if err != nil {
		return router.Answer{}, err
	}
	key, version, err := s.SecretKeys.SetSecretKey(r.Context(), ref, hangar.SecretKeySet{Type: in.Type, Value: hangar.NewSensitive(string(value))})
	return madeSecretKey(key, version, err)
}

func (s *server) generateSecretKey(r *http.Request) (router.Answer, error) {
	ref, err := secretKeyRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[secretKeyKind](r)
	if err != nil {
		return router.Answer{}, err
	}
	key, version, err := s.SecretKeys.GenerateSecretKey(r.Context(), ref, in.Type)
	return madeSecretKey(key, version, err)
}

func madeSecretKey(key hangar.SecretKey, version int, err error) (router.Answer, error) {
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: madeSecretKeyView{viewSecretKey(key), secretKeyVersionView{version}}}, nil
}

func (s *server) deleteSecretKey(r *http.Request) (router.Answer, error) {
	ref, err := secretKeyRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	version, err := s.SecretKeys.DeleteSecretKey(r.Context(), ref)
	return router.AnswerOf(secretKeyVersionView{version}, err)
}

func (s *server) encryptWithKey(r *http.Request) (router.Answer, error) {
	ref, least, in, err := keyUse[plaintextRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	plaintext, err := given("plaintext", in.Plaintext)
	if err != nil {
		return router.Answer{}, err
	}
	data, err := associated(in.AssociatedData)
	if err != nil {
		return router.Answer{}, err
	}
	ciphertext, err := s.SecretKeys.EncryptWithKey(r.Context(), ref, least, plaintext, data)
	return router.AnswerOf(ciphertextView{ciphertext}, err)
}

func (s *server) decryptWithKey(r *http.Request) (router.Answer, error) {
	ref, least, in, err := keyUse[ciphertextRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	ciphertext, err := given("ciphertext", in.Ciphertext)
	if err != nil {
		return router.Answer{}, err
	}
	data, err := associated(in.AssociatedData)
	if err != nil {
		return router.Answer{}, err
	}
	plaintext, err := s.SecretKeys.DecryptWithKey(r.Context(), ref, least, ciphertext, data)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Body: plaintextView{plaintext}, Header: router.SecretHeader()}, nil
}

func (s *server) signWithKey(r *http.Request) (router.Answer, error) {
	ref, least, in, err := keyUse[messageRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	plaintext, err := given("plaintext", in.Plaintext)
	if err != nil {
		return router.Answer{}, err
	}
	signature, err := s.SecretKeys.SignWithKey(r.Context(), ref, least, plaintext)
	return router.AnswerOf(signatureView{signature}, err)
}

func (s *server) verifyWithKey(r *http.Request) (router.Answer, error) {
	ref, least, in, err := keyUse[signatureRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	plaintext, err := given("plaintext", in.Plaintext)
	if err != nil {
		return router.Answer{}, err
	}
	signature, err := given("signature", in.Signature)
	if err != nil {
		return router.Answer{}, err
	}
	return router.NoContent(s.SecretKeys.VerifyWithKey(r.Context(), ref, least, plaintext, signature))
}
