package provider_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

const secret = "shared secret"

var epoch = time.Unix(1685641159, 0)

// clock returns a clock that is off from epoch.
func clock(off time.Duration) func() time.Time {
	return func() time.Time { return epoch.Add(off) }
}

func newVerifier(t *testing.T, change func(*provider.VerifierConfig)) *provider.Verifier {
	t.Helper()
	c := provider.VerifierConfig{BaseURL: "https://logs.example.com", Secrets: []string{secret}, Now: clock(0)}
	if change != nil {
		change(&c)
	}
	v, err := provider.NewVerifier(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// signedRequest signs a request and returns it as a server gets it.
func signedRequest(t *testing.T, s provider.Signer, method, target, body string) *http.Request {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, target, content)
	if err != nil {
		t.Fatal(err)
	}
	if s.Secret == "" {
		s.Secret = secret
	}
	if s.Now == nil {
		s.Now = clock(0)
	}
	if err := s.Sign(r); err != nil {
		t.Fatal(err)
	}
	return received(r)
}

func received(sent *http.Request) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), sent.Method, sent.URL.RequestURI(), sent.Body)
	r.Header = sent.Header
	return r
}

// raw is a request with a message that was signed by hand.
func raw(method, path, message string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), method, path, nil)
	if method == http.MethodPost || method == http.MethodPatch {
		r.Body = io.NopCloser(strings.NewReader(message))
	} else {
		r.URL.RawQuery = message
	}
	r.Header.Set(provider.SignatureHeader, provider.Signature(secret, []byte(message)))
	return r
}

func rule(err error) provider.Rule {
	if refused, ok := errors.AsType[*provider.VerifyError](err); ok {
		return refused.Rule
	}
	return ""
}

// verdict returns the broken rule, or "" for an accepted request.
func verdict(t *testing.T, v *provider.Verifier, r *http.Request) provider.Rule {
	t.Helper()
	err := v.Verify(r)
	if err != nil && rule(err) == "" {
		t.Fatalf("not a VerifyError: %v", err)
	}
	return rule(err)
}

func TestVerifyAcceptsVectors(t *testing.T) {
	for _, vector := range readVectors(t).Requests {
		t.Run(vector.Name, func(t *testing.T) {
			r := vector.request(t)
			base := r.URL.Scheme + "://" + strings.ToUpper(r.URL.Host) + "/"
			if err := vector.signer().Sign(r); err != nil {
				t.Fatal(err)
			}
			r = received(r)
			v := newVerifier(t, func(c *provider.VerifierConfig) { c.BaseURL, c.Secrets = base, []string{"other", vector.Secret} })
			if err := v.Verify(r); err != nil {
				t.Fatal(err)
			}
			if vector.SignedBody == nil {
				return
			}
			if body, err := io.ReadAll(r.Body); err != nil || string(body) != *vector.SignedBody {
				t.Errorf("the body is %s, %v", body, err)
			}
		})
	}
}

const (
	getMessage  = "nonce=e3f7b4c8f5ea016d0d2e92048ca0d856&timestamp=1685641159&url=https%3A%2F%2Flogs.example.com%2Fextensions%2F1"
	postMessage = `{"id":"1","url":"https://logs.example.com/extensions","nonce":"e3f7b4c8f5ea016d0d2e92048ca0d856","timestamp":1685641159}`
)

func TestVerifyRules(t *testing.T) {
	get := func(old, new string) *http.Request {
		return raw("GET", "/extensions/1", strings.ReplaceAll(getMessage, old, new))
	}
	post := func(old, new string) *http.Request {
		return raw("POST", "/extensions", strings.ReplaceAll(postMessage, old, new))
	}
	with := func(r *http.Request, change func(*http.Request)) *http.Request {
		change(r)
		return r
	}
	signature := func(s string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(provider.SignatureHeader, s) }
	}
	sum, err := hex.DecodeString(provider.Signature(secret, []byte(postMessage)))
	if err != nil {
		t.Fatal(err)
	}
	const nonce = "e3f7b4c8f5ea016d0d2e92048ca0d856"

	for name, c := range map[string]struct {
		r    *http.Request
		want provider.Rule
	}{
		"GET":    {r: get("", "")},
		"DELETE": {r: with(get("", ""), func(r *http.Request) { r.Method = "DELETE" })},
		"POST":   {r: post("", "")},
		"PATCH":  {r: with(post("", ""), func(r *http.Request) { r.Method = "PATCH" })},

		"PUT":                 {r: with(post("", ""), func(r *http.Request) { r.Method = "PUT" }), want: provider.RuleMethod},
		"HEAD":                {r: with(get("", ""), func(r *http.Request) { r.Method = "HEAD" }), want: provider.RuleMethod},
		"large body":          {r: with(post("", ""), func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(strings.Repeat(" ", 1<<10+1))) }), want: provider.RuleSize},
		"body cannot be read": {r: with(post("", ""), func(r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)) }), want: provider.RuleBody},
		"unsigned body":       {r: with(get("", ""), func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("x")) }), want: provider.RuleBody},

		"uppercase":           {r: with(post("", ""), signature(strings.ToUpper(hex.EncodeToString(sum))))},
		"prefix":              {r: with(post("", ""), signature("sha256="+hex.EncodeToString(sum)))},
		"base64":              {r: with(post("", ""), signature(base64.StdEncoding.EncodeToString(sum)))},
		"base64 with prefix":  {r: with(post("", ""), signature("sha256="+base64.StdEncoding.EncodeToString(sum)))},
		"base64 unpadded":     {r: with(post("", ""), signature(base64.RawStdEncoding.EncodeToString(sum)))},
		"base64 of URLs":      {r: with(post("", ""), signature(base64.URLEncoding.EncodeToString(sum)))},
		"base64, other bits":  {r: with(post("", ""), signature(otherBits(base64.StdEncoding.EncodeToString(sum)))), want: provider.RuleSignature},
		"no signature":        {r: with(post("", ""), func(r *http.Request) { r.Header.Del(provider.SignatureHeader) }), want: provider.RuleSignature},
		"empty signature":     {r: with(post("", ""), signature("")), want: provider.RuleSignature},
		"two signatures":      {r: with(post("", ""), func(r *http.Request) { r.Header.Add(provider.SignatureHeader, hex.EncodeToString(sum)) }), want: provider.RuleSignature},
		"short signature":     {r: with(post("", ""), signature(hex.EncodeToString(sum[1:]))), want: provider.RuleSignature},
		"not hexadecimal":     {r: with(post("", ""), signature(strings.Repeat("g", 64))), want: provider.RuleSignature},
		"of another message":  {r: with(post("", ""), signature(provider.Signature(secret, []byte("{}")))), want: provider.RuleSignature},
		"with another secret": {r: with(post("", ""), signature(provider.Signature("other", []byte(postMessage)))), want: provider.RuleSignature},
		"changed body":        {r: with(post("", ""), func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(postMessage + " ")) }), want: provider.RuleSignature},
		"query as a signature": {r: with(post("", ""), func(r *http.Request) {
			r.Header.Del(provider.SignatureHeader)
			r.URL.RawQuery = "&signature=" + hex.EncodeToString(sum)
		}), want: provider.RuleSignature},

		"body is a query":      {r: raw("POST", "/extensions/1", getMessage), want: provider.RuleParameters},
		"query is a body":      {r: raw("GET", "/extensions", postMessage), want: provider.RuleParameters},
		"query in JSON":        {r: raw("GET", "/extensions/1", `{"name":"&`+getMessage+`&x="}`), want: provider.RuleParameters},
		"body is null":         {r: raw("POST", "/extensions", "null"), want: provider.RuleParameters},
		"body is an array":     {r: raw("POST", "/extensions", "[]"), want: provider.RuleParameters},
		"no nonce":             {r: post(`"nonce":"`+nonce+`",`, ""), want: provider.RuleParameters},
		"no url":               {r: post(`"url":"https://logs.example.com/extensions",`, ""), want: provider.RuleParameters},
		"no timestamp":         {r: post(`,"timestamp":1685641159`, ""), want: provider.RuleParameters},
		"null nonce":           {r: post(`"`+nonce+`"`, "null"), want: provider.RuleParameters},
		"null timestamp":       {r: post("1685641159", "null"), want: provider.RuleParameters},
		"number as nonce":      {r: post(`"`+nonce+`"`, "12345678901234567"), want: provider.RuleParameters},
		"short nonce":          {r: post(nonce, nonce[:15]), want: provider.RuleParameters},
		"long nonce":           {r: post(nonce, strings.Repeat("a", 129)), want: provider.RuleParameters},
		"UUID as nonce":        {r: post(nonce, "0b5f3a52-6e0c-4b0e-9d5a-1f2e3d4c5b6a")},
		"name in capitals":     {r: post(`"nonce"`, `"Nonce"`), want: provider.RuleParameters},
		"no nonce in query":    {r: get("nonce="+nonce+"&", ""), want: provider.RuleParameters},
		"no url in query":      {r: get("&url=", "&uri="), want: provider.RuleParameters},
		"no timestamp there":   {r: get("&timestamp=1685641159", ""), want: provider.RuleParameters},
		"two nonces":           {r: get("nonce=", "nonce="+nonce+"&nonce="), want: provider.RuleParameters},
		"two urls, one hidden": {r: get("nonce=", "%75rl=x&nonce="), want: provider.RuleParameters},
		"url not decodable":    {r: get("https%3A", "https%3"), want: provider.RuleParameters},
		"semicolon":            {r: get("nonce=", "a=1;b=2&nonce="), want: provider.RuleParameters},
		"other order":          {r: raw("GET", "/extensions/1", "url=https%3A%2F%2Flogs.example.com%2Fextensions%2F1%3Fa%3D1%26b&timestamp=1685641159&a=1&nonce="+nonce+"&b")},

		"timestamp as string":  {r: post("1685641159", `"1685641159"`)},
		"timestamp a fraction": {r: post("1685641159", "1685641159.0"), want: provider.RuleParameters},
		"timestamp signed":     {r: post("1685641159", `"+1685641159"`), want: provider.RuleParameters},
		"timestamp empty":      {r: post("1685641159", `""`), want: provider.RuleParameters},
		"timestamp negative":   {r: post("1685641159", "-1685641159"), want: provider.RuleParameters},
		"timestamp enormous":   {r: post("1685641159", "99999999999999999999"), want: provider.RuleParameters},
		"timestamp far":        {r: post("1685641159", "9223372036854775807"), want: provider.RuleTimestamp},
		"milliseconds":         {r: post("1685641159", "1685641159000"), want: provider.RuleTimestamp},
		"oldest":               {r: post("1685641159", "1685640859")},
		"too old":              {r: post("1685641159", "1685640858"), want: provider.RuleTimestamp},
		"newest":               {r: post("1685641159", "1685641459")},
		"too new":              {r: post("1685641159", "1685641460"), want: provider.RuleTimestamp},

		"another host":      {r: post("logs.example.com", "evil.example.com"), want: provider.RuleURL},
		"another scheme":    {r: post("https:", "http:"), want: provider.RuleURL},
		"another path":      {r: with(post("", ""), func(r *http.Request) { r.URL.Path = "/extensions/1" }), want: provider.RuleURL},
		"host of a request": {r: with(post("", ""), func(r *http.Request) { r.Host = "evil.example.com" })},
		"added query":       {r: with(post("", ""), func(r *http.Request) { r.URL.RawQuery = "a=1" }), want: provider.RuleURL},
		"another GET":       {r: with(get("", ""), func(r *http.Request) { r.URL.Path = "/extensions/2" }), want: provider.RuleURL},
		"escaped path":      {r: with(get("", ""), func(r *http.Request) { r.URL.RawPath = "/extensions/%31" }), want: provider.RuleURL},
		"unsigned query":    {r: get("nonce=", "a=1&nonce="), want: provider.RuleURL},
		"url with query":    {r: get("nonce=", "url=https%3A%2F%2Flogs.example.com%2Fextensions%2F1%3Fa&a&nonce="), want: provider.RuleParameters},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t, func(c *provider.VerifierConfig) { c.MaxBody = 1 << 10 })
			if got := verdict(t, v, c.r); got != c.want {
				t.Errorf("broken rule is %q, want %q", got, c.want)
			}
		})
	}
}

// otherBits changes the bits of base64 that a lenient decoder ignores.
func otherBits(s string) string {
	at := len(s) - 2 // before the padding
	return s[:at] + string(s[at]+1) + s[at+1:]
}

func TestVerifyReplays(t *testing.T) {
	v := newVerifier(t, nil)
	if got := verdict(t, v, raw("GET", "/extensions/2", getMessage)); got != provider.RuleURL {
		t.Fatalf("broken rule is %q", got)
	}
	if got := verdict(t, v, raw("GET", "/extensions/1", getMessage)); got != "" {
		t.Fatalf("a request that was refused has used its nonce: %q", got)
	}
	if got := verdict(t, v, raw("GET", "/extensions/1", getMessage)); got != provider.RuleNonce {
		t.Errorf("a replay breaks %q", got)
	}
	if got := verdict(t, v, raw("DELETE", "/extensions/1", getMessage)); got != provider.RuleNonce {
		t.Errorf("a replay with another method breaks %q", got)
	}
	if got := verdict(t, v, raw("POST", "/extensions", strings.Replace(postMessage, "1685641159", "1685641160", 1))); got != provider.RuleNonce {
		t.Errorf("a nonce of another request breaks %q", got)
	}
}

func TestVerifyForgetsNoncesThatAreTooOldToReplay(t *testing.T) {
	now := epoch
	v := newVerifier(t, func(c *provider.VerifierConfig) {
		c.Now = func() time.Time { return now }
	})
	for i := range 20 {
		s := provider.Signer{Now: func() time.Time { return now }}
		if got := verdict(t, v, signedRequest(t, s, "GET", "https://logs.example.com/", "")); got != "" {
			t.Fatalf("request %d breaks %q", i, got)
		}
		now = now.Add(time.Minute)
	}
	now = epoch
	if got := verdict(t, v, signedRequest(t, provider.Signer{Now: clock(0)}, "GET", "https://logs.example.com/", "")); got != provider.RuleNonce {
		t.Errorf("after the clock was set back, a request that may be a replay breaks %q", got)
	}
}

func TestVerifyNeverAcceptsReplaysInAFlood(t *testing.T) {
	v := newVerifier(t, func(c *provider.VerifierConfig) { c.MaxNonces = 8 })
	request := func(i int) *http.Request {
		s := provider.Signer{
			Now:   clock(time.Duration(i/4) * time.Second),
			Nonce: func() string { return fmt.Sprintf("%032d", i) },
		}
		return signedRequest(t, s, "GET", "https://logs.example.com/", "")
	}
	const n = 40
	for i := range n {
		if got := verdict(t, v, request(i)); got != "" {
			t.Fatalf("request %d breaks %q", i, got)
		}
		for j := range i + 1 {
			if got := verdict(t, v, request(j)); got != provider.RuleNonce {
				t.Fatalf("replay of request %d after %d breaks %q", j, i, got)
			}
		}
	}
	for i := range 20 { // more of one second than are remembered
		s := provider.Signer{Now: clock(time.Minute)}
		want := provider.Rule("")
		if i >= 8 {
			want = provider.RuleNonce
		}
		if got := verdict(t, v, signedRequest(t, s, "GET", "https://logs.example.com/", "")); got != want {
			t.Fatalf("request %d of a second breaks %q, want %q", i, got, want)
		}
	}
	if got := verdict(t, v, signedRequest(t, provider.Signer{Now: clock(time.Minute + time.Second)}, "GET", "https://logs.example.com/", "")); got != "" {
		t.Errorf("a request of the next second breaks %q", got)
	}
}

func TestVerifyLink(t *testing.T) {
	s := provider.Signer{Secret: secret, Now: clock(0)}
	link, err := s.SignLink(&url.URL{Scheme: "https", Host: "logs.example.com", Path: "/extensions/1/sso", RawQuery: "tab=usage"})
	if err != nil {
		t.Fatal(err)
	}
	open := func(method, target string) *http.Request {
		return httptest.NewRequestWithContext(t.Context(), method, target, nil)
	}
	v := newVerifier(t, nil)
	target := link.RequestURI()
	for name, r := range map[string]*http.Request{
		"another method":     open("DELETE", target),
		"another path":       open("GET", strings.Replace(target, "/sso", "", 1)),
		"another query":      open("GET", strings.Replace(target, "usage", "members", 1)),
		"a parameter after":  open("GET", target+"&admin=1"),
		"a second signature": open("GET", target+"&signature="+strings.Repeat("0", 64)),
		"no signature":       open("GET", target[:strings.LastIndex(target, "&")]),
	} {
		if got := verdict(t, v, r); got == "" {
			t.Errorf("a link with %s is accepted", name)
		}
	}
	if got := verdict(t, v, open("GET", target)); got != "" {
		t.Errorf("the link breaks %q", got)
	}
	if got := verdict(t, v, open("GET", target)); got != provider.RuleNonce {
		t.Errorf("the link, used again, breaks %q", got)
	}
}

func TestVerifyBehindAProxy(t *testing.T) {
	v := newVerifier(t, func(c *provider.VerifierConfig) { c.BaseURL = "https://example.com/logs%2Fv1/" })
	var path string
	h := http.StripPrefix("/internal", v.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { path = r.URL.Path })))
	r := signedRequest(t, provider.Signer{}, "GET", "https://example.com/logs%2Fv1/extensions/1", "")
	r.URL.Path, r.URL.RawPath = "/internal/extensions/1", "" // as the proxy passes it on
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || path != "/extensions/1" {
		t.Errorf("the answer is %d %s, the path %q", w.Code, w.Body, path)
	}
}

func TestVerifyBareWebhooks(t *testing.T) {
	bare := `{"timestamp":"1685641159","action":"resource.updated","resource":{"id":"1"}}`
	v := newVerifier(t, nil)
	if got := verdict(t, v, raw("POST", "/hook", bare)); got != provider.RuleParameters {
		t.Errorf("unless they are allowed, they break %q", got)
	}
	v = newVerifier(t, func(c *provider.VerifierConfig) { c.AllowBare = true })
	for _, want := range []provider.Rule{"", provider.RuleNonce} {
		if got := verdict(t, v, raw("POST", "/hook", bare)); got != want {
			t.Errorf("broken rule is %q, want %q", got, want)
		}
	}
	for name, body := range map[string]string{
		"short nonce": strings.Replace(postMessage, `"nonce":"`, `"nonce":"short","x":"`, 1),
		"empty url":   strings.Replace(postMessage, `"url":"`, `"url":"","x":"`, 1),
		"both empty":  `{"timestamp":1685641159,"url":"","nonce":""}`,
		"no time":     `{}`,
	} {
		if got := verdict(t, v, raw("POST", "/extensions", body)); got != provider.RuleParameters {
			t.Errorf("%s: broken rule is %q", name, got)
		}
	}
	if got := verdict(t, v, raw("POST", "/elsewhere", postMessage)); got != provider.RuleURL {
		t.Errorf("a url that is there need not be right: %q", got)
	}
	if got := verdict(t, v, raw("GET", "/hook", "timestamp=1685641159")); got != provider.RuleParameters {
		t.Errorf("a bare GET breaks %q", got)
	}
}

func TestHandler(t *testing.T) {
	var refused []provider.Rule
	v := newVerifier(t, func(c *provider.VerifierConfig) {
		c.Refused = func(_ *http.Request, e *provider.VerifyError) { refused = append(refused, e.Rule) }
	})
	server := httptest.NewServer(v.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })))
	defer server.Close()

	for _, c := range []struct {
		method, body, signature string
		status                  int
		answer                  string
	}{
		{"POST", postMessage, "", 200, postMessage},
		{"POST", postMessage, "", 401, `{"error":"nonce"}` + "\n"},
		{"POST", postMessage, strings.Repeat("0", 64), 401, `{"error":"signature"}` + "\n"},
		{"POST", "[]", "", 400, `{"error":"parameters"}` + "\n"},
		{"POST", strings.Repeat("x", provider.DefaultMaxBody+1), "", 413, `{"error":"size"}` + "\n"},
		{"PUT", postMessage, "", 405, `{"error":"method"}` + "\n"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+"/extensions", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.signature == "" {
			c.signature = provider.Signature(secret, []byte(c.body))
		}
		r.Header.Set(provider.SignatureHeader, c.signature)
		response, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != c.status || string(answer) != c.answer {
			t.Errorf("the answer is %d %s, %v; want %d %s", response.StatusCode, answer, err, c.status, c.answer)
		}
	}
	if got := fmt.Sprint(refused); got != "[nonce signature parameters size method]" {
		t.Errorf("refused were %s", got)
	}
}

func TestNewVerifierRefuses(t *testing.T) {
	for name, change := range map[string]func(*provider.VerifierConfig){
		"no base URL":      func(c *provider.VerifierConfig) { c.BaseURL = "" },
		"relative":         func(c *provider.VerifierConfig) { c.BaseURL = "/hangar" },
		"scheme":           func(c *provider.VerifierConfig) { c.BaseURL = "ws://h" },
		"query":            func(c *provider.VerifierConfig) { c.BaseURL = "https://h?a" },
		"empty query":      func(c *provider.VerifierConfig) { c.BaseURL = "https://h?" },
		"fragment":         func(c *provider.VerifierConfig) { c.BaseURL = "https://h#a" },
		"user":             func(c *provider.VerifierConfig) { c.BaseURL = "https://a:b@h" },
		"no secret":        func(c *provider.VerifierConfig) { c.Secrets = nil },
		"an empty secret":  func(c *provider.VerifierConfig) { c.Secrets = []string{"a", ""} },
		"negative body":    func(c *provider.VerifierConfig) { c.MaxBody = -1 },
		"negative nonces":  func(c *provider.VerifierConfig) { c.MaxNonces = -1 },
		"malformed escape": func(c *provider.VerifierConfig) { c.BaseURL = "https://h/%zz" },
	} {
		c := provider.VerifierConfig{BaseURL: "https://h", Secrets: []string{"s"}}
		change(&c)
		if _, err := provider.NewVerifier(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestVerifyErrorHasItsCause(t *testing.T) {
	r := raw("POST", "/", "")
	r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	err := newVerifier(t, nil).Verify(r)
	if want := "provider: refused by rule body: the body cannot be read: unexpected EOF"; !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
}
