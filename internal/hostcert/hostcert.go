// Package hostcert names the host of a certificate by one URI, hangar://host/ID.
//
// The package does not make or verify certificates.
package hostcert

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"

	"github.com/hangar-platform/hangar"
)

const prefix = "hangar://host/"

// URI is the URI that names a host in its certificate.
func URI(host hangar.HostID) *url.URL {
	return &url.URL{Scheme: "hangar", Host: "host", Path: "/" + string(host)}
}

// HostOf returns the host that a certificate names.
func HostOf(cert *x509.Certificate) (hangar.HostID, error) {
	if len(cert.URIs) == 1 {
		if id, ok := strings.CutPrefix(cert.URIs[0].String(), prefix); ok {
			return hangar.ParseHostID(id)
		}
	}
	return "", errors.New("the certificate names no host")
}

// Peer returns the host at the other end of a TLS connection. It returns false if no certificate of a
// host was verified.
func Peer(conn *tls.ConnectionState) (hangar.HostID, bool) {
	if conn == nil || len(conn.VerifiedChains) == 0 || len(conn.VerifiedChains[0]) == 0 {
		return "", false
	}
	host, err := HostOf(conn.VerifiedChains[0][0])
	return host, err == nil
}
