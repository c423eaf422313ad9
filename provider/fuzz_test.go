package provider_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/provider"
)

// FuzzVerify: no request is accepted but the two that were signed.
func FuzzVerify(f *testing.F) {
	getSignature, postSignature := provider.Signature(secret, []byte(getMessage)), provider.Signature(secret, []byte(postMessage))
	f.Add("GET", "/extensions/1", getMessage, "", getSignature)
	f.Add("DELETE", "/extensions/1", getMessage, "", "sha256="+getSignature)
	f.Add("POST", "/extensions", "", postMessage, postSignature)
	f.Add("PATCH", "/extensions", "a=1", postMessage, strings.ToUpper(postSignature))
	f.Add("GET", "/extensions/1", getMessage+"&signature="+getSignature, "", "")
	f.Add("GET", "/extensions", postMessage, "", postSignature)
	f.Add("POST", "/extensions/1", getMessage, getMessage, getSignature)
	f.Fuzz(func(t *testing.T, method, path, query, body, signature string) {
		r := &http.Request{
			Method: method,
			URL:    &url.URL{Path: path, RawQuery: query},
			Header: http.Header{},
			Body:   io.NopCloser(strings.NewReader(body)),
		}
		if signature != "" {
			r.Header.Set(provider.SignatureHeader, signature)
		}
		if newVerifier(t, nil).Verify(r) != nil {
			return
		}
		switch method {
		case "GET", "DELETE":
			if query, found := strings.CutSuffix(query, "&signature="+getSignature); path != "/extensions/1" || query != getMessage || body != "" || found && (method != "GET" || signature != "") {
				t.Errorf("%s %s?%s %q is accepted with %q", method, path, query, body, signature)
			}
		case "POST", "PATCH":
			if path != "/extensions" || query != "" || body != postMessage {
				t.Errorf("%s %s?%s %q is accepted with %q", method, path, query, body, signature)
			}
		default:
			t.Errorf("the method %q is accepted", method)
		}
	})
}

// FuzzMutate changes one byte of a request that was signed.
func FuzzMutate(f *testing.F) {
	for i := range uint16(8) {
		f.Add(i, i*31, byte(1<<(i%8)))
	}
	f.Fuzz(func(t *testing.T, request, at uint16, change byte) {
		vectors := readVectors(t).Requests
		vector := vectors[int(request)%len(vectors)]
		vector.Now = epoch.Unix()
		r := vector.request(t)
		base := r.URL.Scheme + "://" + r.URL.Host
		if err := vector.signer().Sign(r); err != nil {
			t.Fatal(err)
		}
		body, err := readBody(r)
		if err != nil {
			t.Fatal(err)
		}
		parts := [][]byte{[]byte(r.URL.Path), []byte(r.URL.RawQuery), body, []byte(r.Header.Get(provider.SignatureHeader))}
		n := int(at) % len(slices.Concat(parts...))
		for _, part := range parts {
			if n < len(part) {
				part[n] ^= change
				break
			}
			n -= len(part)
		}
		mutated := &http.Request{
			Method: r.Method,
			URL:    &url.URL{Path: string(parts[0]), RawPath: r.URL.RawPath, RawQuery: string(parts[1])},
			Header: http.Header{provider.SignatureHeader: {string(parts[3])}},
			Body:   io.NopCloser(bytes.NewReader(parts[2])),
		}
		same := change == 0 || strings.EqualFold(string(parts[3]), vector.Signature) && string(parts[3]) != vector.Signature
		v := newVerifier(t, func(c *provider.VerifierConfig) { c.BaseURL, c.Secrets = base, []string{vector.Secret} })
		if err := v.Verify(mutated); (err == nil) != same {
			t.Errorf("%s %q of %s with signature %s: %v", mutated.Method, mutated.URL, parts[2], parts[3], err)
		}
	})
}

func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	return io.ReadAll(r.Body)
}

// FuzzSign: a signed request is accepted once, and its content is unchanged.
func FuzzSign(f *testing.F) {
	f.Add("POST", "/extensions", "", `{"name":"größe & <more>","config":{}}`)
	f.Add("PATCH", "/extensions/1", "a=1", " {\n} ")
	f.Add("GET", "/extensions/a b", "a=1&b=%20&&", "")
	f.Add("DELETE", "", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		u := &url.URL{Scheme: "https", Host: "logs.example.com", Path: path, RawQuery: query}
		if path != "" && path[0] != '/' {
			return // a request to another host
		}
		sent := &http.Request{Method: method, URL: u, Header: http.Header{}}
		if body != "" {
			sent.Body = io.NopCloser(strings.NewReader(body))
		}
		if (provider.Signer{Secret: secret, Now: clock(0)}).Sign(sent) != nil {
			return
		}
		if method == "" {
			sent.Method = "GET"
		}
		signed, err := readBody(sent)
		if err != nil {
			t.Fatal(err)
		}
		v := newVerifier(t, nil)
		for _, want := range []provider.Rule{"", provider.RuleNonce} {
			r := httptest.NewRequestWithContext(t.Context(), sent.Method, sent.URL.RequestURI(), bytes.NewReader(signed))
			r.Header = sent.Header
			if got := verdict(t, v, r); got != want {
				t.Fatalf("%s %s %s breaks %q, want %q", sent.Method, sent.URL, signed, got, want)
			}
		}
		if len(signed) == 0 {
			return
		}
		var before, after map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &before); err != nil && strings.TrimSpace(body) != "" {
			t.Fatalf("%q is signed: %v", body, err)
		}
		if err := json.Unmarshal(signed, &after); err != nil {
			t.Fatalf("%q is signed as %q: %v", body, signed, err)
		}
		maps.DeleteFunc(after, func(name string, _ json.RawMessage) bool {
			return name == "url" || name == "nonce" || name == "timestamp"
		})
		if !maps.EqualFunc(before, after, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%q is signed as %q", body, signed)
		}
	})
}

// fuzzJSON checks that a value is the same after it was written and read again.
func fuzzJSON[T any](f *testing.F, seeds ...string) {
	f.Helper()
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var first, second T
		if json.Unmarshal(raw, &first) != nil {
			return
		}
		written, err := json.Marshal(first)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", raw, err)
		}
		if err := json.Unmarshal(written, &second); err != nil {
			t.Fatalf("%q is written as %q: %v", raw, written, err)
		}
		again, err := json.Marshal(second)
		if err != nil || !bytes.Equal(again, written) {
			t.Errorf("%q is written as %q, and then as %q, %v", raw, written, again, err)
		}
	})
}

func FuzzProvision(f *testing.F) { fuzzJSON[provider.Provision](f, provision) }

func FuzzProvisioned(f *testing.F) {
	fuzzJSON[provider.Provisioned](f, `{"id":"1","config":{"A":"b"},"name":"n","fly_app_name":"a"}`, `{"platform_app_name":"a"}`)
}

func FuzzResource(f *testing.F) {
	fuzzJSON[provider.Resource](f, `{"id":"1","name":"n","plan":"p","status":"ready","usage":{"bytes":[1.5,null]}}`)
}

func FuzzEvent(f *testing.F) {
	fuzzJSON[provider.Event](f, `{"timestamp":"1693513586","action":"resource.updated","resource":{"id":"1"}}`)
}

func FuzzTimestamp(f *testing.F) {
	fuzzJSON[provider.Timestamp](f, `1693513586`, `"1693513586"`, `"-1"`, `null`)
}

// FuzzMachineEvent: an event that is read is the same after it was written and read again.
func FuzzMachineEvent(f *testing.F) {
	f.Add("1", "/s", "io.platform.machine.start", "2026-08-14T12:00:00Z", []byte(`{"machine_id":"m","status":"s","data":{"a":1}}`))
	f.Add(`"1\""`, "%25", "io.platform.machine.%20", "2026-08-14T12:00:00.5+02:00", []byte(`{"machine_id":"m","url":"x"}`))
	f.Fuzz(func(t *testing.T, id, source, kind, at string, body []byte) {
		h := header(map[string]string{
			"ce-specversion": "1.0", "ce-id": id, "ce-source": source, "ce-type": kind, "ce-time": at, "content-type": "application/json",
		})
		first, err := provider.ParseMachineEvent(h, body)
		if err != nil {
			return
		}
		r, err := first.NewRequest(t.Context(), "https://h")
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", first, err)
		}
		second, err := provider.ReadMachineEvent(r)
		if err != nil {
			t.Fatalf("%+v cannot be read again: %v", first, err)
		}
		if !first.Time.Equal(second.Time) {
			t.Errorf("the time is %s, and then %s", first.Time, second.Time)
		}
		first.Time = second.Time
		first.Data, second.Data = compact(t, first.Data), compact(t, second.Data)
		if !reflect.DeepEqual(first, second) {
			t.Errorf("%+v is read again as %+v", first, second)
		}
	})
}

// compact returns JSON as the standard library writes it.
func compact(t *testing.T, raw []byte) []byte {
	t.Helper()
	if raw == nil {
		return nil
	}
	compacted, err := json.Marshal(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	return compacted
}
