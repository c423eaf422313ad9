package provider_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// vectors is testdata/vectors.json, which testdata/vectors.py prints.
type vectors struct {
	Signatures []struct {
		Name, Secret, Message, Hex, Base64 string
	}
	Requests []requestVector
}

type requestVector struct {
	Name, Method, URL string
	Body              *string
	Secret            string
	Now               int64
	Nonce             string
	SignedURL         string  `json:"signed_url"`
	SignedBody        *string `json:"signed_body"`
	Signature         string
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	return readJSON[vectors](t, "testdata/vectors.json")
}

func readJSON[T any](t *testing.T, file string) (v T) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

func TestSignatureVectors(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Log("openssl is not installed: its signatures are not compared")
	}
	for _, v := range readVectors(t).Signatures {
		t.Run(v.Name, func(t *testing.T) {
			if got := provider.Signature(v.Secret, []byte(v.Message)); got != v.Hex {
				t.Errorf("signature is %s, want %s", got, v.Hex)
			}
			if openssl == "" {
				return
			}
			cmd := exec.CommandContext(t.Context(), openssl, "dgst", "-sha256", "-hmac", v.Secret, "-r")
			cmd.Stdin = strings.NewReader(v.Message)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if got, _, _ := strings.Cut(string(out), " "); got != v.Hex {
				t.Errorf("openssl computes %s, want %s", got, v.Hex)
			}
		})
	}
}

func TestPythonMakesTheVectors(t *testing.T) {
	want, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile("testdata/vectors.py"); err != nil { // so that the test cache knows of it
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/vectors.py")
	cmd.Env = append(os.Environ(), "PYTHONIOENCODING=utf-8")
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("testdata/vectors.json is not what testdata/vectors.py prints")
	}
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	return path
}

func (v requestVector) request(t *testing.T) *http.Request {
	t.Helper()
	var body io.Reader
	if v.Body != nil {
		body = strings.NewReader(*v.Body)
	}
	r, err := http.NewRequestWithContext(t.Context(), v.Method, v.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (v requestVector) signer() provider.Signer {
	return provider.Signer{
		Secret: v.Secret,
		Now:    func() time.Time { return time.Unix(v.Now, 0) },
		Nonce:  func() string { return v.Nonce },
	}
}

func TestRequestVectors(t *testing.T) {
	for _, v := range readVectors(t).Requests {
		t.Run(v.Name, func(t *testing.T) {
			r := v.request(t)
			if err := v.signer().Sign(r); err != nil {
				t.Fatal(err)
			}
			if got := r.URL.String(); got != v.SignedURL {
				t.Errorf("URL is\n%s, want\n%s", got, v.SignedURL)
			}
			if v.SignedBody != nil {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				if string(body) != *v.SignedBody || r.ContentLength != int64(len(body)) {
					t.Errorf("body of %d bytes is\n%s, want\n%s", r.ContentLength, body, *v.SignedBody)
				}
			}
			if got := r.Header.Get(provider.SignatureHeader); got != v.Signature {
				t.Errorf("signature is %s, want %s", got, v.Signature)
			}
		})
	}
}
