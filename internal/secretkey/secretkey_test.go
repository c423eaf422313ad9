package secretkey

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func fromHex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fromURL(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t *testing.T, kind hangar.SecretKeyType, value []byte) Key {
	t.Helper()
	k, err := Parse(kind, value)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func wantReason(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if hangar.CodeOf(err) != hangar.CodeInvalid || hangar.ReasonOf(err) != reason {
		t.Errorf("%s: %v, want invalid with the reason %q", what, err, reason)
	}
}

// jwsPayload is the payload of the examples of RFC 7515.
const jwsPayload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"

// TestSignatures are vectors of others.
func TestSignatures(t *testing.T) {
	const larger = "Test Using Larger Than Block-Size Key - Hash Key First"
	for _, test := range []struct {
		from      string
		kind      hangar.SecretKeyType
		value     []byte
		public    []byte
		plaintext string
		signature []byte
	}{
		{
			"RFC 7515, A.1", hangar.SecretKeyHS256,
			fromURL(t, "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"), nil,
			"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." + jwsPayload,
			fromURL(t, "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
		},
		{
			"RFC 4231, 4.7", hangar.SecretKeyHS384, bytes.Repeat([]byte{0xaa}, 131), nil, larger,
			fromHex(t, "4ece084485813e9088d2c63a041bc5b44f9ef1012a2b588f3cd11f05033ac4c60c2ef6ab4030fe8296248df163f44952"),
		},
		{
			"RFC 4231, 4.7", hangar.SecretKeyHS512, bytes.Repeat([]byte{0xaa}, 131), nil, larger,
			fromHex(t, "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f3526b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598"),
		},
		{
			"RFC 7515, A.3", hangar.SecretKeyES256, fromURL(t, "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"),
			slices.Concat([]byte{4}, fromURL(t, "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"), fromURL(t, "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0")),
			"eyJhbGciOiJFUzI1NiJ9." + jwsPayload,
			fromURL(t, "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"),
		},
		{
			"RFC 4231, 4.3, cut by NaCl", hangar.SecretKeyNaClAuth, append([]byte("Jefe"), make([]byte, 28)...), nil,
			"what do ya want for nothing?", fromHex(t, "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"),
		},
		{
			"RFC 8032, 7.1, test 2", hangar.SecretKeyNaClSign,
			fromHex(t, "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"+"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"),
			fromHex(t, "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"), "\x72",
			fromHex(t, "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
		},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			k := parse(t, test.kind, test.value)
			if !bytes.Equal(k.Public(), test.public) {
				t.Errorf("%s: the public key is %x, want %x", test.from, k.Public(), test.public)
			}
			if err := k.Verify([]byte(test.plaintext), test.signature); err != nil {
				t.Errorf("%s: %v", test.from, err)
			}
			got, err := k.Sign([]byte(test.plaintext))
			if err != nil || test.kind != hangar.SecretKeyES256 && !bytes.Equal(got, test.signature) {
				t.Errorf("%s: signed %x, %v, want %x", test.from, got, err, test.signature)
			}
		})
	}
}

// TestCiphertexts uses vectors of others: NaCl, libsodium, and the specification of XAES-256-GCM.
func TestCiphertexts(t *testing.T) {
	ones, threes := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{3}, 64)
	const nonce = "ABCDEFGHIJKLMNOPQRSTUVWX"
	for _, test := range []struct {
		kind                  hangar.SecretKeyType
		value                 []byte
		nonce, ciphertext     string
		associated, plaintext []byte
	}{
		{
			hangar.SecretKeyXAES256GCM, ones, nonce, "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271",
			nil, []byte("XAES-256-GCM"),
		},
		{
			hangar.SecretKeyXAES256GCM, bytes.Repeat([]byte{3}, 32), nonce, "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
			[]byte("c2sp.org/XAES-256-GCM"), []byte("XAES-256-GCM"),
		},
		{
			hangar.SecretKeyNaClSecretBox, ones, strings.Repeat("\x02", 24),
			"8442bc313f4626f1359e3b50122b6ce6fe66ddfe7d39d14e637eb4fd5b45beadab55198df6ab5368439792a23c87db70acb6156dc5ef957ac04f6276cf6093b84be77ff0849cc33e34b7254d5a8f65ad",
			nil, threes,
		},
		{
			hangar.SecretKeyNaClBox, ones, "",
			"3462e0640728247a6f581e3812850d6edc3dcad1ea5d8184c072f62fb65cb357e27ffa8b76f41656bc66a0882c4d359568410665746d27462a700f01e314f382edd7aae9064879b0f8ba7b88866f88f5e4fbd7649c850541877f9f33ebd25d46d9cbcce09b69a9ba07f0eb1d105d4264",
			nil, threes,
		},
	} {
		k := parse(t, test.kind, test.value)
		got, err := k.Decrypt(append([]byte(test.nonce), fromHex(t, test.ciphertext)...), test.associated)
		if err != nil || !bytes.Equal(got, test.plaintext) {
			t.Errorf("%s: decrypted %q, %v", test.kind, got, err)
		}
		if x, ok := k.material.(xaes); ok {
			sealed := x.sealAt([]byte(test.nonce), test.plaintext, test.associated)
			if hex.EncodeToString(sealed) != hex.EncodeToString([]byte(test.nonce))+test.ciphertext {
				t.Errorf("%s: encrypted %x, want %s", test.kind, sealed, test.ciphertext)
			}
		}
	}
}

// abilities are what types do, and whether they have a public key and bind associated data.
var abilities = map[hangar.SecretKeyType]struct{ signs, public, binds bool }{
	hangar.SecretKeyHS256:         {signs: true},
	hangar.SecretKeyHS384:         {signs: true},
	hangar.SecretKeyHS512:         {signs: true},
	hangar.SecretKeyES256:         {signs: true, public: true},
	hangar.SecretKeyXAES256GCM:    {binds: true},
	hangar.SecretKeyNaClAuth:      {signs: true},
	hangar.SecretKeyNaClBox:       {public: true},
	hangar.SecretKeyNaClSecretBox: {},
	hangar.SecretKeyNaClSign:      {signs: true, public: true},
}

// TestTypes tries every operation with every type, supported or not.
func TestTypes(t *testing.T) {
	for _, kind := range hangar.SecretKeyTypes() {
		t.Run(string(kind), func(t *testing.T) {
			can, value := abilities[kind], generate(t, kind)
			if bytes.Equal(value, generate(t, kind)) {
				t.Error("two generated values are the same")
			}
			k, other := parse(t, kind, value), parse(t, kind, generate(t, kind))
			if (k.Public() != nil) != can.public {
				t.Errorf("the public key is %x", k.Public())
			}
			for _, plaintext := range [][]byte{nil, []byte("a"), bytes.Repeat([]byte{7}, hangar.MaxSecretKeyData)} {
				if can.signs {
					testSigner(t, k, other, plaintext)
				} else {
					testSealer(t, k, other, plaintext, can.binds)
				}
			}
			text := []byte("text")
			if can.signs {
				_, err := k.Encrypt(text, nil)
				wantReason(t, "encrypt", err, hangar.ReasonUnsupported)
				_, err = k.Decrypt(text, nil)
				wantReason(t, "decrypt", err, hangar.ReasonUnsupported)
				return
			}
			_, err := k.Sign(text)
			wantReason(t, "sign", err, hangar.ReasonUnsupported)
			if err != nil && (!strings.Contains(err.Error(), string(kind)) || !strings.Contains(err.Error(), " sign")) {
				t.Errorf("%v does not name the type and the operation", err)
			}
			wantReason(t, "verify", k.Verify(text, text), hangar.ReasonUnsupported)
		})
	}
}

func generate(t *testing.T, kind hangar.SecretKeyType) []byte {
	t.Helper()
	value, err := Generate(kind)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// tampered returns manipulated copies of b: each byte changed, if there are few, and shorter and
// longer ones.
func tampered(b []byte) [][]byte {
	list := [][]byte{nil, b[:len(b)-1], b[1:], append(bytes.Clone(b), 0), append([]byte{0}, b...), make([]byte, len(b))}
	for i := 0; i < len(b); i += max(1, len(b)/100) {
		next := bytes.Clone(b)
		next[i] ^= 1
		list = append(list, next)
	}
	return list
}

func testSigner(t *testing.T, k, other Key, plaintext []byte) {
	t.Helper()
	signature, err := k.Sign(plaintext)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Verify(plaintext, signature); err != nil {
		t.Error(err)
	}
	wantReason(t, "with another key", other.Verify(plaintext, signature), hangar.ReasonSignatureMismatch)
	wantReason(t, "of another text", k.Verify(append(bytes.Clone(plaintext[:len(plaintext)/2]), 0), signature), hangar.ReasonSignatureMismatch)
	for _, bad := range tampered(signature) {
		wantReason(t, "changed signature "+hex.EncodeToString(bad), k.Verify(plaintext, bad), hangar.ReasonSignatureMismatch)
	}
	_, err = k.Sign(make([]byte, hangar.MaxSecretKeyData+1))
	wantReason(t, "sign too much", err, "")
	wantReason(t, "verify too much", k.Verify(make([]byte, hangar.MaxSecretKeyData+1), signature), "")
}

func testSealer(t *testing.T, k, other Key, plaintext []byte, binds bool) {
	t.Helper()
	var associated []byte
	if binds {
		associated = []byte("associated")
	}
	ciphertext, err := k.Encrypt(plaintext, associated)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(ciphertext) - len(plaintext); n > maxOverhead {
		t.Errorf("a ciphertext is %d bytes longer", n)
	}
	got, err := k.Decrypt(ciphertext, associated)
	if err != nil || got == nil || !bytes.Equal(got, plaintext) {
		t.Errorf("decrypted %d bytes of %d, %v", len(got), len(plaintext), err)
	}
	again, err := k.Encrypt(plaintext, associated)
	if err != nil || bytes.Equal(again, ciphertext) {
		t.Errorf("encrypted twice to the same, %v", err)
	}
	_, err = other.Decrypt(ciphertext, associated)
	wantReason(t, "with another key", err, hangar.ReasonCiphertextMismatch)
	for _, bad := range tampered(ciphertext) {
		_, err := k.Decrypt(bad, associated)
		wantReason(t, "changed ciphertext", err, hangar.ReasonCiphertextMismatch)
	}
	_, err = k.Decrypt(ciphertext, []byte("others"))
	if binds {
		wantReason(t, "with other associated data", err, hangar.ReasonCiphertextMismatch)
		_, err = k.Decrypt(ciphertext, nil)
		wantReason(t, "without associated data", err, hangar.ReasonCiphertextMismatch)
		_, err = k.Encrypt(plaintext, make([]byte, hangar.MaxSecretKeyData+1))
		wantReason(t, "too much associated data", err, "")
	} else {
		wantReason(t, "decrypt with associated data", err, "")
		_, err = k.Encrypt(plaintext, []byte("others"))
		wantReason(t, "encrypt with associated data", err, "")
	}
	_, err = k.Encrypt(make([]byte, hangar.MaxSecretKeyData+1), nil)
	wantReason(t, "encrypt too much", err, "")
	_, err = k.Decrypt(make([]byte, hangar.MaxSecretKeyData+maxOverhead+1), nil)
	wantReason(t, "decrypt too much", err, "")
}

// TestBadValues: an error names the key and the rule, but never contains the value.
func TestBadValues(t *testing.T) {
	const order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551" // of P-256
	secret := bytes.Repeat([]byte("s"), 32)
	for _, test := range []struct {
		kind  hangar.SecretKeyType
		value []byte
		want  string
	}{
		{"", secret, "invalid type: "},
		{"rsa", secret, `invalid type: "rsa" is none of es256, `},
		{hangar.SecretKeyHS256, secret[:31], "32 to 1024 bytes, not 31"},
		{hangar.SecretKeyHS256, make([]byte, 1025), "32 to 1024 bytes, not 1025"},
		{hangar.SecretKeyHS384, secret, "48 to 1024 bytes, not 32"},
		{hangar.SecretKeyHS512, secret, "64 to 1024 bytes, not 32"},
		{hangar.SecretKeyES256, secret[:31], "has 32 bytes, not 31"},
		{hangar.SecretKeyES256, make([]byte, 32), "a number from 1"},
		{hangar.SecretKeyES256, fromHex(t, order), "a number from 1"},
		{hangar.SecretKeyXAES256GCM, secret[:16], "has 32 bytes, not 16"},
		{hangar.SecretKeyNaClAuth, append(secret, 0), "has 32 bytes, not 33"},
		{hangar.SecretKeyNaClBox, nil, "has 32 bytes, not 0"},
		{hangar.SecretKeyNaClSecretBox, secret[:1], "has 32 bytes, not 1"},
		{hangar.SecretKeyNaClSign, secret, "has 64 bytes, not 32"},
		{hangar.SecretKeyNaClSign, append(secret, secret...), "followed by its public key"},
	} {
		_, err := Parse(test.kind, test.value)
		wantReason(t, string(test.kind), err, "")
		if err != nil && (!strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "invalid ") || strings.Contains(err.Error(), "sss")) {
			t.Errorf("%s of %d bytes: %v, want %s", test.kind, len(test.value), err, test.want)
		}
	}
	_, err := Generate("rsa")
	wantReason(t, "generate", err, "")
}

// TestKeysAreTheirOwn: a key does not change with the bytes that it was made from.
func TestKeysAreTheirOwn(t *testing.T) {
	for _, kind := range hangar.SecretKeyTypes() {
		value := generate(t, kind)
		k := parse(t, kind, value)
		same := parse(t, kind, bytes.Clone(value))
		clear(value)
		if abilities[kind].signs {
			signature, err := k.Sign(nil)
			if err != nil || same.Verify(nil, signature) != nil {
				t.Errorf("%s: %v", kind, err)
			}
			continue
		}
		ciphertext, err := k.Encrypt(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := same.Decrypt(ciphertext, nil); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
