package hangar

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/idna"
)

// The bounds of an upload, in bytes and certificates.
const (
	maxHostname         = 253
	maxFullchain        = 64 << 10
	maxPrivateKey       = 16 << 10
	maxChain            = 10
	minRSABits          = 2048
	wildcard            = "*."
	maxHostnameInput    = 1024 // before it is converted
	pemCertificate      = "CERTIFICATE"
	pemPrivateKeySuffix = "PRIVATE KEY"
)

// ParseHostname returns the canonical form of a Hostname: in lower case, in the ASCII form
// of an internationalized name, and without the final dot. It answers CodeInvalid, naming
// the field hostname, for what no certificate is issued for: an address, a name of one
// label, a "*" elsewhere than in front.
func ParseHostname(text string) (Hostname, error) {
	fault := func(why string) (Hostname, error) {
		return "", Errorf(CodeInvalid, "", "invalid hostname: %.100q %s", text, why)
	}
	if text == "" {
		return "", Errorf(CodeInvalid, "", "invalid hostname: is required")
	}
	if len(text) > maxHostnameInput {
		return fault("is longer than a DNS name may be")
	}
	name := strings.TrimSuffix(text, ".")
	rest, below := strings.CutPrefix(name, wildcard)
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return fault("is an address, not a DNS name")
	}
	ascii, err := idna.Lookup.ToASCII(rest)
	if err == nil {
		_, err = idna.Lookup.ToUnicode(ascii) // invalid UTF-8 becomes a name that no client can request
	}
	if err != nil || ascii == "" || strings.HasSuffix(ascii, ".") {
		return fault("is not a DNS name: letters, digits and dashes, in labels of at most 63 characters")
	}
	labels := strings.Split(ascii, ".")
	if len(labels) < 2 {
		return fault("has a single label; a name such as www.example.com is wanted")
	}
	for _, label := range labels {
		if len(label) == 0 || len(label) > 63 {
			return fault("has a label that is empty or longer than 63 characters")
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return fault("ends in a number, as only addresses do")
	}
	if below {
		ascii = wildcard + ascii
	}
	if len(ascii) > maxHostname {
		return fault("is longer than 253 characters")
	}
	return Hostname(ascii), nil
}

// Wildcard reports whether the Hostname stands for all names one label below another.
func (h Hostname) Wildcard() bool { return strings.HasPrefix(string(h), wildcard) }

// Parent is the Hostname without its first label; empty when there is no dot.
func (h Hostname) Parent() Hostname {
	_, parent, _ := strings.Cut(string(h), ".")
	return Hostname(parent)
}

// Covering is the wildcard that stands for a Hostname.
func (h Hostname) Covering() Hostname { return wildcard + h.Parent() }

// Below reports whether the Hostname is a name below another one, at any depth.
func (h Hostname) Below(parent Hostname) bool {
	return strings.HasSuffix(string(h), "."+string(parent))
}

// Check returns the first certificate of an upload for a Hostname, or CodeInvalid naming the
// field. It never repeats the key.
func (u CertificateUpload) Check(name Hostname, now time.Time) (*x509.Certificate, error) {
	fault := func(field, format string, args ...any) (*x509.Certificate, error) {
		return nil, Errorf(CodeInvalid, "", "invalid "+field+": "+format, args...)
	}
	switch {
	case strings.TrimSpace(u.Fullchain) == "":
		return fault("fullchain", "is required: the certificate and those that sign it, in PEM")
	case len(u.Fullchain) > maxFullchain:
		return fault("fullchain", "has %d bytes, more than %d", len(u.Fullchain), maxFullchain)
	case strings.TrimSpace(u.PrivateKey) == "":
		return fault("private_key", "is required: in PEM")
	case len(u.PrivateKey) > maxPrivateKey:
		return fault("private_key", "has %d bytes, more than %d", len(u.PrivateKey), maxPrivateKey)
	}
	if why := chainFault([]byte(u.Fullchain)); why != "" {
		return fault("fullchain", "%s", why)
	}
	if why := keyFault([]byte(u.PrivateKey)); why != "" {
		return fault("private_key", "%s", why)
	}
	pair, err := tls.X509KeyPair([]byte(u.Fullchain), []byte(u.PrivateKey))
	if err != nil {
		return fault("private_key", "does not parse, or does not belong to the first certificate of fullchain")
	}
	leaf := pair.Leaf
	switch key := leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
	case *rsa.PublicKey:
		if key.N.BitLen() < minRSABits {
			return fault("fullchain", "the RSA key has %d bits, fewer than %d", key.N.BitLen(), minRSABits)
		}
	default:
		return fault("fullchain", "the key is neither ECDSA nor RSA, as browsers want it")
	}
	switch {
	case now.After(leaf.NotAfter):
		return fault("fullchain", "the certificate has expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fault("fullchain", "the certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339))
	case !names(leaf, name):
		return fault("fullchain", "the certificate is not one for %s", name)
	}
	return leaf, nil
}

// names reports whether a certificate is one for a Hostname. That for a wildcard has to name
// the wildcard.
func names(leaf *x509.Certificate, name Hostname) bool {
	if !name.Wildcard() {
		return leaf.VerifyHostname(string(name)) == nil
	}
	for _, dns := range leaf.DNSNames {
		if strings.EqualFold(dns, string(name)) {
			return true
		}
	}
	return false
}

// chainFault says what is wrong with a chain of certificates in PEM.
func chainFault(rest []byte) string {
	count := 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != pemCertificate {
			return "holds something else than certificates"
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "holds a certificate that does not parse"
		}
		count++
	}
	switch {
	case count == 0:
		return "holds no certificate in PEM"
	case count > maxChain:
		return "holds more certificates than a chain needs"
	case len(bytes.TrimSpace(rest)) > 0:
		return "does not end after a certificate"
	default:
		return ""
	}
}

// keyFault says what is wrong with a private key in PEM.
func keyFault(rest []byte) string {
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return "holds no private key in PEM"
		}
		switch {
		case block.Headers["DEK-Info"] != "" || strings.HasPrefix(block.Type, "ENCRYPTED"):
			return "is encrypted; give it without a passphrase"
		case strings.HasSuffix(block.Type, pemPrivateKeySuffix):
			return ""
		case block.Type != "EC PARAMETERS":
			return "holds something else than a private key"
		}
	}
}
