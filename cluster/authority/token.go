package authority

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Token lets a server join. It carries the fingerprint of the cluster's authority, so that the
// server gives it to no other.
type Token struct {
	ID        hangar.JoinTokenID
	Secret    string
	Authority Fingerprint
}

// tokenPrefix lets people and secret scanners recognize a token, as others of the platform.
const tokenPrefix = "hgj"

var tokenShape = regexp.MustCompile(`^` + tokenPrefix + `_([a-z2-7]{12})_([a-z2-7]{26})_([0-9a-f]{64})$`)

// NewToken makes a token with 130 random bits.
func NewToken(authority Fingerprint) Token {
	return Token{
		ID: hangar.JoinTokenID(strings.ToLower(rand.Text()[:12])), Secret: strings.ToLower(rand.Text()), Authority: authority,
	}
}

// ParseToken reads the text of a token. The error does not repeat it.
func ParseToken(text string) (Token, error) {
	m := tokenShape.FindStringSubmatch(text)
	if m == nil {
		return Token{}, errors.New("no token for joining: `hangar host token create` on a server of the platform prints one")
	}
	return Token{hangar.JoinTokenID(m[1]), m[2], Fingerprint(m[3])}, nil
}

// String is the text of the token.
func (t Token) String() string {
	return strings.Join([]string{tokenPrefix, string(t.ID), t.Secret, string(t.Authority)}, "_")
}

// Digest is the stored form of a token: the SHA-256 of its text.
func (t Token) Digest() []byte {
	sum := sha256.Sum256([]byte(t.String()))
	return sum[:]
}
