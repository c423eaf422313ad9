// Package control makes the decisions of the platform: who owns an App, what a Machine is called and which host runs
// it.
//
// Promises. Every decision is one transaction of the cluster state: a name belongs to one Machine at a time, and the
// number of a network is never reused. A Machine is reserved in the state before a host is asked to make it and
// confirmed afterwards; an answer is sent only when both are durable. Open finishes what a crash interrupted, such as
// a reservation without a Machine or an App without all of its Machines, and so does a later call that finds it.
// Every method of the services requires a principal, except those of Issuer, SignIns, Sessions, OAuth and Hooks. What
// a caller may not see is not found, in the same words and after the same work as a missing thing; see package
// tenants.
//
// Concurrency. All types are safe for concurrent use. The package keeps nothing in memory but the creations under way
// in this process, so several control planes may share one state; it starts no goroutine that outlives a call. On a
// store that NewMirror made, reads come from memory and work while the state cannot be reached; the promises of
// state.Mirror are enough, because every decision compares the revisions of what it read.
//
// It does not own Machines and volumes: their hosts keep their config, state and events, answer for them, and publish
// a row of each; see Rows. It is not on the path of requests to Machines and speaks no HTTP.
package control

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/alerts"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/elections"
	"github.com/hangar-platform/hangar/control/extensions"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/oauth"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/releases"
	"github.com/hangar-platform/hangar/control/sshca"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/control/webhooks"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Keys of log records.
const (
	keyApp     = "app"
	keyMachine = "machine"
	keyVolume  = "volume"
	keyHost    = "host"
	keyKey     = "key"
	keyPeer    = "peer"
	keyError   = "error"
)

// NewMirror returns a copy in memory of all of a state that control reads to answer
// requests: everything but the rows of Machines, which are most of a state and which
// the edge keeps for itself.
func NewMirror(store state.Store, log *slog.Logger) *state.Mirror {
	return state.NewMirror(state.MirrorConfig{Store: store, Except: []string{state.ACMEPrefix, state.HostsPrefix}, Log: log})
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
	// Certificates is the state of certificates at the edge of this process; nil: there is none.
	Certificates hangar.CertificateHost
	// Resolver looks names up. Nil: the system's.
	Resolver hostnames.Resolver
	// TrustHostnames accepts every claim of a Hostname without proof, for a server whose users
	// trust each other.
	TrustHostnames bool
	// Roots are those whose certificates prove a Hostname. Nil: the system's.
	Roots *x509.CertPool
	// Doors are names of the platform's own that are not below the domain of Apps.
	Doors []hangar.Hostname
	// Addresses are the pools of Apps' public addresses.
	Addresses addresses.Pools
	// Quotas are the limits of organizations that have none of their own.
	Quotas ledger.Defaults
	Keys   *keyset.Keyset
	// Sole returns an error if the platform has several servers. Nil: it has one.
	Sole   func(ctx context.Context) error
	Sealed []hangar.Resealer // other places with values that Keys encrypted
	Region hangar.Region     // of Machines whose creator names none
	// Calls calls providers of extensions.
	Calls *call.Caller
	// Hooks is the URL below which their webhooks are received, without a slash at its end.
	Hooks string
	Log   *slog.Logger
	Now   func() time.Time // nil: time.Now
	// OAuthClients are the third parties that users sign in at; nil: the providers of extensions.
	OAuthClients hangar.OAuthClients
	// PasswordCost is that of users' new passwords; the zero value means users.DefaultPasswordCost.
	PasswordCost users.PasswordCost
}

// Control is the control plane: its methods return the services it offers.
type Control struct {
	// Hostnames checks custom Hostnames that are not proven yet; it requires no principal.
	Hostnames *hostnames.Hostnames
	// Provisioner carries out the steps of extensions. Neither it nor ProviderRegistry requires a
	// principal.
	Provisioner      *extensions.Provisioner
	ProviderRegistry *providers.Registry

	vault        *vault.Vault
	reservations *reservations
	unfinished   unfinished
	log          *slog.Logger
	issuer       hangar.IdentityIssuer

	orgs         *Orgs
	tokens       *Tokens
	users        *users.Users
	oauth        *oauth.Server
	apps         *Apps
	machines     *Machines
	volumes      *Volumes
	logs         *Logs
	platform     *Platform
	images       *Images
	repositories *Repositories
	releases     *releases.Releases
	elections    *elections.Elections
	ssh          *sshca.Authority
	secrets      *vault.Secrets
	secretKeys   *vault.SecretKeys
	registries   *vault.Registries
	peers        *Peers
	addresses    *addresses.Addresses
	certificates *hostnames.Certificates
	encryption   *vault.Encryption
	identity     *Identity
	metrics      *Metrics
	providers    *providers.Providers
	extensions   *extensions.Extensions
	hooks        *extensions.Hooks
	alerts       func(hangar.AlertHost) *alerts.Alerts
	webhooks     func(hangar.EventDelivery) *webhooks.Webhooks
}

// New returns a Control. It reads nothing before Open.
func New(cfg Config) *Control {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	domain := hangar.Hostname("")
	if cfg.Routes != nil {
		domain = cfg.Routes.Domain()
	}
	// Parts of the services.
	rows := NewRows(cfg.Store, cfg.Log)
	rows.SetQuotas(cfg.Quotas)
	dir, book, sealed := tenants.NewDirectory(cfg.Store), rows.ledger, vault.New(cfg.Store, cfg.Keys, cfg.Log, cfg.Sealed...)
	servers := &hosts{agents: cfg.Agents, region: cfg.Region, log: cfg.Log}
	reserved := &reservations{
		store: cfg.Store, tenants: dir, ledger: book, hosts: servers, rows: rows, log: cfg.Log, now: cfg.Now,
		creating: map[hangar.MachineID]struct{}{}, unfinished: make(unfinished, 1),
	}
	secrets := vault.NewAppSecrets(sealed, dir, book, cfg.Now)
	places := addresses.New(addresses.Config{
		Store: cfg.Store, Tenants: dir, Ledger: book, Pools: cfg.Addresses, Routes: cfg.Routes, Log: cfg.Log, Now: cfg.Now,
	})
	names := hostnames.New(hostnames.Config{
		Store: cfg.Store, Tenants: dir, Ledger: book, Vault: sealed, Addresses: places, Domain: domain, Edge: cfg.Certificates,
		Resolver: cfg.Resolver, Trust: cfg.TrustHostnames, Roots: cfg.Roots, Doors: cfg.Doors, Log: cfg.Log, Now: cfg.Now,
	})
	// The services.
	peers := &Peers{store: cfg.Store, tenants: dir, ledger: book, gateway: cfg.Peers, log: cfg.Log, now: cfg.Now}
	tokens := &Tokens{store: cfg.Store, tenants: dir, ledger: book, rows: rows, tokens: cfg.Tokens, now: cfg.Now}
	people := users.New(users.Config{
		Store: cfg.Store, Tenants: dir, Ledger: book, Tokens: cfg.Tokens, Revoke: tokens.revoke, Domain: domain, Log: cfg.Log, Now: cfg.Now,
		PasswordCost: cfg.PasswordCost,
	})
	registry := providers.New(providers.Config{Store: cfg.Store, Tenants: dir, Vault: sealed, Hooks: cfg.Hooks, Log: cfg.Log, Now: cfg.Now})
	if cfg.OAuthClients == nil {
		cfg.OAuthClients = registry
	}
	offers, provisioner, hooks := extensions.New(extensions.Config{
		Store: cfg.Store, Tenants: dir, Ledger: book, Vault: sealed, Secrets: secrets, Addresses: places, Providers: registry,
		Users: people.Upkeep(), Caller: cfg.Calls, Log: cfg.Log, Now: cfg.Now,
	})
	orgs := &Orgs{
		extensions: provisioner,
		store:      cfg.Store, tenants: dir, ledger: book, hosts: servers, rows: rows, peers: peers, tokens: cfg.Tokens, users: people.Upkeep(),
		unfinished: reserved.unfinished, log: cfg.Log,
	}
	machines := &Machines{
		store: cfg.Store, tenants: dir, hosts: servers, rows: rows, reservations: reserved, secrets: secrets,
		execs: connlimit.NewCount[hangar.OrgID](orgExecs, allExecs), log: cfg.Log, now: cfg.Now,
	}
	volumes := &Volumes{store: cfg.Store, tenants: dir, ledger: book, hosts: servers, rows: rows, log: cfg.Log, now: cfg.Now}
	apps := &Apps{
		store: cfg.Store, tenants: dir, ledger: book, hosts: servers, rows: rows, orgs: orgs, machines: machines, volumes: volumes,
		addresses: places, hostnames: names, secrets: secrets, domain: domain, log: cfg.Log, now: cfg.Now,
		extensions: provisioner, releases: releases.NewUpkeep(cfg.Store), elections: elections.NewUpkeep(cfg.Store),
		unfinished: reserved.unfinished,
	}
	return &Control{
		unfinished: reserved.unfinished, log: cfg.Log,
		Hostnames: names, Provisioner: provisioner, ProviderRegistry: registry,
		providers: providers.NewProviders(registry, provisioner.ForgetProvider), extensions: offers, hooks: hooks, vault: sealed, reservations: reserved, issuer: &issuer{tenants: dir, issuer: cfg.Issuer},
		orgs: orgs, apps: apps, machines: machines, volumes: volumes, peers: peers,
		tokens: tokens, users: people,
		oauth:      oauth.New(oauth.Config{Store: cfg.Store, Tokens: cfg.Tokens, Users: people, Clients: cfg.OAuthClients, Log: cfg.Log, Now: cfg.Now}),
		logs:       &Logs{store: cfg.Store, tenants: dir, hosts: servers, reservations: reserved, edge: cfg.EdgeLog, log: cfg.Log},
		platform:   &Platform{hosts: servers, orgs: orgs},
		images:     &Images{hosts: servers, tenants: dir},
		identity:   &Identity{tenants: dir, hosts: servers, reservations: reserved, issuer: cfg.Issuer},
		secrets:    vault.NewSecrets(secrets),
		secretKeys: vault.NewSecretKeys(secrets),
		registries: vault.NewRegistries(sealed, cfg.Now),
		encryption: vault.NewEncryption(sealed, cfg.Sole),
		addresses:  addresses.NewAddresses(places), certificates: hostnames.NewCertificates(names),
		repositories: &Repositories{dir}, releases: releases.New(cfg.Store, dir, cfg.Log, cfg.Now), ssh: sshca.New(cfg.Store, dir, sealed, cfg.Now),
		elections: elections.New(cfg.Store, dir, cfg.Now), metrics: &Metrics{dir},
		alerts: func(host hangar.AlertHost) *alerts.Alerts {
			return alerts.New(cfg.Store, dir, sealed, host, cfg.Now)
		},
		webhooks: func(delivery hangar.EventDelivery) *webhooks.Webhooks {
			return webhooks.New(cfg.Store, dir, sealed, delivery, cfg.Now)
		},
	}
}

// Open makes the organization hangar.OrgPersonal and its default network, and finishes interrupted work. For that it
// asks the hosts, so the agent of this process must be open. Work on hosts that cannot be reached is left to Run. Open
// fails for a state that was encrypted with other keys.
func (c *Control) Open(ctx context.Context) error {
	if err := c.vault.Check(ctx); err != nil {
		return fmt.Errorf("open control: %w", state.HangarError(err))
	}
	c.vault.ResumeRotation(ctx)
	if err := c.orgs.ensureOrg(ctx, hangar.OrgCreate{Slug: hangar.OrgPersonal, Name: "Personal"}); err != nil {
		return fmt.Errorf("open control: %w", err)
	}
	if err := c.users.Upkeep().Open(ctx); err != nil {
		return fmt.Errorf("open control: %w", state.HangarError(err))
	}
	if err := c.heal(ctx); err != nil {
		return fmt.Errorf("open control: %w", err)
	}
	return nil
}

// Orgs returns the service of organizations.
func (c *Control) Orgs() *Orgs { return c.orgs }

// Tokens returns the service of tokens.
func (c *Control) Tokens() *Tokens { return c.tokens }

// Users returns the service of users and their memberships.
func (c *Control) Users() *users.Users { return c.users }

// SignIns returns the service for callers without a token. Unlike the others it requires no
// principal.
func (c *Control) SignIns() hangar.SignInService { return c.users.Door() }

// Sessions returns the service of browsers' sessions, for callers without a token.
func (c *Control) Sessions() hangar.SessionService { return c.users.Door() }

// OAuth returns the rules of single sign-on, which authenticates third parties by itself.
func (c *Control) OAuth() hangar.OAuthService { return c.oauth }

// Apps returns the service of Apps.
func (c *Control) Apps() *Apps { return c.apps }

// Machines returns the service of Machines.
func (c *Control) Machines() *Machines { return c.machines }

// Volumes returns the service of volumes.
func (c *Control) Volumes() *Volumes { return c.volumes }

// Logs returns the service of logs.
func (c *Control) Logs() *Logs { return c.logs }

// Platform returns the service of the platform as a whole.
func (c *Control) Platform() *Platform { return c.platform }

// Images returns the service of images.
func (c *Control) Images() *Images { return c.images }

// Repositories returns the service of access to the built-in registry.
func (c *Control) Repositories() *Repositories { return c.repositories }

// Releases returns the service of Apps' releases.
func (c *Control) Releases() *releases.Releases { return c.releases }

// Elections returns the service of Apps' elections.
func (c *Control) Elections() *elections.Elections { return c.elections }

// SSH returns the service of SSH certificates.
func (c *Control) SSH() *sshca.Authority { return c.ssh }

// Secrets returns the service of Apps' secrets.
func (c *Control) Secrets() *vault.Secrets { return c.secrets }

// SecretKeys returns the service of Apps' secret keys.
func (c *Control) SecretKeys() *vault.SecretKeys { return c.secretKeys }

// Registries returns the service of credentials for registries.
func (c *Control) Registries() *vault.Registries { return c.registries }

// Peers returns the service of WireGuard peers.
func (c *Control) Peers() *Peers { return c.peers }

// Addresses returns the service of Apps' addresses.
func (c *Control) Addresses() *addresses.Addresses { return c.addresses }

// Certificates returns the service of custom hostnames and their certificates.
func (c *Control) Certificates() *hostnames.Certificates { return c.certificates }

// Encryption returns the service of the encryption key.
func (c *Control) Encryption() *vault.Encryption { return c.encryption }

// Identity returns the service of identity tokens and the keys that sign them.
func (c *Control) Identity() *Identity { return c.identity }

// Metrics returns the service that decides which series a caller may query.
func (c *Control) Metrics() *Metrics { return c.metrics }

// Alerts returns the service of alerts, which host evaluates.
func (c *Control) Alerts(host hangar.AlertHost) *alerts.Alerts { return c.alerts(host) }

// Webhooks returns the service of webhooks, whose events delivery delivers.
func (c *Control) Webhooks(delivery hangar.EventDelivery) *webhooks.Webhooks {
	return c.webhooks(delivery)
}

// Providers returns the service of the providers of extensions.
func (c *Control) Providers() *providers.Providers { return c.providers }

// Extensions returns the service of extensions.
func (c *Control) Extensions() *extensions.Extensions { return c.extensions }

// Hooks returns the receiver of providers' webhooks. Unlike the services it requires no principal.
func (c *Control) Hooks() *extensions.Hooks { return c.hooks }

// Issuer serves the verifiers of identity tokens. Unlike the services it requires no
// principal.
func (c *Control) Issuer() hangar.IdentityIssuer { return c.issuer }

// heal finishes interrupted work. It fails only if the state does.
func (c *Control) heal(ctx context.Context) error {
	if err := c.healTenants(ctx, func(state.Item) bool { return true }); err != nil {
		return err
	}
	reserved, err := c.reservations.heal(ctx, 0)
	if err != nil {
		return err
	}
	if err := c.healVolumes(ctx); err != nil {
		return err
	}
	return c.reservations.adoptOrphans(ctx, reserved)
}
