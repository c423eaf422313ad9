package provider

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Window is how far the timestamp of a request may be from the clock of a Verifier.
const Window = 5 * time.Minute

// The defaults of a VerifierConfig.
const (
	DefaultMaxBody   = 1 << 20
	DefaultMaxNonces = 100_000
)

// VerifierConfig says what a Verifier accepts.
type VerifierConfig struct {
	// BaseURL is the URL before the path that a request has when it reaches the
	// Verifier, such as https://logs.example.com. It includes a path if a proxy or
	// http.StripPrefix removes one. The Host header of requests is ignored.
	BaseURL string
	// Secrets are the shared secrets that are valid now: one, or several during a rotation.
	Secrets []string
	// MaxBody bounds the body of a request, in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	// MaxNonces bounds the remembered nonces; 0 is DefaultMaxNonces. A nonce takes up to
	// 300 bytes. Requests that come faster than MaxNonces in 10 minutes shorten the time during
	// which a late request is accepted.
	MaxNonces int
	// AllowBare accepts a POST or PATCH without url, or without nonce, or without both, as in the
	// oldest form of webhooks. Without a nonce the signature counts as one. It is safe for a secret
	// that signs for one URL only.
	AllowBare bool
	// AnyOrigin compares only the path and the query of url, because the server is reached under
	// several names. It is safe for secrets that sign for one server only.
	AnyOrigin bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Refused, if not nil, is called by Handler for each request that it refuses, to log it.
	Refused func(*http.Request, *VerifyError)
}

// Verifier decides whether requests were signed with one of its secrets, for this server, within the
// last minutes, and have not been seen before.
//
// It keeps nonces in memory. Processes that serve the same BaseURL do not share them, and a restart
// loses them, so a request may be replayed once to each process within the window.
type Verifier struct {
	config  VerifierConfig
	prefix  string // the base URL without a slash at its end
	secrets atomic.Pointer[[]string]
	nonces  *nonces
}

// NewVerifier checks the configuration and returns a Verifier that has seen no request.
func NewVerifier(c VerifierConfig) (*Verifier, error) {
	u, err := url.Parse(c.BaseURL)
	if err != nil || !absolute(u) || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, fmt.Errorf("provider: base URL %q must be http or https, a host and perhaps a path", c.BaseURL)
	}
	if c.MaxBody < 0 || c.MaxNonces < 0 {
		return nil, errors.New("provider: limits must not be negative")
	}
	c.MaxBody = cmp.Or(c.MaxBody, DefaultMaxBody)
	c.MaxNonces = cmp.Or(c.MaxNonces, DefaultMaxNonces)
	if c.Now == nil {
		c.Now = time.Now
	}
	v := &Verifier{
		config: c,
		prefix: origin(u) + strings.TrimRight(u.EscapedPath(), "/"),
		nonces: newNonces(c.MaxNonces),
	}
	if err := v.SetSecrets(c.Secrets); err != nil {
		return nil, err
	}
	return v, nil
}

// SetSecrets replaces the valid secrets, as in a rotation. It keeps the nonces.
func (v *Verifier) SetSecrets(secrets []string) error {
	if len(secrets) == 0 {
		return errors.New("provider: a Verifier needs a secret")
	}
	if slices.Contains(secrets, "") {
		return errors.New("provider: a secret is empty")
	}
	secrets = slices.Clone(secrets)
	v.secrets.Store(&secrets)
	return nil
}

// Handler returns a handler that passes verified requests to next, with readable bodies, and
// answers others with the status of the VerifyError and {"error": the rule}.
func (v *Verifier) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refused := v.verify(r)
		if refused == nil {
			next.ServeHTTP(w, r)
			return
		}
		if v.config.Refused != nil {
			v.config.Refused(r, refused)
		}
		w.Header().Set("Content-Type", "application/json")
		if refused.Rule == RuleMethod {
			w.Header().Set("Allow", "GET, DELETE, POST, PATCH")
		}
		w.WriteHeader(refused.Status())
		fmt.Fprintf(w, "{\"error\":%q}\n", string(refused.Rule))
	})
}

// Verify accepts a request to a server and remembers its nonce, or returns a *VerifyError. It reads
// the body and replaces it with one that can be read again. It parses nothing before the
// signature is verified, and records a nonce only if the rest is valid.
//
// Rules are checked in the order of their constants.
func (v *Verifier) Verify(r *http.Request) error {
	// A nil *VerifyError in an error would not be nil.
	if refused := v.verify(r); refused != nil {
		return refused
	}
	return nil
}

func (v *Verifier) verify(r *http.Request) *VerifyError {
	var inBody bool
	switch r.Method {
	case http.MethodGet, http.MethodDelete:
	case http.MethodPost, http.MethodPatch:
		inBody = true
	default:
		return refuse(RuleMethod, "the protocol has GET, DELETE, POST and PATCH")
	}
	body, refused := v.readBody(r, inBody)
	if refused != nil {
		return refused
	}
	message, signature, refused := signed(r, body, inBody)
	if refused != nil {
		return refused
	}
	sum, ok := decodeSignature(signature)
	if !ok {
		return refuse(RuleSignature, "the signature is neither hexadecimal nor base64 of 32 bytes")
	}
	if !v.matches(message, sum) {
		return refuse(RuleSignature, "the signature is not that of this request with a secret of this server")
	}
	if inBody {
		setBody(r, body)
	}
	return v.checkParams(r, message, sum, inBody)
}

// checkParams checks the parameters in a message with a valid signature.
func (v *Verifier) checkParams(r *http.Request, message, sum []byte, inBody bool) *VerifyError {
	var (
		p     params
		query = r.URL.RawQuery // without the parameters
		err   error
	)
	if inBody {
		p, err = parseBody(message, v.config.AllowBare)
	} else {
		p, query, err = parseQuery(string(message))
	}
	if err != nil {
		return refuse(RuleParameters, err.Error())
	}
	now, window := Timestamp(v.config.Now().Unix()), Timestamp(Window/time.Second)
	if p.timestamp < now-window || p.timestamp > now+window {
		return refuse(RuleTimestamp, "the timestamp is more than 5 minutes from the clock of this server")
	}
	if p.url != "" && !v.means(p.url, r.URL, query) {
		return refuse(RuleURL, "the request was signed for another URL")
	}
	nonce := p.nonce
	if nonce == "" {
		nonce = "signature " + string(sum) // a nonce has no space
	}
	if refusal := v.nonces.use(nonce, p.timestamp, now-window); refusal != "" {
		return refuse(RuleNonce, refusal)
	}
	return nil
}

// means reports whether a signed url matches the URL of a request.
func (v *Verifier) means(signed string, requested *url.URL, query string) bool {
	if !v.config.AnyOrigin {
		return signed == target(v.prefix, requested, query)
	}
	u, err := url.Parse(signed)
	if err != nil || !absolute(u) || u.Fragment != "" {
		return false
	}
	rest, ok := strings.CutPrefix(signed, u.Scheme+"://"+u.Host)
	return ok && rest == target("", requested, query)
}

// readBody returns the body if the signature covers one. Otherwise there must be none, because
// it would be unsigned.
func (v *Verifier) readBody(r *http.Request, inBody bool) ([]byte, *VerifyError) {
	if r.Body == nil {
		return nil, nil
	}
	limit := v.config.MaxBody
	if !inBody {
		limit = 0
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return nil, &VerifyError{Rule: RuleBody, Reason: "the body cannot be read", Err: err}
	case int64(len(body)) <= limit:
		return body, nil
	case inBody:
		return nil, refuse(RuleSize, fmt.Sprintf("the body has more than %d bytes", limit))
	default:
		return nil, refuse(RuleBody, "a GET or DELETE has a body, which is not signed")
	}
}

// signed returns the bytes that the signature covers, and the signature.
func signed(r *http.Request, body []byte, inBody bool) (message []byte, signature string, refused *VerifyError) {
	message = body
	if !inBody {
		message = []byte(r.URL.RawQuery)
	}
	switch header := r.Header.Values(SignatureHeader); len(header) {
	case 1:
		return message, header[0], nil
	case 0:
		if r.Method == http.MethodGet {
			mark := "&" + paramSignature + "="
			if at := strings.LastIndex(r.URL.RawQuery, mark); at >= 0 {
				return message[:at], r.URL.RawQuery[at+len(mark):], nil
			}
		}
		return nil, "", refuse(RuleSignature, "the request has no signature")
	default:
		return nil, "", refuse(RuleSignature, "the request has several signatures")
	}
}

// decodeSignature reads hexadecimal, or base64 in either alphabet with or without padding, after
// an optional "sha256=".
func decodeSignature(s string) (sum []byte, ok bool) {
	s = strings.TrimPrefix(s, "sha256=")
	if len(s) == hex.EncodedLen(sha256.Size) {
		sum, err := hex.DecodeString(s)
		return sum, err == nil
	}
	s = strings.TrimSuffix(s, "=")
	if len(s) != base64.RawStdEncoding.EncodedLen(sha256.Size) || strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(s, "-_") {
		encoding = base64.RawURLEncoding
	}
	sum, err := encoding.Strict().DecodeString(s)
	return sum, err == nil
}

// matches tries all secrets, in a time that does not depend on which one is right.
func (v *Verifier) matches(message, sum []byte) bool {
	found := false
	for _, secret := range *v.secrets.Load() {
		if hmac.Equal(mac(secret, message), sum) {
			found = true
		}
	}
	return found
}

// parseQuery returns the parameters in a query, and the query without them.
func parseQuery(query string) (p params, rest string, err error) {
	if err := checkQuery(query); err != nil {
		return params{}, "", err
	}
	values := map[string]string{}
	var others []string
	for pair := range strings.SplitSeq(query, "&") {
		name := pairName(pair)
		if !isParam(name) {
			others = append(others, pair)
			continue
		}
		if _, twice := values[name]; twice {
			return params{}, "", fmt.Errorf("the query has %s more than once", name)
		}
		_, value, _ := strings.Cut(pair, "=")
		if values[name], err = url.QueryUnescape(value); err != nil {
			return params{}, "", fmt.Errorf("the query has a %s that cannot be decoded", name)
		}
	}
	p.url, p.nonce = values[paramURL], values[paramNonce]
	if p.timestamp, err = parseTimestamp(values[paramTimestamp]); err != nil {
		return params{}, "", err
	}
	return p, strings.Join(others, "&"), p.check(false, false)
}

// parseBody returns the parameters in a body.
func parseBody(body []byte, allowBare bool) (p params, err error) {
	members, err := object(body)
	if err != nil {
		return params{}, errors.New("the body is not a JSON object")
	}
	read := func(name string, into any) {
		if raw, found := members[name]; found && err == nil && (string(raw) == "null" || json.Unmarshal(raw, into) != nil) {
			err = fmt.Errorf("the body has a %s of the wrong type", name)
		}
	}
	read(paramURL, &p.url)
	read(paramNonce, &p.nonce)
	read(paramTimestamp, &p.timestamp)
	if err != nil {
		return params{}, err
	}
	if members[paramTimestamp] == nil {
		return params{}, errors.New("there is no timestamp")
	}
	return p, p.check(allowBare && members[paramURL] == nil, allowBare && members[paramNonce] == nil)
}

// check reports the first parameter that is missing or malformed. withoutURL and withoutNonce allow their absence.
func (p params) check(withoutURL, withoutNonce bool) error {
	switch {
	case p.url == "" && !withoutURL:
		return errors.New("there is no url")
	case !validNonce(p.nonce) && !withoutNonce:
		return fmt.Errorf("there is no nonce of %d to %d bytes of printable ASCII", minNonce, maxNonce)
	default:
		return nil
	}
}
