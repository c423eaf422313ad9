package certfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// certificateFor makes a self-signed certificate, in PEM.
func certificateFor(t *testing.T, name string) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// TestFilesAreReadAgain: a renewed certificate takes effect immediately. While the file is half
// written or missing, the previous one stays in use.
func TestFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := Open(cert, key, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	version := time.Now().Add(-time.Hour)
	write := func(path string, content []byte) {
		t.Helper()
		version = version.Add(time.Second)
		if err := errors.Join(os.WriteFile(path, content, 0o600), os.Chtimes(path, version, version)); err != nil {
			t.Fatal(err)
		}
	}
	firstCert, firstKey := certificateFor(t, "first.example")
	write(cert, firstCert)
	write(key, []byte("no key"))
	if _, err := Open(cert, key, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("what is no key is taken")
	}
	write(key, firstKey)
	files, err := Open(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when, name string) {
		t.Helper()
		pair, err := files.Get(&tls.ClientHelloInfo{ServerName: "any.example"})
		if err != nil || pair.Leaf.DNSNames[0] != name {
			t.Errorf("%s: %v, %v", when, pair, err)
		}
	}
	expect("at first", "first.example")
	secondCert, secondKey := certificateFor(t, "second.example")
	write(cert, secondCert)
	expect("with the key before", "first.example")
	write(key, secondKey)
	expect("renewed", "second.example")
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	expect("without the file", "second.example")
	write(cert, firstCert[:len(firstCert)/2])
	expect("with half of it", "second.example")
	write(cert, firstCert)
	write(key, firstKey)
	expect("put back", "first.example")
}

// TestUnreadableForAMoment: a changed certificate that could not be opened once, for lack of a descriptor, is read later.
func TestUnreadableForAMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(name string, at time.Time) {
		t.Helper()
		chain, private := certificateFor(t, name)
		err := errors.Join(os.WriteFile(cert, chain, 0o600), os.WriteFile(key, private, 0o600), os.Chtimes(cert, at, at), os.Chtimes(key, at, at))
		if err != nil {
			t.Fatal(err)
		}
	}
	write("first.example", time.Now().Add(-time.Hour))
	files, err := Open(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	load := files.load
	files.load = func(string, string) (tls.Certificate, error) {
		files.load = load
		return tls.Certificate{}, &fs.PathError{Op: "open", Path: cert, Err: syscall.EMFILE}
	}
	write("second.example", time.Now())
	for _, want := range []string{"first.example", "second.example"} {
		if pair, err := files.Get(nil); err != nil || pair.Leaf.DNSNames[0] != want {
			t.Errorf("served is %v, %v, want %s", pair.Leaf.DNSNames, err, want)
		}
	}
}
