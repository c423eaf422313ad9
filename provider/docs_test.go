package provider_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

func document(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/extensions.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// recipe writes a code block of docs/extensions.md into a file, whose name precedes it in a comment.
func recipe(t *testing.T, name string) string {
	t.Helper()
	_, block, found := strings.Cut(document(t), "<!-- recipe: "+name+" -->\n```")
	_, block, begins := strings.Cut(block, "\n")
	block, _, ends := strings.Cut(block, "\n```\n")
	if !found || !begins || !ends {
		t.Fatalf("docs/extensions.md has no recipe %s", name)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(block+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

// TestExamplesOfTheDocument: the complete requests of the document are signed as it describes.
func TestExamplesOfTheDocument(t *testing.T) {
	examples := regexp.MustCompile("(?s)```\n([A-Z]+) (/[^ \n]+) HTTP/1.1\n(.*?)\n```").FindAllStringSubmatch(document(t), -1)
	if len(examples) != 2 {
		t.Fatalf("the document has %d examples", len(examples))
	}
	for _, example := range examples {
		head, body, _ := strings.Cut(example[3], "\n\n")
		r := httptest.NewRequestWithContext(t.Context(), example[1], example[2], strings.NewReader(body))
		for line := range strings.SplitSeq(head, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			r.Header.Set(name, value)
		}
		if err := newVerifier(t, nil).Verify(r); err != nil {
			t.Errorf("%s %s: %v", example[1], example[2], err)
		}
	}
}

func TestRecipeVerifyInShell(t *testing.T) {
	need(t, "sh", "openssl")
	script := recipe(t, "verify.sh")
	verify := func(secret, signature, message string) bool {
		cmd := exec.CommandContext(t.Context(), "sh", script, secret, signature)
		cmd.Stdin = strings.NewReader(message)
		err := cmd.Run()
		if _, refused := errors.AsType[*exec.ExitError](err); err != nil && !refused {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, v := range readVectors(t).Signatures {
		if !verify(v.Secret, v.Hex, v.Message) {
			t.Errorf("%s: refused", v.Name)
		}
		if verify(v.Secret, v.Hex, v.Message+"\n") || verify(v.Secret+"x", v.Hex, v.Message) || verify(v.Secret, v.Hex[1:], v.Message) {
			t.Errorf("%s: accepted when it is not the same", v.Name)
		}
	}
	if verify(secret, "", postMessage) {
		t.Error("an empty signature is accepted")
	}
}

func TestRecipeWebhookInShell(t *testing.T) {
	need(t, "sh", "openssl", "curl", "date")
	script := recipe(t, "webhook.sh")
	events := make(chan provider.Event, 2)
	server := httptest.NewUnstartedServer(nil)
	defer server.Close()
	base := "http://" + server.Listener.Addr().String()
	v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: base, Secrets: []string{secret}})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = v.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e provider.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		events <- e
	}))
	server.Start()
	for key, works := range map[string]bool{secret: true, "another": false} {
		cmd := exec.CommandContext(t.Context(), "sh", script, key, base+"/hooks/extensions/logs", "resource.deleted", `{"id":"7","size":3}`)
		cmd.Env = append(os.Environ(), "no_proxy=*", "NO_PROXY=*")
		if out, err := cmd.CombinedOutput(); (err == nil) != works {
			t.Errorf("with the secret %q: %v %s", key, err, out)
		}
	}
	if len(events) != 1 {
		t.Fatalf("%d events were accepted", len(events))
	}
	if e := <-events; e.Validate() != nil || e.Resource.ID != "7" || e.Action != provider.ResourceDeleted {
		t.Errorf("the event is %+v", e)
	}
}

// verifyCall are the arguments of verify in the recipe for Python.
type verifyCall struct {
	Method    string  `json:"method"`
	Path      string  `json:"path"`
	Query     string  `json:"query"`
	Body      string  `json:"body"`
	Signature *string `json:"signature"`
}

const verifyCalls = `
import json, sys, verify
verifier = verify.Verifier("https://logs.example.com", ["another", "shared secret"], now=lambda: 1685641159.5)
verify.MAX_NONCES = 4
for call in json.load(sys.stdin):
    try:
        verifier.verify(call["method"], call["path"], call["query"], call["body"].encode(), call["signature"])
        print("accepted")
    except verify.Refused as refused:
        print(refused)
`

func TestRecipeVerifyInPython(t *testing.T) {
	program := python(t)
	var calls []verifyCall
	var want []string
	add := func(verdict string, call verifyCall) {
		calls, want = append(calls, call), append(want, verdict)
	}
	// with signs a message, by hand.
	with := func(method, path, message string) verifyCall {
		signature := provider.Signature(secret, []byte(message))
		if method == "POST" {
			return verifyCall{Method: method, Path: path, Body: message, Signature: &signature}
		}
		return verifyCall{Method: method, Path: path, Query: message, Signature: &signature}
	}
	sign := func(seconds int, method, target, body string) verifyCall {
		r := signedRequest(t, provider.Signer{Now: clock(time.Duration(seconds) * time.Second)}, method, target, body)
		content, err := readBody(r)
		if err != nil {
			t.Fatal(err)
		}
		signature := r.Header.Get(provider.SignatureHeader)
		return verifyCall{Method: method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Body: string(content), Signature: &signature}
	}
	changed := func(c verifyCall, change func(*verifyCall)) verifyCall {
		change(&c)
		return c
	}
	const extensions = "https://logs.example.com/extensions"

	// A refused request leaves nothing behind.
	add("method", changed(sign(0, "GET", extensions, ""), func(c *verifyCall) { c.Method = "PUT" }))
	add("method", changed(sign(0, "GET", extensions, ""), func(c *verifyCall) { c.Body = "x" }))
	add("signature", changed(sign(0, "POST", extensions, "{}"), func(c *verifyCall) { c.Body += " " }))
	add("signature", changed(sign(0, "POST", extensions, "{}"), func(c *verifyCall) { c.Signature = nil }))
	add("signature", changed(sign(0, "POST", extensions, "{}"), func(c *verifyCall) { *c.Signature = "größe" }))
	add("signature", changed(sign(0, "GET", extensions, ""), func(c *verifyCall) { c.Query = "a=1&" + c.Query }))
	add("parameters", with("POST", "/extensions", "{}"))
	add("parameters", with("POST", "/extensions", "[]"))
	add("parameters", with("POST", "/extensions", `{"url":}`))
	add("parameters", with("POST", "/extensions/1", getMessage))
	add("parameters", with("GET", "/extensions", postMessage))
	add("parameters", with("GET", "/extensions/1", `{"name":"&`+getMessage+`&x="}`))
	add("parameters", with("GET", "/extensions/1", getMessage+"&%75rl=x"))
	add("parameters", with("GET", "/extensions/1", "nonce=short&"+getMessage[len("nonce=e3f7b4c8f5ea016d0d2e92048ca0d856&"):]))
	add("timestamp", sign(-301, "POST", extensions, "{}"))
	add("timestamp", sign(301, "POST", extensions, "{}"))
	add("url", changed(sign(0, "POST", extensions, "{}"), func(c *verifyCall) { c.Path = "/extensions/1" }))
	add("url", changed(sign(0, "POST", extensions, "{}"), func(c *verifyCall) { c.Query = "a=1" }))
	add("url", sign(0, "GET", "https://evil.example.com/extensions", ""))

	get := with("GET", "/extensions/1", getMessage)
	add("accepted", get)
	add("nonce", get)
	add("nonce", with("POST", "/extensions", postMessage))
	add("accepted", sign(0, "POST", extensions+"?a=1", `{"name":"größe & <more>"}`))
	add("accepted", sign(1, "DELETE", extensions+"/a%2Fb?b=%20&a", ""))
	link, err := (provider.Signer{Secret: secret, Now: clock(0)}).SignLink(&url.URL{Scheme: "https", Host: "logs.example.com", Path: "/extensions/1/sso"})
	if err != nil {
		t.Fatal(err)
	}
	sso := verifyCall{Method: "GET", Path: link.Path, Query: link.RawQuery}
	add("signature", changed(sso, func(c *verifyCall) { c.Method = "DELETE" }))
	add("accepted", sso)
	add("nonce", sso)

	// There are as many nonces now as are remembered.
	add("accepted", sign(2, "GET", extensions, ""))
	add("nonce", get)
	add("nonce", sign(0, "GET", extensions, ""))
	add("accepted", sign(1, "GET", extensions, ""))

	input, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-c", verifyCalls)
	cmd.Dir = filepath.Dir(recipe(t, "verify.py"))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(want) {
		t.Fatalf("there are %d verdicts, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("call %d, %+v, is %s, want %s", i, calls[i], got[i], want[i])
		}
	}
}
