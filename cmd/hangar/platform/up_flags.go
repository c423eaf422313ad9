package platform

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar/daemon"
)

// daemonFlags adds the flags that set a daemon's config. Their defaults are the values in c.
func daemonFlags(cmd *cobra.Command, c *daemon.Config) {
	flags := cmd.Flags()
	flags.StringVar(&c.API, "api", c.API, "address to serve the API on; port 0 picks a free one")
	flags.StringVar(&c.TLSCert, "api-cert", c.TLSCert, "PEM file with the certificate of the API and its chain; reloaded when it changes")
	flags.StringVar(&c.TLSKey, "api-key", c.TLSKey, "PEM file with the private key of --api-cert")
	flags.BoolVar(&c.APITLS, "api-tls", c.APITLS, "serve the API over TLS with the certificate of its public name, api. below --domain")
	flags.BoolVar(&c.APIInsecure, "api-insecure", c.APIInsecure, "serve the API over plain HTTP to other computers, which exposes tokens to the network")
	flags.StringVar(&c.HTTP, "http", c.HTTP, "public address for HTTP, port 80 of Apps")
	flags.StringVar(&c.HTTPS, "https", c.HTTPS, "public address for HTTPS, port 443 of Apps")
	flags.StringVar((*string)(&c.Region), "region", string(c.Region), "region of this server, three letters")
	flags.StringVar(&c.Domain, "domain", c.Domain, "domain below which Apps get public names")
	flags.StringVar(&c.Driver, "driver", c.Driver, "how Machines run: gvisor, or fake for a simulation")
	flags.StringSliceVar(&c.Etcd, "etcd", c.Etcd, "endpoints of an etcd cluster that keeps the cluster state (default: embedded)")
	flags.StringVar(&c.Cluster, "cluster", c.Cluster, "address to listen on for other servers, like :4281, so that they can join (default: none can)")
	flags.StringVar(&c.ClusterAddress, "cluster-address", c.ClusterAddress, "name or address of this server for other servers (default: detected)")
	flags.IntVar(&c.ClusterMembers, "cluster-members", c.ClusterMembers, "number of servers that hold the cluster state, 3 or 5; set on the first server (default 3)")
	flags.IntVar(&c.MeshPort, "mesh-port", c.MeshPort, "UDP port of the private network between servers; 0 picks a free one")
	flags.StringVar(&c.Join, "join", c.Join, "https://HOST:4281 of a server whose platform to join, once, with --token")
	flags.StringVar(&c.HostName, "host-name", c.HostName, "name of this server in the cluster (default: its host name)")
	flags.StringVar(&c.Zone, "zone", c.Zone, "part of the region that this server is in")
	flags.StringVar(&c.Limits, "rate-limits", c.Limits, "limits on calls: off, public for those of the public platform, or N times those")
	flags.StringVar(&c.OIDC, "oidc-url", c.OIDC, "public URL below which each organization has its issuer of identity tokens (default: oidc. below --domain)")
	flags.DurationVar(&c.OIDCPeriod, "oidc-rotate-every", c.OIDCPeriod, "how long a key signs identity tokens")
	flags.StringSliceVar(&c.AllowEgress, "allow-egress", c.AllowEgress, "networks beyond the internet that Machines may reach, like 10.1.0.0/16")
	flags.StringVar(&c.Peers, "wireguard", c.Peers, "UDP port for WireGuard peers, opened for the first one; :0 picks a free one, off disables peers")
	flags.StringVar(&c.PeerEndpoint, "wireguard-endpoint", c.PeerEndpoint, "name or address of this server for WireGuard peers (default: the one in the API request)")
	flags.Float64Var(&c.MemoryOvercommit, "memory-overcommit", c.MemoryOvercommit, "total memory of running Machines, as a multiple of this server's")
	flags.Float64Var(&c.CPUOvercommit, "cpu-overcommit", c.CPUOvercommit, "total CPUs of running Machines, as a multiple of this server's")
	flags.StringSliceVar(&c.Quotas, "quota", c.Quotas, "default quotas of organizations, KEY=VALUE (default: a share of this server)")
	flags.Int64Var(&c.DiskReserve, "disk-reserve", c.DiskReserve, "MiB of the disk reserved for the platform (default 1/16 of it, from 256 to 1024)")
	flags.Float64Var(&c.VolumeOvercommit, "volume-overcommit", c.VolumeOvercommit, "total size of volumes, as a multiple of the disk's")
	flags.StringVar(&c.Snapshots, "snapshots", c.Snapshots, "where snapshots of volumes are kept, file:///DIR or s3://BUCKET/PREFIX?endpoint=HOST&region=NAME (default: in the data directory)")
	flags.IntVar(&c.VolumesPerMachine, "volumes-per-machine", c.VolumesPerMachine, "how many volumes a Machine may mount")
	flags.IntVar(&c.RootfsSize, "rootfs-size", c.RootfsSize, "how many GB a Machine may write to its root file system, unless its config sets it")
	flags.BoolVar(&c.RootfsUnbounded, "rootfs-unbounded", c.RootfsUnbounded, "let every Machine fill the disk of this server: for servers without loop devices")
	edgeFlags(flags, c)
	imageFlags(flags, c)
	flags.StringVar(&c.MetricsURL, "metrics-url", c.MetricsURL, "vmselect of a VictoriaMetrics cluster for the metrics of organizations; off disables metrics (default: a built-in store)")
	flags.StringVar(&c.MetricsCA, "metrics-ca", c.MetricsCA, "PEM file with the certificate authorities of that cluster (default: the system's)")
	flags.StringVar(&c.MetricsCert, "metrics-cert", c.MetricsCert, "PEM file with the client certificate for that cluster; reloaded when it changes")
	flags.StringVar(&c.MetricsKey, "metrics-key", c.MetricsKey, "PEM file with the private key of --metrics-cert")
	flags.StringVar(&c.MetricsWriteURL, "metrics-write-url", c.MetricsWriteURL, "vminsert of that cluster (default: --metrics-url)")
	flags.StringVar(&c.SMTP, "smtp", c.SMTP, "server that sends e-mail for alerts, like smtp://USER:PASSWORD@HOST:587 or smtps://HOST (default: none)")
	flags.StringVar(&c.SMTPFrom, "smtp-from", c.SMTPFrom, "sender address of e-mail")
	flags.StringVar(&c.LoginOIDC, "login-oidc", c.LoginOIDC, "issuer of the OpenID Connect provider for sign-in, like https://login.example.com (default: passwords only)")
	flags.StringVar(&c.LoginOIDCClient, "login-oidc-client", c.LoginOIDCClient, "client id of this platform at that provider")
	flags.StringVar(&c.LoginOIDCSecretFile, "login-oidc-secret-file", c.LoginOIDCSecretFile, "file with the client secret (default: none)")
	flags.DurationVar(&c.MetricsRetention, "metrics-retention", c.MetricsRetention, "how long this server keeps metrics")
	flags.BoolVar(&c.MetricsOriginal, "metrics-original-names", c.MetricsOriginal, "also store every metric under the name that the public platform gives it, for existing dashboards")
	flags.StringVar(&c.Engine, "engine", c.Engine, "sandbox binary to use instead of the built-in one")
	flags.BoolVar(&c.ForgetSecrets, "forget-secrets", c.ForgetSecrets, "start although keyset.json is lost or damaged, and drop everything encrypted with it")
	_ = flags.MarkHidden("engine")
	_ = cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions([]string{daemon.DriverGvisor, daemon.DriverFake}, cobra.ShellCompDirectiveNoFileComp))
}

// edgeFlags adds the flags of the public edge except its addresses.
func edgeFlags(flags *pflag.FlagSet, c *daemon.Config) {
	flags.BoolVar(&c.HTTP3, "http3", c.HTTP3, "also serve HTTP/3, on the UDP port of --https")
	flags.StringVar(&c.SharedIPv4, "shared-ipv4", c.SharedIPv4, "IPv4 address that Apps share (default that of --http, or 127.0.0.1)")
	flags.StringVar(&c.IPv4Pool, "ipv4-pool", c.IPv4Pool, "IPv4 addresses that Apps may get, like 203.0.113.16/28 (default a /24 of the loopback)")
	flags.StringVar(&c.IPv6Pool, "ipv6-pool", c.IPv6Pool, "IPv6 addresses that Apps may get, like 2001:db8:1:2::/64 (default unique local ones)")
	flags.StringVar(&c.ACME, "acme", c.ACME, "directory URL of the ACME server that issues certificates, whose terms you accept; off disables it")
	flags.StringVar(&c.ACMEEmail, "acme-email", c.ACMEEmail, "contact address for the ACME server")
	flags.StringVar(&c.ACMERoot, "acme-root", c.ACMERoot, "PEM file with the certificate authorities of the ACME server (default: the system's)")
	flags.DurationVar(&c.Drain, "drain", c.Drain, "how long open requests may take to end when the daemon stops")
	flags.IntVar(&c.ClientConns, "client-connections", c.ClientConns, "open connections to the edge per client")
	flags.IntVar(&c.ClientHandshakes, "client-handshakes", c.ClientHandshakes, "TLS handshakes per second and client")
	flags.Int64Var(&c.ReplayBody, "replay-body", c.ReplayBody, "bytes of a request body kept for a replay, at most 64 MiB; bodies above 1 MiB are kept on disk")
	flags.StringVar(&c.StaticsURL, "statics-url", c.StaticsURL, "S3 service with the public buckets of static files, like https://s3.example.com")
	flags.BoolVar(&c.TrustHostnames, "trust-hostnames", c.TrustHostnames, "serve hostnames without proof of ownership, for servers whose users trust each other")
	flags.DurationVar(&c.AutostopAfter, "autostop-after", c.AutostopAfter, "how long a Machine must be idle before it is stopped, unless its config sets it")
}

// imageFlags adds the flags for webhooks, images and registries.
func imageFlags(flags *pflag.FlagSet, c *daemon.Config) {
	flags.StringSliceVar(&c.AllowWebhook, "allow-webhook", c.AllowWebhook, "non-public targets that webhooks of tenants may have: HOST, HOST:PORT, an address or a network")
	flags.StringSliceVar(&c.AllowRegistry, "allow-registry", c.AllowRegistry, "non-public registries that tenants may pull from: HOST, HOST:PORT, an address or a network")
	flags.BoolVar(&c.HostRegistryAuth, "host-registry-credentials", c.HostRegistryAuth, "let all tenants pull with the credentials of `docker login` on this server")
	flags.IntVar(&c.ImageSizeGB, "image-size-gb", c.ImageSizeGB, "GB that an unpacked image may have")
	flags.IntVar(&c.ImageRatio, "image-ratio", c.ImageRatio, "how many times its compressed size a layer may unpack to, if that exceeds 256 MB")
	flags.DurationVar(&c.PullTimeout, "pull-timeout", c.PullTimeout, "how long the pull of an image may take")
	flags.IntVar(&c.PullRate, "pull-min-rate", c.PullRate, "minimum bytes per second from a registry, and to a client of the built-in one")
}
