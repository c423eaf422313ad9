package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hangar-platform/hangar/internal/durable"
)

// Request is a key that needs a certificate. It is kept in a file until the host has its
// certificate, so that a repeated request, after a lost answer, is recognized.
type Request struct {
	path string
	key  *ecdsa.PrivateKey
}

// OpenRequest reads the key in a file, or makes it.
func OpenRequest(path string) (*Request, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		block, _ := pem.Decode(b)
		if block == nil {
			return nil, fmt.Errorf("read %s: no key in PEM", path)
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		private, ok := key.(*ecdsa.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("read %s: no ECDSA key", path)
		}
		return &Request{path, private}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return &Request{path, key}, durable.WriteFile(path, text, 0o600)
}

// PEM is the request for a certificate (PKCS #10), which proves that the sender has the key.
func (r *Request) PEM() ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, r.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockRequest, Bytes: der}), nil
}

// Pair is the certificate that was signed for the request, with its key.
func (r *Request) Pair(certificate []byte) ([]byte, error) {
	key, err := encodeKey(r.key)
	if err != nil {
		return nil, err
	}
	pair := append(key, certificate...)
	if _, err := tls.X509KeyPair(pair, pair); err != nil {
		return nil, fmt.Errorf("the certificate is not for this server's key: %w", err)
	}
	return pair, nil
}

// Done removes the file.
func (r *Request) Done() error {
	if err := os.Remove(r.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ParseRequest reads a request in PEM and checks that its sender has the key.
func ParseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != blockRequest {
		return nil, errors.New("no certificate request in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return nil, err
	}
	if key, ok := request.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key must be one of ECDSA on P-256")
	}
	return request, nil
}

// KeyDigest is the SHA-256 of the public key of a request.
func KeyDigest(request *x509.CertificateRequest) []byte {
	sum := sha256.Sum256(request.RawSubjectPublicKeyInfo)
	return sum[:]
}
