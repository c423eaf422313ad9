// Package hostnames decides which App has a custom Hostname, and which certificates there are for
// it.
//
// Promises. A Hostname is one App's, and is served only once something proves that the App may
// have it (docs/adr/0033-hostname-proof.md). New claims and proofs are serialized, so that none
// overlooks another. Uploads are encrypted.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state. DNS
// lookups are bounded for each organization, and for all. Run rechecks unproven claims.
//
// It issues no certificates: the edge does, which receives the wanted ones by a Feed.
package hostnames

import (
	"crypto/x509"
	"log/slog"
	"net"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
)

// Keys of log records.
const (
	keyKey      = "key"
	keyHostname = "hostname"
	keyError    = "error"
)

// Config is what Hostnames need.
type Config struct {
	Store     state.Store
	Tenants   *tenants.Directory // of the same state, like all that follows
	Ledger    *ledger.Ledger
	Vault     *vault.Vault
	Addresses *addresses.Records
	Domain    hangar.Hostname        // below which Apps have names; empty: they have none
	Edge      hangar.CertificateHost // what the edge of this process knows of certificates; nil: there is none
	Resolver  Resolver               // nil: the system's
	Trust     bool                   // every claim is taken for proven
	Roots     *x509.CertPool         // whose certificates prove a Hostname; nil: the system's
	Doors     []hangar.Hostname      // names of the platform's own that are not below Domain
	Log       *slog.Logger
	Now       func() time.Time
}

// Hostnames are the custom Hostnames of Apps in the state. The caller has checked access to the
// App.
type Hostnames struct {
	store     state.Store
	tenants   *tenants.Directory
	ledger    *ledger.Ledger
	vault     *vault.Vault
	addresses *addresses.Records
	domain    hangar.Hostname
	edge      hangar.CertificateHost
	resolver  Resolver
	trust     bool
	roots     *x509.CertPool
	doors     []hangar.Hostname
	lookups   *lookups
	tended    tended
	log       *slog.Logger
	now       func() time.Time
}

// New returns the Hostnames of a state.
func New(cfg Config) *Hostnames {
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	return &Hostnames{
		store: cfg.Store, tenants: cfg.Tenants, ledger: cfg.Ledger, vault: cfg.Vault, addresses: cfg.Addresses, domain: cfg.Domain,
		edge: cfg.Edge, resolver: cfg.Resolver, trust: cfg.Trust, roots: cfg.Roots, doors: cfg.Doors, lookups: newLookups(),
		log: cfg.Log, now: cfg.Now,
	}
}

// ServedApp returns the App that a Hostname is served for by its record; empty: nothing proves
// that any may have it.
func ServedApp(item state.Item) (hangar.AppID, error) {
	rec, err := state.Decode[hostnameRecord](item)
	if err != nil || !rec.State.served() {
		return "", err
	}
	return rec.AppID, nil
}
