package hostnames

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// The bounds of an upload, in bytes and certificates.
const (
	maxFullchain  = 64 << 10
	maxPrivateKey = 16 << 10
	maxChain      = 10
	minRSABits    = 2048
)

// The types of blocks in PEM.
const (
	pemCertificate      = "CERTIFICATE"
	pemPrivateKeySuffix = "PRIVATE KEY"
)

// CheckUpload returns the first certificate of an upload for a hostname, or CodeInvalid naming the
// field. It never repeats the key.
func CheckUpload(u hangar.CertificateUpload, name hangar.Hostname, now time.Time) (*x509.Certificate, error) {
	fault := func(field, format string, args ...any) (*x509.Certificate, error) {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid "+field+": "+format, args...)
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
func names(leaf *x509.Certificate, name hangar.Hostname) bool {
	if !name.Wildcard() {
		return leaf.VerifyHostname(string(name)) == nil
	}
	return slices.ContainsFunc(leaf.DNSNames, func(dns string) bool { return strings.EqualFold(dns, string(name)) })
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
