package cli

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadAuthorities reads the certificates of a PEM file.
func ReadAuthorities(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--ca: %w", err)
	}
	certs, err := authorities(string(raw))
	if err != nil {
		return "", UsageErrorf("--ca %s: %w", path, err)
	}
	// Encoded again, because the file may also have a private key.
	var out strings.Builder
	for _, cert := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return out.String(), nil
}

// authorities returns the certificates of a PEM text, at least one.
func authorities(text string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("has no certificate in PEM")
	}
	return certs, nil
}

// authorityText describes certificates by name and SHA-256 fingerprint, in the format of
// openssl x509 -fingerprint -sha256.
func authorityText(certs ...*x509.Certificate) string {
	var lines []string
	for _, cert := range certs {
		sum := sha256.Sum256(cert.Raw)
		pairs := make([]string, len(sum))
		for i, b := range sum {
			pairs[i] = fmt.Sprintf("%02X", b)
		}
		lines = append(lines, cert.Subject.String()+", SHA-256 "+strings.Join(pairs, ":"))
	}
	return strings.Join(lines, "; ")
}
