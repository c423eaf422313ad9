package provider

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// SignatureHeader is the header that carries the signature of a request.
const SignatureHeader = "X-Signature"

// The parameters that a signer adds to a request. They are members of a JSON body, or parameters
// of a query.
const (
	paramURL       = "url"
	paramNonce     = "nonce"
	paramTimestamp = "timestamp"

	// paramSignature ends the query of a link, which has no header.
	paramSignature = "signature"
)

// Signature returns the HMAC-SHA-256 of a message under the UTF-8 bytes of a secret, in lowercase
// hexadecimal.
func Signature(secret string, message []byte) string {
	return hex.EncodeToString(mac(secret, message))
}

func mac(secret string, message []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write(message)
	return h.Sum(nil)
}

// Signer signs requests.
type Signer struct {
	// Secret is the shared secret as the platform shows it. It must not be empty.
	Secret string
	// Now is the clock of timestamps; nil is time.Now.
	Now func() time.Time
	// Nonce returns a string of 16 to 128 bytes that no other request has; nil returns 128 random
	// bits as 32 hexadecimal digits.
	Nonce func() string
}

// Sign adds url, nonce and timestamp to a request, and its signature as the header X-Signature. It
// reads the body of a POST or PATCH, which must be a JSON object or empty, and replaces it with one
// with these three members at its end. To a GET or DELETE, which must have no body, it adds three
// parameters at the end of the query.
//
// A signed request can be sent once. To repeat it, build and sign it again: Sign refuses a
// request that already has one of the three parameters.
func (s Signer) Sign(r *http.Request) error {
	p, err := s.params(r.URL)
	if err != nil {
		return err
	}
	var message []byte
	switch r.Method {
	case http.MethodGet, http.MethodDelete, "":
		if r.Body != nil && r.Body != http.NoBody {
			return fmt.Errorf("provider: sign: a %s request with a body", r.Method)
		}
		query, err := p.appendToQuery(r.URL.RawQuery)
		if err != nil {
			return err
		}
		r.URL.RawQuery = query
		message = []byte(query)
	case http.MethodPost, http.MethodPatch:
		body, err := readAll(r.Body)
		if err != nil {
			return fmt.Errorf("provider: sign: read body: %w", err)
		}
		if message, err = p.appendToBody(body); err != nil {
			return err
		}
		setBody(r, message)
		r.Header.Set("Content-Type", "application/json")
	default:
		return fmt.Errorf("provider: sign: the protocol has no method %q", r.Method)
	}
	r.Header.Set(SignatureHeader, Signature(s.Secret, message))
	return nil
}

// SignLink returns a link for a browser to open with a GET request, such as the link of single sign-on.
// A browser sends no X-Signature, so the signature is a fourth parameter at the end of the query, which is
// itself not signed. The link works once.
func (s Signer) SignLink(u *url.URL) (*url.URL, error) {
	p, err := s.params(u)
	if err != nil {
		return nil, err
	}
	query, err := p.appendToQuery(u.RawQuery)
	if err != nil {
		return nil, err
	}
	link := *u
	link.RawQuery = query + "&" + paramSignature + "=" + Signature(s.Secret, []byte(query))
	return &link, nil
}

// params are the parameters of one request.
type params struct {
	url       string
	nonce     string
	timestamp Timestamp
}

func (s Signer) params(u *url.URL) (params, error) {
	if s.Secret == "" {
		return params{}, errors.New("provider: sign: the secret is empty")
	}
	if !absolute(u) || u.Fragment != "" {
		return params{}, errors.New("provider: sign: the URL must have http or https, a host, and neither user nor fragment")
	}
	if err := checkQuery(u.RawQuery); err != nil {
		return params{}, fmt.Errorf("provider: sign: %w", err)
	}
	now, nonce := time.Now, randomNonce
	if s.Now != nil {
		now = s.Now
	}
	if s.Nonce != nil {
		nonce = s.Nonce
	}
	p := params{url: target(origin(u), u, u.RawQuery), nonce: nonce(), timestamp: Timestamp(now().Unix())}
	if !validNonce(p.nonce) {
		return params{}, fmt.Errorf("provider: sign: a nonce has %d to %d bytes of printable ASCII", minNonce, maxNonce)
	}
	return p, nil
}

func randomNonce() string {
	var b [16]byte
	rand.Read(b[:]) // never returns an error
	return hex.EncodeToString(b[:])
}

func (p params) appendToQuery(query string) (string, error) {
	for pair := range strings.SplitSeq(query, "&") {
		if name := pairName(pair); isParam(name) {
			return "", fmt.Errorf("provider: sign: the query has %s already", name)
		}
	}
	if query != "" {
		query += "&"
	}
	return query + paramNonce + "=" + url.QueryEscape(p.nonce) +
		"&" + paramTimestamp + "=" + strconv.FormatInt(int64(p.timestamp), 10) +
		"&" + paramURL + "=" + url.QueryEscape(p.url), nil
}

func (p params) appendToBody(body []byte) ([]byte, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		body = []byte("{}")
	}
	members, err := object(body)
	if err != nil {
		return nil, fmt.Errorf("provider: sign: body: %w", err)
	}
	for name := range members {
		if isParam(name) {
			return nil, fmt.Errorf("provider: sign: the body has %s already", name)
		}
	}
	var b bytes.Buffer
	b.Write(body[:len(body)-1])
	if len(members) > 0 {
		b.WriteByte(',')
	}
	fmt.Fprintf(&b, `"%s":%s,"%s":%s,"%s":%d}`, paramURL, quote(p.url), paramNonce, quote(p.nonce), paramTimestamp, p.timestamp)
	return b.Bytes(), nil
}

// quote returns s as a JSON string in which & is not escaped.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) //nolint:errcheck,gosec // a string can be encoded, and a Builder written to
	return strings.TrimSuffix(b.String(), "\n")
}

func isParam(name string) bool {
	return name == paramURL || name == paramNonce || name == paramTimestamp
}

// object splits a JSON object into its members.
func object(raw []byte) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	if members == nil {
		return nil, errors.New("null is not a JSON object")
	}
	return members, nil
}

func readAll(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer body.Close()
	return io.ReadAll(body)
}

// setBody replaces the body of a request.
func setBody(r *http.Request, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.ContentLength = int64(len(body))
}
