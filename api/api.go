package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/election"
	"github.com/hangar-platform/hangar/api/extension"
	"github.com/hangar-platform/hangar/api/graphql"
	"github.com/hangar-platform/hangar/api/host"
	"github.com/hangar-platform/hangar/api/latency"
	"github.com/hangar-platform/hangar/api/longpoll"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/openapi/reference"
	"github.com/hangar-platform/hangar/api/release"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/signon"
	"github.com/hangar-platform/hangar/api/webhook"
)

// The bounds of a connection; see the package comment.
const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Config is what an API serves. Every field is required but Registry, RegistryName, OAuth, Sessions,
// OAuthIssuer, OpenID, Hosts, Metrics, MetricsScopes, Series, Alerts, Extensions, RateLimits and
// AppURL.
type Config struct {
	Orgs         hangar.OrgService
	Tokens       hangar.TokenService
	Users        hangar.UserService
	SignIns      hangar.SignInService
	Apps         hangar.AppService
	Machines     hangar.MachineService
	Logs         hangar.LogService
	Images       hangar.ImageService
	Platform     hangar.PlatformService
	Secrets      hangar.SecretService
	SecretKeys   hangar.SecretKeyService
	Registries   hangar.RegistryService
	Encryption   hangar.EncryptionService
	Identity     hangar.IdentityService
	SigningKeys  hangar.SigningKeyService
	Issuer       hangar.IdentityIssuer
	Peers        hangar.PeerService
	Volumes      hangar.VolumeService
	Addresses    hangar.AddressService
	Auth         hangar.Authenticator
	Certificates hangar.CertificateService
	Webhooks     hangar.WebhookService
	Releases     hangar.ReleaseService
	Elections    hangar.ElectionService
	// Hosts are the servers of the platform. Nil: there are no such routes.
	Hosts hangar.HostService
	// ImageResolver and SSH answer requests that only GraphQL has.
	ImageResolver hangar.ImageResolver
	SSH           hangar.SSHService
	// MetricsScopes and Series answer queries of series. Nil: there are no such routes.
	MetricsScopes hangar.MetricsService
	Series        hangar.SeriesQuerier
	// Alerts keeps rules. Nil: there are no such routes.
	Alerts hangar.AlertService
	// Extensions serves the extensions of Apps and their providers. Zero: there are no such routes.
	Extensions extension.Services
	// OAuth and Sessions sign users in with a browser, under the name OAuthIssuer: see package signon.
	// Nil: there are no such routes.
	OAuth       hangar.OAuthService
	Sessions    hangar.SessionService
	OAuthIssuer string
	// OpenID is a provider at which users may sign in instead. Nil: there is none.
	OpenID signon.OpenID
	// Registry is mounted at /v2/ and authenticates requests itself. Nil: there is none.
	Registry http.Handler
	// RegistryName is the host that references to images of Registry begin with. Empty:
	// that of the API.
	RegistryName string
	// Metrics are the series that administrators read at /metrics. Nil: there is no such route.
	Metrics    prometheus.Gatherer
	RateLimits router.RateLimits
	// AppURL is where the edge serves an App under its name. Nil: there is no edge.
	AppURL  func(hangar.AppName) string
	Region  hangar.Region
	Version string
	Log     *slog.Logger
}

// server holds what handlers share. All but seated is never changed after New.
type server struct {
	Config
	*router.Router
	attempts *attempts       // at passwords
	waits    *longpoll.Waits // those beyond maxSeated
	seated   atomic.Int64    // waits that have a goroutine; see maxSeated
	// document and reference are made once, on the first request for them.
	document  func() *openapi.Document
	reference func() ([]byte, error)
}

// Handler answers the requests of an API, and counts them.
type Handler struct {
	*latency.Counts

	server *server
	chain  http.Handler
}

// New returns the handler of the API. It does no I/O and starts nothing.
func New(config Config) *Handler {
	s := newServer(config)
	chain, counts := s.Chain()
	return &Handler{Counts: counts, server: s, chain: chain}
}

func newServer(config Config) *server {
	s := &server{
		Config: config,
		Router: router.New(router.Config{
			Auth: config.Auth, RateLimits: config.RateLimits, Region: config.Region, Params: pathParams, Commands: commands, Absent: absent, Log: config.Log,
		}),
		attempts: newAttempts(time.Now), waits: longpoll.New(router.EndTimeout, parkedResponse),
	}
	s.document = sync.OnceValue(s.describe)
	s.reference = sync.OnceValues(func() ([]byte, error) { return reference.HTML(s.document(), documentPath) })
	s.routes()
	return s
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.chain.ServeHTTP(w, r) }

// Drain ends the waits whose connections the handler has taken over, because http.Server.Shutdown does
// not know them. It answers that the server is shutting down, and returns when they are closed or ctx
// ends. From then on, no connection is taken over.
func (h *Handler) Drain(ctx context.Context) { h.server.waits.Drain(ctx) }

// Server returns an http.Server for handler with the bounds that keep slow clients
// from holding connections. The caller serves and shuts it down.
func Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}

// The paths of Machines.
const (
	machines = "/v1/apps/{app}/machines"
	machine  = machines + "/{machine}"
)

// registryPath is the path below which the registry answers.
const registryPath = "/v2/"

func (s *server) routes() {
	s.orgRoutes()
	s.tokenRoutes()
	s.userRoutes()
	s.appRoutes()
	s.machineRoutes()
	s.readRoutes()
	s.metadataRoutes()
	s.busyRoutes()
	s.leaseRoutes()
	s.execRoutes()
	s.tunnelRoutes()
	s.logRoutes()
	s.imageRoutes()
	s.secretRoutes()
	s.secretKeyRoutes()
	s.registryRoutes()
	s.encryptionRoutes()
	s.identityRoutes()
	s.peerRoutes()
	s.volumeRoutes()
	s.addressRoutes()
	s.certificateRoutes()
	s.platformRoutes()
	s.metricsRoutes()
	s.seriesRoutes()
	s.alertRoutes()
	webhook.Routes(s.Router, s.Webhooks)
	if s.Hosts != nil {
		host.Routes(s.Router, s.Hosts)
	}
	release.Routes(s.Router, release.Services{Releases: s.Releases, Apps: s.Apps})
	election.Routes(s.Router, s.Elections)
	graphql.Routes(s.Router, graphql.Services{
		Orgs: s.Orgs, Tokens: s.Tokens, Users: s.Users, Apps: s.Apps, Machines: s.Machines, Images: s.ImageResolver, Platform: s.Platform,
		Secrets: s.Secrets, Peers: s.Peers, Volumes: s.Volumes, Addresses: s.Addresses, Certificates: s.Certificates, Releases: s.Releases,
		SSH: s.SSH, AppURL: s.AppURL, Region: s.Region,
	})
	if s.Config.Extensions != (extension.Services{}) {
		extension.Routes(s.Router, s.Config.Extensions)
	}
	s.signOnRoutes()
	if s.Registry != nil {
		s.Mount(registryPath, steady(s.Registry))
	}
}
