package api

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) identityRoutes() {
	const issuer = "/oidc/{org}/.well-known"
	body := identityRequest{Audience: "sts.amazonaws.com"}
	const text = "The answer is a JSON Web Token, signed with RS256, as plain text. It is valid for 15 minutes. Each call returns a new one. " +
		"Its subject is `ORG:APP:MACHINE`, by their names. The body may be left out: then the audience is an address that ends with the organization. " +
		"`aws_principal_tags` adds the tags by which policies of AWS tell Machines apart."
	s.Handle("POST /v1/tokens/oidc", s.issueOwnToken, router.Operation{
		ID: "issueIdentityToken", Self: true, Tag: "Identity", Summary: "Request an identity token, as a Machine",
		Text: text + " For Machines, and for tokens that are for one Machine alone.",
		Body: body, MayOmit: true, Answer: exampleJWT, Media: router.MediaText, Errors: []int{http.StatusNotFound, http.StatusPreconditionFailed},
	})
	s.Handle("POST "+machine+"/oidc_token", s.issueToken, router.Operation{
		ID: "issueMachineIdentityToken", Self: true, Tag: "Identity", Summary: "Create an identity token for a Machine",
		Text: text + " For callers that may control the Machine, and so could ask from within it.",
		Body: body, MayOmit: true, Answer: exampleJWT, Media: router.MediaText, Errors: []int{http.StatusPreconditionFailed},
	})
	s.Public("GET "+issuer+"/openid-configuration", s.getIssuer, router.Operation{
		ID: "getIssuer", Tag: "Identity", Summary: "Get the OpenID configuration of an organization",
		Text: "OpenID Connect Discovery, without authentication. The issuer may be at another address than this server.", Cached: true,
		Answer: issuerView{
			Issuer: exampleIssuer, KeysURL: exampleIssuer + "/.well-known/jwks", ResponseTypes: []string{"id_token"}, SubjectTypes: []string{"public"},
			Algorithms: []string{"RS256"}, Scopes: []string{"openid"}, Claims: []string{"aud", "exp", "iss", "sub"},
		},
	})
	s.Public("GET "+issuer+"/jwks", s.getIssuerKeys, router.Operation{
		ID: "getIssuerKeys", Tag: "Identity", Summary: "Get the key set of an organization",
		Text:   "A JSON Web Key Set, without authentication. It may be cached for as long as `Cache-Control` says: a key is published for longer than that before it signs.",
		Answer: keySetView{[]keyView{{Type: "RSA", ID: exampleKey, Use: "sig", Algorithm: "RS256", Modulus: "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78L…", Exponent: "AQAB"}}},
		Cached: true,
	})
	keys := signingKeysAnswer{[]hangar.SigningKey{{ID: exampleKey, State: hangar.SigningKeyCurrent, CreatedAt: exampleTime, NotBefore: exampleTime}}}
	s.Handle("GET /v1/oidc/keys", s.listSigningKeys, router.Operation{
		ID: "listSigningKeys", Tag: "Identity", Summary: "List signing keys",
		Text: "Sorted by the time from which they sign; the private keys are never shown. " + forAdmins, Answer: keys,
	})
	s.Handle("POST /v1/oidc/keys/rotate", s.rotateSigningKey, router.Operation{
		ID: "rotateSigningKey", Tag: "Identity", Summary: "Rotate the signing key",
		Text: "The next key becomes the current one, at once or, when it has not been published for long enough, at its `not_before`. " +
			"The previous key stays published until all tokens that it has signed have expired. " + forAdmins,
		Answer: keys,
	})
}

const (
	exampleJWT    = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjJ4…"
	exampleIssuer = "https://oidc.example.com/personal"
	exampleKey    = "kq3v7x2mhd5t4rwbn6pzc7yeaj"
)

// identityRequest is the body that asks for an identity token.
type identityRequest struct {
	Audience         string `json:"aud"`
	AWSPrincipalTags bool   `json:"aws_principal_tags"`
}

// issuerView is the document of OpenID Connect Discovery.
type issuerView struct {
	Issuer        string   `json:"issuer"`
	KeysURL       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	Scopes        []string `json:"scopes_supported,omitempty"`
	Claims        []string `json:"claims_supported,omitempty"`
}

// keySetView is a JSON Web Key Set.
type keySetView struct {
	Keys []keyView `json:"keys"`
}

// keyView is a public key of RSA.
type keyView struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Algorithm string `json:"alg"`
	Modulus   string `json:"n"`
	Exponent  string `json:"e"`
}

// signingKeysAnswer lists keys.
type signingKeysAnswer struct {
	Keys []hangar.SigningKey `json:"keys"`
}

func (s *server) issueOwnToken(r *http.Request) (router.Answer, error) {
	return s.issueIdentity(r, hangar.MachineRef{})
}

func (s *server) issueToken(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return s.issueIdentity(r, ref)
}

func (s *server) issueIdentity(r *http.Request, ref hangar.MachineRef) (router.Answer, error) {
	in, err := input.DecodeOptional[identityRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	token, err := s.Identity.IssueIdentityToken(r.Context(), ref, hangar.IdentityTokenRequest(in))
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Raw: []byte(token), Media: router.MediaText + "; charset=utf-8", Header: http.Header{"Cache-Control": {"no-store"}}}, nil
}

func (s *server) getIssuer(r *http.Request) (router.Answer, error) {
	document, err := s.Issuer.IssuerMetadata(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	if err != nil {
		return router.Answer{}, err
	}
	return cached(r, document), nil
}

func (s *server) getIssuerKeys(r *http.Request) (router.Answer, error) {
	document, err := s.Issuer.IssuerKeys(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	if err != nil {
		return router.Answer{}, err
	}
	return cached(r, document), nil
}

// cached answers with a document that caches may keep. The answer has no body if the client has this
// version of the document.
func cached(r *http.Request, document hangar.IssuerDocument) router.Answer {
	digest := sha256.Sum256(document.Body)
	tag := `"` + hex.EncodeToString(digest[:16]) + `"`
	header := http.Header{
		"Cache-Control": {"public, max-age=" + strconv.Itoa(int(document.MaxAge.Seconds()))},
		"Etag":          {tag},
	}
	if hasTag(r, tag) {
		return router.Answer{Status: http.StatusNotModified, Header: header}
	}
	return router.Answer{Raw: document.Body, Media: router.MediaJSON, Header: header}
}

// hasTag reports whether the client has the version of a document with this tag.
func hasTag(r *http.Request, tag string) bool {
	for _, line := range r.Header.Values("If-None-Match") {
		for known := range strings.SplitSeq(line, ",") {
			if known = strings.TrimSpace(known); known == "*" || strings.TrimPrefix(known, "W/") == tag {
				return true
			}
		}
	}
	return false
}

func (s *server) listSigningKeys(r *http.Request) (router.Answer, error) {
	keys, err := s.SigningKeys.SigningKeys(r.Context())
	return router.AnswerOf(signingKeysAnswer{view.OrEmpty(keys)}, err)
}

func (s *server) rotateSigningKey(r *http.Request) (router.Answer, error) {
	keys, err := s.SigningKeys.RotateSigningKey(r.Context())
	return router.AnswerOf(signingKeysAnswer{view.OrEmpty(keys)}, err)
}
