package oauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/random"
)

// Prefixes by which people and secret scanners recognize codes and refresh tokens.
const (
	codePrefix    = "fc1_"
	refreshPrefix = "fr1_"
)

const (
	secretBytes = 32
	familyBytes = 16 // at the beginning of a refresh token: the same in all tokens of a grant
)

// codeText makes a new code.
func codeText(user hangar.UserID, id hangar.TokenID) string {
	return codePrefix + string(user) + "_" + string(id) + "_" + base64.RawURLEncoding.EncodeToString(random.Bytes(secretBytes))
}

// parseCode returns the user and the id of a code; false if text is none.
func parseCode(text string) (user hangar.UserID, id hangar.TokenID, ok bool) {
	rest, ok := strings.CutPrefix(text, codePrefix)
	if !ok || len(text) > hangar.MaxOAuthParameter {
		return "", "", false
	}
	const parts = 3
	fields := strings.SplitN(rest, "_", parts)
	if len(fields) != parts || !validID(fields[0]) || !validID(fields[1]) || fields[2] == "" {
		return "", "", false
	}
	return hangar.UserID(fields[0]), hangar.TokenID(fields[1]), true
}

// refreshText makes a new refresh token of a grant. All tokens of the grant begin with the same
// secret family, which tells a replaced token from a forged one.
func refreshText(id hangar.TokenID, family []byte) string {
	return refreshPrefix + string(id) + "_" + base64.RawURLEncoding.EncodeToString(append(family[:familyBytes:familyBytes], random.Bytes(secretBytes)...))
}

// parseRefresh returns the grant and the family of a refresh token; false if text is none.
func parseRefresh(text string) (id hangar.TokenID, family []byte, ok bool) {
	rest, ok := strings.CutPrefix(text, refreshPrefix)
	if !ok || len(text) > hangar.MaxOAuthParameter {
		return "", nil, false
	}
	name, secret, ok := strings.Cut(rest, "_")
	if !ok || !validID(name) {
		return "", nil, false
	}
	b, err := base64.RawURLEncoding.DecodeString(secret)
	if err != nil || len(b) != familyBytes+secretBytes {
		return "", nil, false
	}
	return hangar.TokenID(name), b[:familyBytes], true
}

// idOf returns the id in the text of a token of package auth.
func idOf(text string) (hangar.TokenID, bool) {
	if len(text) > hangar.MaxOAuthParameter {
		return "", false
	}
	const parts = 3
	fields := strings.SplitN(text, "_", parts)
	if len(fields) != parts || !validID(fields[1]) {
		return "", false
	}
	return hangar.TokenID(fields[1]), true
}

// proves reports whether a verifier matches an S256 challenge (RFC 7636, section 4.6).
func proves(verifier, challenge string) bool {
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}
