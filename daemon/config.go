package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/host/image"
	hostmachines "github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/mesh"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/metrics/store"
)

// How Machines run.
const (
	DriverGvisor = "gvisor"
	DriverFake   = "fake" // pretends, and needs no root
)

// ConfigFile, in the data directory, has the config with which the daemon was last started.
const ConfigFile = "daemon.json"

// The defaults and the bounds of the edge.
const (
	acmeOff     = "off"
	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

	defaultDrain      = 10 * time.Second
	maxDrain          = time.Hour
	defaultReplayBody = 1 << 20
	maxReplayBody     = 64 << 20
)

const (
	defaultPeers = ":51820"
	wireguardOff = "off"

	metricsOff = "off"

	limitsOff    = "off"
	limitsPublic = "public"

	// maxDirBytes leaves room for the names of sockets below the directory, whose
	// whole path the kernel limits to 107 bytes.
	maxDirBytes = 64
	// maxRateLimits is as good as no limit.
	maxRateLimits = 100_000
)

// Config is the config of a daemon. Its zero values are not the defaults: see DefaultConfig.
type Config struct {
	Dir string `json:"dir"` // absolute; everything the daemon keeps
	API string `json:"api"` // host:port to serve the API on; port 0 picks one
	// TLSCert and TLSKey are files with which the API speaks TLS. APITLS makes it use the certificate
	// of its public name instead. APIInsecure allows plain HTTP wherever the API listens.
	TLSCert     string        `json:"api_tls_cert,omitempty"`
	TLSKey      string        `json:"api_tls_key,omitempty"`
	APITLS      bool          `json:"api_tls,omitempty"`
	APIInsecure bool          `json:"api_insecure,omitempty"`
	HTTP        string        `json:"http"`   // address of the public edge, for ports 80 of Apps
	HTTPS       string        `json:"https"`  // address of the public edge, for ports 443 of Apps
	Region      hangar.Region `json:"region"` // of this server
	Domain      string        `json:"domain"` // below which Apps get their public names
	Driver      string        `json:"driver"` // how Machines run: DriverGvisor or DriverFake
	Etcd        []string      `json:"etcd,omitempty"`
	// Cluster is host:port to listen on for other hosts. Empty: the server is alone, unless it has been
	// part of a cluster. ClusterAddress is the address that the others use; empty: detected.
	// ClusterMembers is how many hosts hold a member of the state; 0: state.DefaultSeats.
	Cluster        string `json:"cluster,omitempty"`
	ClusterAddress string `json:"cluster_address,omitempty"`
	ClusterMembers int    `json:"cluster_members,omitempty"`
	// Join is the URL of a host whose cluster this server joins, with JoinToken, on its first start.
	Join       string           `json:"-"`
	JoinToken  hangar.Sensitive `json:"-"`
	HostName   string           `json:"host_name,omitempty"` // empty: the hostname of the server
	Zone       string           `json:"zone,omitempty"`      // of the region
	Engine     string           `json:"engine,omitempty"`    // sandbox binary; empty: the one in this binary
	Limits     string           `json:"rate_limits"`         // see rateLimits
	OIDC       string           `json:"oidc_url,omitempty"`  // the URL below which the issuers of identity tokens are; empty: at the public name
	OIDCPeriod time.Duration    `json:"oidc_rotate_every"`   // nanoseconds
	Peers      string           `json:"wireguard"`           // see wireguardPort
	// PeerEndpoint is the name or address that WireGuard peers call; empty: the one by
	// which the API was called.
	PeerEndpoint string `json:"wireguard_endpoint,omitempty"`
	// MeshPort is the UDP port of the private network between the hosts of a cluster; 0: any free one.
	MeshPort int `json:"mesh_port"`

	AllowEgress []string `json:"allow_egress,omitempty"` // see egress

	// How many times the server's resources are promised to running Machines; 0: the default.
	MemoryOvercommit float64 `json:"memory_overcommit,omitempty"`
	CPUOvercommit    float64 `json:"cpu_overcommit,omitempty"`

	Quotas []string `json:"quotas,omitempty"` // KEY=VALUE, of organizations that have none of their own

	DiskReserve       int64   `json:"disk_reserve,omitempty"`        // MiB of the disk that tenants must leave free; 0: depends on its size
	VolumeOvercommit  float64 `json:"volume_overcommit,omitempty"`   // how many times the room for volumes is promised; 0: once
	Snapshots         string  `json:"snapshots,omitempty"`           // where they are kept, see package archive; empty: below Dir
	VolumesPerMachine int     `json:"volumes_per_machine,omitempty"` // 0: one

	RootfsSize      int  `json:"rootfs_size,omitempty"` // GiB of a Machine's writable layer, unless its config says; 0: rootfs.DefaultSize
	RootfsUnbounded bool `json:"rootfs_unbounded,omitempty"`

	HTTP3      bool          `json:"http3,omitempty"`       // also on the UDP port of HTTPS
	SharedIPv4 string        `json:"shared_ipv4,omitempty"` // see sharedIPv4
	IPv4Pool   string        `json:"ipv4_pool,omitempty"`   // prefixes, separated by commas; empty: addresses of the loopback
	IPv6Pool   string        `json:"ipv6_pool,omitempty"`   // prefixes, separated by commas; empty: unique local addresses
	ACME       string        `json:"acme,omitempty"`        // the directory of an ACME server, or acmeOff
	ACMEEmail  string        `json:"acme_email,omitempty"`
	ACMERoot   string        `json:"acme_root,omitempty"` // a file; empty: the system's
	Drain      time.Duration `json:"drain,omitempty"`     // nanoseconds that requests have to end
	// ClientConns is how many connections to the edge one client may have open, and
	// ClientHandshakes how many TLS handshakes a second it may begin; 0: as many as usual.
	ClientConns      int `json:"client_connections,omitempty"`
	ClientHandshakes int `json:"client_handshakes,omitempty"`

	AllowRegistry    []string      `json:"allow_registry,omitempty"`            // see registries
	AllowWebhook     []string      `json:"allow_webhook,omitempty"`             // see webhookTargets
	HostRegistryAuth bool          `json:"host_registry_credentials,omitempty"` // all pulls may use Options.DockerConfig
	ImageSizeGB      int           `json:"image_size_gb,omitempty"`             // of an image, unpacked; 0: as usual
	ImageRatio       int           `json:"image_ratio,omitempty"`               // see image.Limits; 0: as usual
	PullTimeout      time.Duration `json:"pull_timeout,omitempty"`              // nanoseconds; 0: as usual
	PullRate         int           `json:"pull_min_rate,omitempty"`             // bytes a second; 0: as usual

	ReplayBody int64 `json:"replay_body,omitempty"` // bytes, see edge.Options
	// TrustHostnames accepts every hostname that an App claims, without a proof.
	TrustHostnames bool `json:"trust_hostnames,omitempty"`

	StaticsURL string `json:"statics_url,omitempty"` // of the S3 service that has static files
	// AutostopAfter is how long a Machine has to be idle before it is stopped, in nanoseconds, unless
	// its services say.
	AutostopAfter time.Duration `json:"autostop_after,omitempty"`

	// MetricsURL is the vmselect of a VictoriaMetrics cluster that keeps the series of organizations.
	// MetricsWriteURL is its vminsert, if that is elsewhere. Empty: this daemon's own store keeps them
	// for MetricsRetention, in nanoseconds. metricsOff: nothing is measured.
	MetricsURL       string        `json:"metrics_url,omitempty"`
	MetricsWriteURL  string        `json:"metrics_write_url,omitempty"`
	MetricsRetention time.Duration `json:"metrics_retention,omitempty"`
	// MetricsCA is a file with the authorities of that cluster's certificate. MetricsCert and
	// MetricsKey are files with the certificate that this daemon presents. Empty: the system's
	// authorities, and no certificate.
	MetricsCA       string `json:"metrics_ca,omitempty"`
	MetricsCert     string `json:"metrics_cert,omitempty"`
	MetricsKey      string `json:"metrics_key,omitempty"`
	MetricsOriginal bool   `json:"metrics_original_names,omitempty"` // every series also under its name of the public platform

	SMTP     string `json:"smtp,omitempty"`      // the server that sends e-mail for alerts, see notify.ParseMail; empty: none is sent
	SMTPFrom string `json:"smtp_from,omitempty"` // the address that e-mail comes from

	// LoginOIDC is the issuer of the OpenID Connect provider with which users may sign in (see
	// openid.CheckIssuer), and LoginOIDCClient the id of this platform there. Empty: users have only
	// passwords.
	LoginOIDC           string `json:"login_oidc,omitempty"`
	LoginOIDCClient     string `json:"login_oidc_client,omitempty"`
	LoginOIDCSecretFile string `json:"login_oidc_secret_file,omitempty"` // empty: the client has no secret

	ForgetSecrets bool `json:"-"` // start even if the keys of encrypted values are lost
}

// DefaultConfig is the config of a daemon that serves one region on the usual ports. It lacks
// the data directory.
func DefaultConfig() Config {
	conns := listen.DefaultLimits()
	return Config{
		API: "127.0.0.1:4280", HTTP: ":80", HTTPS: ":443", Region: "loc", Domain: "hangar.localhost", Driver: DriverGvisor,
		Limits: limitsOff, OIDCPeriod: oidc.DefaultPeriod, Peers: defaultPeers,
		MemoryOvercommit: hostmachines.DefaultMemoryOvercommit, CPUOvercommit: hostmachines.DefaultCPUOvercommit,
		VolumeOvercommit: 1, VolumesPerMachine: 1, RootfsSize: rootfs.DefaultSize >> 30,
		ACME: letsEncrypt, Drain: defaultDrain, ClientConns: conns.ClientConns, ClientHandshakes: conns.ClientRate,
		ReplayBody: defaultReplayBody, AutostopAfter: hangar.DefaultAutostopAfter,
		MetricsRetention: store.DefaultRetention,
		MeshPort:         mesh.DefaultPort,
		ImageSizeGB:      image.DefaultUnpackedBytes >> 30, ImageRatio: image.DefaultRatio, PullTimeout: image.DefaultPullTime, PullRate: image.DefaultMinRate,
	}
}

// save records the config in its data directory. An unchanged config needs no room on the disk.
func (c *Config) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteChanged(filepath.Join(c.Dir, ConfigFile), append(b, '\n'), 0o600)
}

// LoadConfig reads the config with which the daemon of a data directory was last started. A directory
// without one is not a data directory.
func LoadConfig(dir string) (Config, error) {
	var c Config
	path := filepath.Join(dir, ConfigFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, hint.With(fmt.Errorf("%s is not the data directory of a daemon: %w", dir, err), "name the right one with --dir")
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	c.Dir = dir // the directory may have been moved
	return c, nil
}
