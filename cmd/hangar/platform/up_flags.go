package platform

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar/daemon"
)

// daemonFlags are the flags of `up` that make a daemon's config, with the defaults that c has.
func daemonFlags(cmd *cobra.Command, c *daemon.Config) {
	flags := cmd.Flags()
	flags.StringVar(&c.API, "api", c.API, "address to serve the API on; port 0 picks a free one")
	flags.StringVar(&c.TLSCert, "api-cert", c.TLSCert, "file with the certificate, and those that sign it, with which the API speaks TLS; read again when it changes")
	flags.StringVar(&c.TLSKey, "api-key", c.TLSKey, "file with the private key of --api-cert")
	flags.BoolVar(&c.APITLS, "api-tls", c.APITLS, "let the API speak TLS with the certificate of its public name, api. below --domain")
	flags.BoolVar(&c.APIInsecure, "api-insecure", c.APIInsecure, "let the API speak plain HTTP beyond this server: everyone on the way can read the tokens")
	flags.StringVar(&c.HTTP, "http", c.HTTP, "public address for HTTP: Apps are served there on their port 80")
	flags.StringVar(&c.HTTPS, "https", c.HTTPS, "public address for HTTPS: Apps are served there on their port 443")
	flags.StringVar((*string)(&c.Region), "region", string(c.Region), "three letters that name where this server is")
	flags.StringVar(&c.Domain, "domain", c.Domain, "domain below which Apps get public names")
	flags.StringVar(&c.Driver, "driver", c.Driver, "how Machines run: gvisor, or fake to pretend")
	flags.StringSliceVar(&c.Etcd, "etcd", c.Etcd, "endpoints of an etcd cluster that keeps the cluster state (default: embedded)")
	flags.StringVar(&c.Cluster, "cluster", c.Cluster, "address at which other servers reach this one, like :4281: lets them join (default: this server is alone)")
	flags.StringVar(&c.ClusterAddress, "cluster-address", c.ClusterAddress, "name or address by which other servers call this one (default: found out)")
	flags.IntVar(&c.ClusterMembers, "cluster-members", c.ClusterMembers, "how many servers hold the cluster state together: 3, or 5; the first server says so (default 3)")
	flags.IntVar(&c.MeshPort, "mesh-port", c.MeshPort, "UDP port of the private network between servers; 0 picks a free one")
	flags.StringVar(&c.Join, "join", c.Join, "https://HOST:4281 of a server whose platform this one joins, once, with --token")
	flags.StringVar(&c.HostName, "host-name", c.HostName, "what this server is called among others (default: its name)")
	flags.StringVar(&c.Zone, "zone", c.Zone, "which part of the region this server is in")
	flags.StringVar(&c.Limits, "rate-limits", c.Limits, "how often callers may act: off, public for the limits of the public platform, or N times those")
	flags.StringVar(&c.OIDC, "oidc-url", c.OIDC, "public address below which each organization has its issuer of identity tokens (default: oidc. below --domain)")
	flags.DurationVar(&c.OIDCPeriod, "oidc-rotate-every", c.OIDCPeriod, "for how long a key signs identity tokens")
	flags.StringSliceVar(&c.AllowEgress, "allow-egress", c.AllowEgress, "networks beyond the internet that Machines may reach, like 10.1.0.0/16")
	flags.StringVar(&c.Peers, "wireguard", c.Peers, "UDP port for WireGuard peers, taken when there is one; :0 picks a free one, off lets no peer in")
	flags.StringVar(&c.PeerEndpoint, "wireguard-endpoint", c.PeerEndpoint, "name or address of this server that WireGuard peers call (default the one by which the API was called)")
	flags.Float64Var(&c.MemoryOvercommit, "memory-overcommit", c.MemoryOvercommit, "how many times the memory of this server is promised to Machines that run")
	flags.Float64Var(&c.CPUOvercommit, "cpu-overcommit", c.CPUOvercommit, "how many times the processors of this server are promised to Machines that run")
	flags.StringSliceVar(&c.Quotas, "quota", c.Quotas, "what an organization may have unless it has a quota of its own, KEY=VALUE (default: a share of this server)")
	flags.Int64Var(&c.DiskReserve, "disk-reserve", c.DiskReserve, "MiB of the disk that are kept for the platform (default 1/16 of it, from 256 to 1024)")
	flags.Float64Var(&c.VolumeOvercommit, "volume-overcommit", c.VolumeOvercommit, "how many times what it holds the disk is promised to volumes")
	flags.StringVar(&c.Snapshots, "snapshots", c.Snapshots, "where snapshots of volumes are kept, file:///DIR or s3://BUCKET/PREFIX?endpoint=HOST&region=NAME (default: in the data directory)")
	flags.IntVar(&c.VolumesPerMachine, "volumes-per-machine", c.VolumesPerMachine, "how many volumes a Machine may mount")
	flags.IntVar(&c.RootfsSize, "rootfs-size", c.RootfsSize, "how many GB a Machine may write to its root file system if its config does not say")
	flags.BoolVar(&c.RootfsUnbounded, "rootfs-unbounded", c.RootfsUnbounded, "let every Machine fill the disk of this server: for servers without loop devices")
	edgeFlags(flags, c)
	imageFlags(flags, c)
	flags.StringVar(&c.MetricsURL, "metrics-url", c.MetricsURL, "vmselect of a VictoriaMetrics cluster that keeps the metrics of organizations; off measures nothing (default: a store of this server's own)")
	flags.StringVar(&c.MetricsCA, "metrics-ca", c.MetricsCA, "PEM file with the authorities that sign the certificate of that cluster (default: the system's)")
	flags.StringVar(&c.MetricsCert, "metrics-cert", c.MetricsCert, "PEM file with the certificate that is shown to that cluster, read again when it changes")
	flags.StringVar(&c.MetricsKey, "metrics-key", c.MetricsKey, "PEM file with the key of that certificate")
	flags.StringVar(&c.MetricsWriteURL, "metrics-write-url", c.MetricsWriteURL, "vminsert of that cluster (default --metrics-url)")
	flags.StringVar(&c.SMTP, "smtp", c.SMTP, "server that sends e-mail for alerts, like smtp://USER:PASSWORD@HOST:587 or smtps://HOST (default: none)")
	flags.StringVar(&c.SMTPFrom, "smtp-from", c.SMTPFrom, "address that e-mail comes from")
	flags.StringVar(&c.LoginOIDC, "login-oidc", c.LoginOIDC, "issuer of the OpenID Connect provider that users may sign in with, like https://login.example.com (default: passwords alone)")
	flags.StringVar(&c.LoginOIDCClient, "login-oidc-client", c.LoginOIDCClient, "id of this platform as a client of that provider")
	flags.StringVar(&c.LoginOIDCSecretFile, "login-oidc-secret-file", c.LoginOIDCSecretFile, "file with the secret of that client (default: it has none)")
	flags.DurationVar(&c.MetricsRetention, "metrics-retention", c.MetricsRetention, "how long this server keeps metrics")
	flags.BoolVar(&c.MetricsOriginal, "metrics-original-names", c.MetricsOriginal, "keep every metric of the platform also under its name at the public platform, for dashboards made for that")
	flags.StringVar(&c.Engine, "engine", c.Engine, "sandbox binary to use instead of the one built in")
	flags.BoolVar(&c.ForgetSecrets, "forget-secrets", c.ForgetSecrets, "start although keyset.json is lost or damaged: forget all that it encrypted")
	_ = flags.MarkHidden("engine")
	_ = cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions([]string{daemon.DriverGvisor, daemon.DriverFake}, cobra.ShellCompDirectiveNoFileComp))
}

// edgeFlags are those of the public edge beside its addresses.
func edgeFlags(flags *pflag.FlagSet, c *daemon.Config) {
	flags.BoolVar(&c.HTTP3, "http3", c.HTTP3, "serve HTTP/3 on the UDP port of --https, too")
	flags.StringVar(&c.SharedIPv4, "shared-ipv4", c.SharedIPv4, "IPv4 address that Apps share (default that of --http, or 127.0.0.1)")
	flags.StringVar(&c.IPv4Pool, "ipv4-pool", c.IPv4Pool, "IPv4 addresses that Apps may get, like 203.0.113.16/28 (default a /24 of the loopback)")
	flags.StringVar(&c.IPv6Pool, "ipv6-pool", c.IPv6Pool, "IPv6 addresses that Apps may get, like 2001:db8:1:2::/64 (default unique local ones)")
	flags.StringVar(&c.ACME, "acme", c.ACME, "directory of the ACME server that issues certificates, whose terms you agree to; off for none")
	flags.StringVar(&c.ACMEEmail, "acme-email", c.ACMEEmail, "address that the ACME server writes to")
	flags.StringVar(&c.ACMERoot, "acme-root", c.ACMERoot, "file with the certificates that the ACME server's own is signed by (default the system's)")
	flags.DurationVar(&c.Drain, "drain", c.Drain, "how long requests that are under way have to end when the daemon does")
	flags.IntVar(&c.ClientConns, "client-connections", c.ClientConns, "how many connections to the edge one client may have open")
	flags.IntVar(&c.ClientHandshakes, "client-handshakes", c.ClientHandshakes, "how many TLS handshakes a second one client may begin")
	flags.Int64Var(&c.ReplayBody, "replay-body", c.ReplayBody, "bytes of a request that are kept in case it is replayed, at most 64 MiB; above 1 MiB on the disk")
	flags.StringVar(&c.StaticsURL, "statics-url", c.StaticsURL, "S3 service with the public buckets of static files, like https://s3.example.com")
	flags.BoolVar(&c.TrustHostnames, "trust-hostnames", c.TrustHostnames, "serve every hostname that an App claims without a proof: for servers whose users trust each other")
	flags.DurationVar(&c.AutostopAfter, "autostop-after", c.AutostopAfter, "how long a Machine has to be idle before it is stopped, where its config does not say")
}

// imageFlags are those of images and the registries that they come from.
func imageFlags(flags *pflag.FlagSet, c *daemon.Config) {
	flags.StringSliceVar(&c.AllowWebhook, "allow-webhook", c.AllowWebhook, "targets beyond the public internet that webhooks of tenants may have: HOST, HOST:PORT, an address or a network")
	flags.StringSliceVar(&c.AllowRegistry, "allow-registry", c.AllowRegistry, "registries beyond the public internet that tenants may pull from: HOST, HOST:PORT, an address or a network")
	flags.BoolVar(&c.HostRegistryAuth, "host-registry-credentials", c.HostRegistryAuth, "let the pulls of all tenants use what docker login has left on this server")
	flags.IntVar(&c.ImageSizeGB, "image-size-gb", c.ImageSizeGB, "how many GB an image may be when it is unpacked")
	flags.IntVar(&c.ImageRatio, "image-ratio", c.ImageRatio, "how many times its size a layer may unpack to, beyond 256 MB")
	flags.DurationVar(&c.PullTimeout, "pull-timeout", c.PullTimeout, "how long the pull of an image may take")
	flags.IntVar(&c.PullRate, "pull-min-rate", c.PullRate, "how many bytes a second a registry has to send, and a client of the built-in one to take")
}
