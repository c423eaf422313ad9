// Package control decides: who owns an App, what a Machine is called and which
// host shall run it.
//
// Promises. Every decision is one transaction of the cluster state: a name is
// given to one Machine, a number to one network, for ever. A Machine is reserved
// in the state before a host is asked to make it and confirmed afterwards; an
// answer is sent only when both are durable. What a crash leaves half done, a
// reservation without a Machine or an App without all of its Machines, is found
// and finished by Open, or when somebody stumbles on it. Every method of the
// services requires a principal; what is for everybody is Issuer alone. What a caller may not see is not found, in the same
// words and after the same work as what is not there; see access.go.
//
// Concurrency. All types are safe for concurrent use. The package keeps nothing in
// memory but which creations are under way in this process, so that several
// control planes may share one state; it starts no goroutine that outlives a call.
// On a store that NewMirror made, reads come from memory and go on while the state
// cannot be reached; what state.Mirror promises of them is enough, because every
// decision compares the revisions of what it was made by.
//
// It does not own Machines and volumes: their config, state and events are their host's,
// which is asked, and which publishes a row of each; see Rows. It is not on the path of
// requests to Machines and speaks no HTTP.
package control

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Keys of log records.
const (
	keyApp      = "app"
	keyMachine  = "machine"
	keyVolume   = "volume"
	keyHost     = "host"
	keyKey      = "key"
	keyPeer     = "peer"
	keyAddress  = "address"
	keyHostname = "hostname"
	keyError    = "err"
)

// NewMirror returns a copy in memory of all of a state that control reads to answer
// requests: everything but the rows of Machines, which are most of a state and which
// the edge keeps for itself.
func NewMirror(store state.Store, log *slog.Logger) *state.Mirror {
	return state.NewMirror(state.MirrorConfig{Store: store, Except: []string{hostsPrefix}, Log: log})
}

// Config is what control needs.
type Config struct {
	Store   state.Store
	Tokens  *auth.Tokens // of the same state, and open
	Issuer  *oidc.Issuer // of the same state
	Agents  hangar.Agents
	Peers   hangar.PeerHost  // the gateway of this process; nil: there is none
	Routes  hangar.RouteHost // the edge of this process; nil: there is none
	EdgeLog hangar.EdgeLog   // the same; nil: there is none
	// Certificates is what the edge of this process knows of certificates; nil: there is none.
	Certificates hangar.CertificateHost
	// Resolver is what names are looked up by. Nil: the system's.
	Resolver Resolver
	// TrustHostnames takes every claim of a Hostname for proven, on a server whose users trust
	// each other.
	TrustHostnames bool
	// Roots are those whose certificates prove a Hostname. Nil: the system's.
	Roots *x509.CertPool
	// Doors are names of the platform's own that are not below the domain of Apps.
	Doors []hangar.Hostname
	// Addresses is what Apps get their public addresses from.
	Addresses AddressPools
	// Quotas are the limits of organizations that have none of their own.
	Quotas QuotaDefaults
	Keys   *keyset.Keyset
	Sealed []hangar.Resealer // what else than the state holds values that Keys encrypted
	Region hangar.Region     // of Machines whose creator names none
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Control is the control plane; its methods return the services it offers.
type Control struct {
	store        state.Store
	tokens       *auth.Tokens
	issuer       *oidc.Issuer
	agents       hangar.Agents
	peers        hangar.PeerHost
	routes       hangar.RouteHost
	pools        AddressPools
	certificates hangar.CertificateHost
	resolver     Resolver
	trustNames   bool
	roots        *x509.CertPool
	doors        []hangar.Hostname
	lookups      *lookups
	tended       tended
	edge         hangar.EdgeLog
	region       hangar.Region
	log          *slog.Logger
	now          func() time.Time
	rows         *Rows
	vault        *vault
	ledger       *ledger
	sealed       []hangar.Resealer

	mu       sync.Mutex
	creating map[hangar.MachineID]struct{} // guarded by mu: creations of this process that are under way
}

// New returns a Control that has read nothing yet.
func New(cfg Config) *Control {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	rows := NewRows(cfg.Store, cfg.Log)
	rows.SetQuotas(cfg.Quotas)
	return &Control{
		store: cfg.Store, tokens: cfg.Tokens, issuer: cfg.Issuer, agents: cfg.Agents, peers: cfg.Peers,
		routes: cfg.Routes, edge: cfg.EdgeLog, pools: cfg.Addresses, certificates: cfg.Certificates, resolver: cfg.Resolver, trustNames: cfg.TrustHostnames, roots: cfg.Roots, doors: cfg.Doors, lookups: newLookups(), region: cfg.Region, log: cfg.Log, now: cfg.Now,
		rows: rows, ledger: rows.ledger, creating: map[hangar.MachineID]struct{}{},
		vault: &vault{store: cfg.Store, keys: cfg.Keys, log: cfg.Log}, sealed: cfg.Sealed,
	}
}

// Open makes what every server has, the organization hangar.OrgPersonal and its
// default network, and finishes what a crash left half done. For that it asks the
// hosts, so the agent of this process must be open. Hosts that cannot be reached
// do not keep it from succeeding; a state that was encrypted with other keys does.
func (c *Control) Open(ctx context.Context) error {
	if err := c.vault.check(ctx); err != nil {
		return fmt.Errorf("open control: %w", stateError(err))
	}
	c.healRotation(ctx)
	if err := c.ensureOrg(ctx, hangar.OrgCreate{Slug: hangar.OrgPersonal, Name: "Personal"}); err != nil {
		return fmt.Errorf("open control: %w", err)
	}
	if err := c.heal(ctx); err != nil {
		return fmt.Errorf("open control: %w", err)
	}
	return nil
}

// Orgs returns the service of organizations.
func (c *Control) Orgs() *Orgs { return &Orgs{c} }

// Tokens returns the service of tokens.
func (c *Control) Tokens() *Tokens { return &Tokens{c} }

// Apps returns the service of Apps.
func (c *Control) Apps() *Apps { return &Apps{c} }

// Machines returns the service of Machines.
func (c *Control) Machines() *Machines { return &Machines{c} }

// Logs returns the service of logs.
func (c *Control) Logs() *Logs { return &Logs{c} }

// Platform returns the service of the platform as a whole.
func (c *Control) Platform() *Platform { return &Platform{c} }

// Images returns the service of images.
func (c *Control) Images() *Images { return &Images{c} }

// Repositories returns the service of who may use the built-in registry.
func (c *Control) Repositories() *Repositories { return &Repositories{c} }

// Secrets returns the service of Apps' secrets.
func (c *Control) Secrets() *Secrets { return &Secrets{c} }

// SecretKeys returns the service of Apps' secret keys.
func (c *Control) SecretKeys() *SecretKeys { return &SecretKeys{c} }

// Registries returns the service of credentials for registries.
func (c *Control) Registries() *Registries { return &Registries{c} }

// Peers returns the service of WireGuard peers.
func (c *Control) Peers() *Peers { return &Peers{c} }

// Addresses returns the service of Apps' addresses.
func (c *Control) Addresses() *Addresses { return &Addresses{c} }

// Certificates returns the service of custom hostnames and their certificates.
func (c *Control) Certificates() *Certificates { return &Certificates{c} }

// Encryption returns the service of the encryption key.
func (c *Control) Encryption() *Encryption { return &Encryption{c} }

// Identity returns the service of identity tokens and the keys that sign them.
func (c *Control) Identity() *Identity { return &Identity{c} }

// Issuer returns what those who verify identity tokens ask. Unlike the services it
// requires no principal.
func (c *Control) Issuer() hangar.IdentityIssuer { return issuer{c} }

// stateError turns an error of the store into one for the user. The end of a
// context stays what it is.
func stateError(err error) error {
	var e *hangar.Error
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, state.ErrInvalid) { // repeating it cannot help
		return &hangar.Error{Code: hangar.CodeInvalid, Message: "The cluster state does not take this, it may be too large", Err: err}
	}
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "The cluster state cannot be reached", Err: err}
}

// unreachable reports whether err says that a host could not be asked, as opposed
// to what it answered.
func unreachable(err error) bool {
	switch hangar.CodeOf(err) {
	case hangar.CodeUnavailable, hangar.CodeTimeout:
		return hangar.ReasonOf(err) == ""
	default:
		return false
	}
}

// agent finds a host. One that is unknown is as good as one that is away: it may
// have been known yesterday and be so again tomorrow.
func (c *Control) agent(id hangar.HostID) (hangar.Agent, error) {
	agent, err := c.agents.Agent(id)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		err = &hangar.Error{Code: hangar.CodeUnavailable, Message: "The host of the machine is not known", Err: err}
	}
	return agent, err
}
