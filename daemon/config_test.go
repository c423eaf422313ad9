package daemon

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	good := func() Config {
		c := DefaultConfig()
		c.Dir = "/var/lib/hangar"
		return c
	}
	for _, address := range []string{"https://oidc.example.com", "https://example.com/oidc/", "http://[::1]:8080"} {
		c := good()
		c.OIDC = address
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	if c := good(); c.Validate() != nil {
		t.Fatalf("the defaults: %v", c.Validate())
	}
	for name, spoil := range map[string]func(*Config){
		"--dir":    func(c *Config) { c.Dir = "/" + strings.Repeat("x", maxDirBytes) },
		"root":     func(c *Config) { c.Dir = "/" },
		"--api":    func(c *Config) { c.API = "4280" },
		"--http":   func(c *Config) { c.HTTP = ":http5" },
		"--https":  func(c *Config) { c.HTTPS = "x:70000" },
		"--region": func(c *Config) { c.Region = "Local" },
		"--domain": func(c *Config) { c.Domain = "-x.example" },
		"--driver": func(c *Config) { c.Driver = "docker" },
		"--etcd":   func(c *Config) { c.Etcd = []string{"host:2379"} },

		"--oidc-url":                             func(c *Config) { c.OIDC = "oidc.example.com" },
		`--oidc-url "https:"`:                    func(c *Config) { c.OIDC = "https:" },
		"?":                                      func(c *Config) { c.OIDC = "https://oidc.example.com/?org=" },
		"--oidc-rotate-every":                    func(c *Config) { c.OIDCPeriod = time.Minute },
		`--allow-egress "10.0.0.1"`:              func(c *Config) { c.AllowEgress = []string{"192.168.7.0/24", "10.0.0.1"} },
		"--allow-egress 10.1.2.3/16: the":        func(c *Config) { c.AllowEgress = []string{"10.1.2.3/16"} },
		"--allow-egress ::ffff:10.0.0.0/104":     func(c *Config) { c.AllowEgress = []string{"::ffff:10.0.0.0/104"} },
		"--allow-egress fdaa:0:5::/48: the":      func(c *Config) { c.AllowEgress = []string{"fdaa:0:5::/48"} },
		`--allow-egress "example.com/24": must`:  func(c *Config) { c.AllowEgress = []string{"example.com/24"} },
		"--volume-overcommit 0: must":            func(c *Config) { c.VolumeOvercommit = 0 },
		"--volume-overcommit NaN: must":          func(c *Config) { c.VolumeOvercommit = math.NaN() },
		"--volume-overcommit 1001: must":         func(c *Config) { c.VolumeOvercommit = 1001 },
		"--memory-overcommit 0: must":            func(c *Config) { c.MemoryOvercommit = 0 },
		"--cpu-overcommit NaN: must":             func(c *Config) { c.CPUOvercommit = math.NaN() },
		"--volumes-per-machine 17: must":         func(c *Config) { c.VolumesPerMachine = 17 },
		"--rootfs-size 0: must":                  func(c *Config) { c.RootfsSize = 0 },
		"--rootfs-size 501: must":                func(c *Config) { c.RootfsSize = 501 },
		"--login-oidc: ":                         func(c *Config) { c.LoginOIDC, c.LoginOIDCClient = "http://login.example.com", "x" },
		"--login-oidc needs --login-oidc-client": func(c *Config) { c.LoginOIDC = "https://login.example.com" },
		"go with --login-oidc":                   func(c *Config) { c.LoginOIDCClient = "x" },
		"--login-oidc-secret-file: ": func(c *Config) {
			c.LoginOIDC, c.LoginOIDCClient, c.LoginOIDCSecretFile = "https://login.example.com", "x", c.Dir+"/none"
		},
		"--snapshots: ": func(c *Config) { c.Snapshots = "file://relative/dir" },
	} {
		c := good()
		spoil(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestConfigSurvivesOnDisk(t *testing.T) {
	t.Parallel()
	c := Config{Dir: t.TempDir(), API: "127.0.0.1:0", Driver: DriverFake, Etcd: []string{"http://x:1"}, Region: "ams", AllowEgress: []string{"10.0.0.0/8"}}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	got, err := LoadConfig(c.Dir)
	if err != nil || got.Driver != c.Driver || got.Region != c.Region || got.Etcd[0] != c.Etcd[0] {
		t.Errorf("got %+v, %v", got, err)
	}
	if egress, err := got.egress(); err != nil || len(egress) != 1 || egress[0].String() != "10.0.0.0/8" {
		t.Errorf("egress to %v, %v", egress, err)
	}
	if _, err := LoadConfig(t.TempDir()); err == nil {
		t.Error("an empty directory was taken for a data directory")
	}
}

func TestAPIBeyondLoopback(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		config Config
		want   string // of the error; empty: none
	}{
		{"the default", Config{API: "127.0.0.1:4280"}, ""},
		{"localhost", Config{API: "localhost:1"}, ""},
		{"IPv6", Config{API: "[::1]:1"}, ""},
		{"another of the loopback", Config{API: "127.9.9.9:1"}, ""},
		{"everywhere", Config{API: ":4280"}, "--api :4280"},
		{"everywhere by IPv4", Config{API: "0.0.0.0:4280"}, "--api"},
		{"everywhere by IPv6", Config{API: "[::]:4280"}, "--api"},
		{"an address", Config{API: "10.0.0.5:4280"}, "--api"},
		{"a name", Config{API: "server.example.com:4280"}, "--api"},
		{"insecure", Config{API: ":4280", APIInsecure: true}, ""},
		{"the public name's certificate", Config{API: ":4280", APITLS: true}, ""},
		{"files", Config{API: ":4280", TLSCert: "c", TLSKey: "k"}, ""},
		{"a certificate without a key", Config{API: ":4280", TLSCert: "c"}, "--api-key"},
		{"a key without a certificate", Config{API: "127.0.0.1:4280", TLSKey: "k"}, "--api-cert"},
		{"two certificates", Config{API: ":4280", TLSCert: "c", TLSKey: "k", APITLS: true}, "--api-tls"},
		{"TLS or not", Config{API: ":4280", APITLS: true, APIInsecure: true}, "--api-insecure"},
	} {
		err := c.config.validateAPI()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestImageFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{AllowRegistry: []string{"http://x"}}, {AllowWebhook: []string{"http://x"}}, {AllowRegistry: []string{"10.0.0.1/8"}}, {ImageSizeGB: -1}, {ImageRatio: 1 << 30}, {PullRate: -1}, {PullTimeout: 1},
	} {
		if c.validateImages() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	good := Config{AllowRegistry: []string{"registry.corp:5000", "10.0.0.0/8", "[fd00::1]:5000"}, ImageSizeGB: 1}
	if err := good.validateImages(); err != nil {
		t.Error(err)
	}
}

func TestPlatformURL(t *testing.T) {
	t.Parallel()
	c := Config{Domain: "example.com"}
	for port, want := range map[uint16]string{443: "https://oidc.example.com", 8443: "https://oidc.example.com:8443"} {
		at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		if got := c.oidcURL(at); got != want {
			t.Errorf("port %d: %s", port, got)
		}
	}
	c.OIDC = "https://id.example.com/x/"
	if got := c.oidcURL(netip.AddrPort{}); got != "https://id.example.com/x" {
		t.Errorf("the one that was given: %s", got)
	}
}
