package certs

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/acmetest"
)

const kept = "www.example.com"

// keeper is a Certs whose ACME server is away, with the files of a certificate for kept.
func keeper(t *testing.T) (c *Certs, chain, key string) {
	t.Helper()
	c = New(Options{Dir: t.TempDir(), Directory: "http://127.0.0.1:1/dir", Pace: DefaultPace(), RenewalRatio: 0.3})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	table := emptyTable()
	table.wanted[kept] = "a"
	c.table.Store(table)
	names := certmagic.StorageKeys
	return c, names.SiteCert(c.issuer.IssuerKey(), kept), names.SitePrivateKey(c.issuer.IssuerKey(), kept)
}

func pairFor(t *testing.T, until time.Duration) (chain, key []byte) {
	t.Helper()
	return acmetest.SelfSigned(t, kept, time.Now().Add(-time.Hour), time.Now().Add(until))
}

func (c *Certs) store(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := c.issuer.storage.Store(context.Background(), file, data); err != nil {
		t.Fatal(err)
	}
}

// TestCertificateThatCannotBeRead: it stays, and no other is ordered, until it can be read.
func TestCertificateThatCannotBeRead(t *testing.T) {
	c, chainFile, keyFile := keeper(t)
	chain, key := pairFor(t, 1000*time.Hour)
	c.store(t, keyFile, key)
	c.store(t, chainFile, chain)
	path := c.issuer.storage.Filename(keyFile)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if next, again := c.fulfil(t.Context(), kept); !again || !next.After(time.Now()) {
		t.Errorf("it is read again at %s, %t", next, again)
	}
	if c.attempts.get(kept) != nil {
		t.Error("another one was ordered")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	c.fulfil(t.Context(), kept)
	if e := c.table.Load().issued[kept]; e == nil || e.sum != sumOf(chain, key) {
		t.Error("the certificate is not served once it can be read")
	}
}

// TestPairAtAnyTime: a crash between the writes of a renewed certificate leaves the old one or the new one.
func TestPairAtAnyTime(t *testing.T) {
	c, chainFile, keyFile := keeper(t)
	oldChain, oldKey := pairFor(t, time.Hour)
	newChain, newKey := pairFor(t, 2*time.Hour)
	have := func(when string, chain, key []byte) {
		t.Helper()
		if e, err := c.readIssued(kept); err != nil || e.sum != sumOf(chain, key) {
			t.Errorf("%s: %v", when, err)
		}
	}
	c.store(t, keyFile, oldKey)
	c.store(t, chainFile, oldChain)
	have("at first", oldChain, oldKey)
	c.store(t, keyFile, newKey)
	have("with the new key alone", oldChain, oldKey)
	if err := c.issuer.storage.FileStorage.Store(t.Context(), chainFile, newChain); err != nil { // and the end of the process
		t.Fatal(err)
	}
	have("with the new chain", newChain, newKey)
	have("after that", newChain, newKey)

	c.store(t, keyFile, oldKey)
	if err := c.issuer.storage.Delete(t.Context(), keyFile); err != nil { // as certmagic does when it could not store the chain
		t.Fatal(err)
	}
	have("after a chain that could not be stored", newChain, newKey)
}

// sharer is a lock that shares nothing, and has what was stored last.
type sharer struct {
	hangar.CertificateLock

	stored json.RawMessage
}

func (s *sharer) Context() context.Context { return context.Background() }

func (s *sharer) StoreShared(_ context.Context, _ string, value json.RawMessage) error {
	s.stored = value
	return nil
}

// TestSharedCertificateOnAFullDisk: it is served nevertheless, shared again if necessary, and written once the disk has
// room.
func TestSharedCertificateOnAFullDisk(t *testing.T) {
	c, chainFile, keyFile := keeper(t)
	oldChain, oldKey := pairFor(t, 500*time.Hour)
	c.store(t, keyFile, oldKey)
	c.store(t, chainFile, oldChain)
	full := c.issuer.storage.Filename(keyFile) + nextExt
	if err := os.Mkdir(full, 0o700); err != nil { // in place of the file
		t.Fatal(err)
	}
	chain, key := pairFor(t, 1000*time.Hour)
	e, err := c.adopt(t.Context(), kept, &sharedCertificate{Chain: string(chain), Key: string(key)})
	if err != nil {
		t.Fatal(err)
	}
	if served := c.table.Load().issued[kept]; served != e || e.sum != sumOf(chain, key) {
		t.Error("the certificate is not served")
	}
	var lock sharer
	if err := c.giveIssued(&lock, orderRequest{name: kept, org: "a"}, e); err != nil {
		t.Error(err)
	}
	var given sharedCertificate
	if err := json.Unmarshal(lock.stored, &given); err != nil || given.Chain != string(chain) || given.Key != string(key) {
		t.Errorf("another certificate is shared: %v", err)
	}
	if next, again := c.fulfil(t.Context(), kept); !again || next.After(time.Now().Add(time.Minute)) {
		t.Errorf("it is written again at %s, %t", next, again)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	next, _ := c.fulfil(t.Context(), kept)
	if on, err := c.readIssued(kept); err != nil || on.sum != e.sum {
		t.Errorf("the certificate is not on the disk: %v", err)
	}
	if !next.Equal(e.renewAt(c.options.RenewalRatio)) {
		t.Errorf("the next step is at %s", next)
	}
}

// TestFilesOfAnotherCertificate: what is on the disk in place of a certificate is not shared as that one.
func TestFilesOfAnotherCertificate(t *testing.T) {
	c, chainFile, keyFile := keeper(t)
	chain, key := pairFor(t, 500*time.Hour)
	c.store(t, keyFile, key)
	c.store(t, chainFile, chain)
	e, err := newEntry(pairFor(t, 1000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var lock sharer
	if err := c.giveIssued(&lock, orderRequest{name: kept, org: "a"}, e); err == nil || lock.stored != nil {
		t.Errorf("%s is shared, %v", lock.stored, err)
	}
}
