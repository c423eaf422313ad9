// Package config reads the configuration of a node from a file in the form of litefs.yml.
//
// Keys that mean the same here are accepted. A key that only LiteFS has is refused with advice,
// unless its value has no effect. An unknown key is an error. Environment variables are replaced as
// in LiteFS: $NAME, ${NAME}, and ${A == "b"} or != for true or false.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Defaults, those of LiteFS.
const (
	DefaultDir       = "/litefs"
	DefaultData      = "/var/lib/litefs"
	DefaultAddr      = ":20202"
	DefaultRetention = 10 * time.Minute
)

// Config is the configuration of a node.
type Config struct {
	Fuse struct {
		Dir        string `yaml:"dir"`
		AllowOther bool   `yaml:"allow-other"`
		Debug      bool   `yaml:"debug"`
	} `yaml:"fuse"`
	Data struct {
		Dir       string        `yaml:"dir"`
		Compress  *bool         `yaml:"compress"`
		Retention time.Duration `yaml:"retention"`
		Interval  time.Duration `yaml:"retention-monitor-interval"`
		// Sync is this program's own: every transaction is durable before its commit returns.
		Sync bool `yaml:"sync"`
		// MaxLog is this program's own: how many bytes of a database's log are kept for replicas that need them.
		MaxLog int64 `yaml:"max-log"`
	} `yaml:"data"`
	Exec        Exec `yaml:"exec"`
	ExitOnError bool `yaml:"exit-on-error"`
	SkipSync    bool `yaml:"skip-sync"`
	Strict      bool `yaml:"strict-verify"`
	HTTP        struct {
		Addr            string        `yaml:"addr"`
		SnapshotTimeout time.Duration `yaml:"snapshot-timeout"`
	} `yaml:"http"`
	Lease struct {
		Type         string        `yaml:"type"`
		Hostname     string        `yaml:"hostname"`
		AdvertiseURL string        `yaml:"advertise-url"`
		Candidate    *bool         `yaml:"candidate"`
		Promote      bool          `yaml:"promote"`
		Reconnect    time.Duration `yaml:"reconnect-delay"`
		Demote       time.Duration `yaml:"demote-delay"`
		Databases    []string      `yaml:"databases"`
		Consul       yaml.Node     `yaml:"consul"`
		// Etcd and Platform are this program's own.
		Etcd     Etcd     `yaml:"etcd"`
		Platform Platform `yaml:"platform"`
	} `yaml:"lease"`
	// Sync and SyncTimeout are this program's own: how many candidates must have a transaction before its commit
	// returns, and how long the commit waits for them.
	Sync        int           `yaml:"sync"`
	SyncTimeout time.Duration `yaml:"sync-timeout"`
	// TLS is this program's own: it is for the server and for connections to other nodes.
	TLS TLS `yaml:"tls"`
	Log struct {
		Format    string `yaml:"format"`
		Timestamp *bool  `yaml:"timestamp"`
		Debug     bool   `yaml:"debug"`
	} `yaml:"log"`
	// Capture is this program's own: auto, strict or tail.
	Capture string `yaml:"capture"`

	Proxy   Proxy     `yaml:"proxy"`
	Backup  Backup    `yaml:"backup"`
	Tracing yaml.Node `yaml:"tracing"`
}

// Types of leases.
const (
	LeaseEtcd     = "etcd"
	LeasePlatform = "platform"
	LeaseStatic   = "static"
)

// Timing is the timing of an election.
type Timing struct {
	TTL       time.Duration `yaml:"ttl"`
	LockDelay time.Duration `yaml:"lock-delay"`
}

// Etcd configures a lease in etcd.
type Etcd struct {
	Timing    `yaml:",inline"`
	Endpoints []string `yaml:"endpoints"`
	Prefix    string   `yaml:"prefix"` // of the keys of this cluster
	Username  string   `yaml:"username"`
	Password  string   `yaml:"password"`
	TLS       TLS      `yaml:"tls"`
}

// Platform configures a lease that the platform keeps, in an election of the App.
type Platform struct {
	Timing   `yaml:",inline"`
	Election string `yaml:"election"`
}

// TLS names PEM files.
type TLS struct {
	Cert string `yaml:"cert"` // with its intermediate certificates
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"` // which signs the certificates of other nodes
}

// Command is a program that runs while the node does.
type Command struct {
	Cmd         string `yaml:"cmd"`
	IfCandidate bool   `yaml:"if-candidate"`
}

// Exec is a list of commands, which run one after another.
type Exec []Command

// UnmarshalYAML also accepts a single command as a string.
func (e *Exec) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		if n.Value != "" {
			*e = Exec{{Cmd: n.Value}}
		}
		return nil
	}
	var list []Command
	if err := n.Decode(&list); err != nil {
		return err
	}
	*e = list
	return nil
}

// Candidate reports whether the node may be primary.
func (c *Config) Candidate() bool { return c.Lease.Candidate == nil || *c.Lease.Candidate }

// Machine is the Machine of the platform in which a node runs.
type Machine struct{ App, ID string }

// Parse reads a configuration, with the environment that getenv returns. in is nil outside of a
// Machine. In a Machine, by default the platform keeps the lease, and other nodes reach this one in
// the private network of the App.
func Parse(b []byte, getenv func(string) string, in *Machine) (*Config, error) {
	c := &Config{ExitOnError: true}
	c.Fuse.Dir, c.Data.Dir, c.HTTP.Addr = DefaultDir, DefaultData, DefaultAddr
	c.Data.Retention, c.Data.Interval = DefaultRetention, time.Minute
	c.Proxy, c.Backup = defaultProxy(), defaultBackup()
	decoder := yaml.NewDecoder(bytes.NewReader(Expand(b, getenv)))
	decoder.KnownFields(true)
	if err := decoder.Decode(c); err != nil {
		return nil, err
	}
	if in != nil {
		c.complete(*in)
	}
	return c, c.validate()
}

// complete fills in missing settings of the lease in a Machine.
func (c *Config) complete(m Machine) {
	if c.Lease.Type == "" && c.Lease.Consul.IsZero() && len(c.Lease.Etcd.Endpoints) == 0 {
		c.Lease.Type = LeasePlatform
	}
	if c.Lease.Type != LeasePlatform {
		return
	}
	if c.Lease.Hostname == "" {
		c.Lease.Hostname = m.ID
	}
	_, port, err := net.SplitHostPort(c.HTTP.Addr)
	if c.Lease.AdvertiseURL == "" && err == nil {
		scheme := "http"
		if c.TLS.Cert != "" {
			scheme = "https"
		}
		c.Lease.AdvertiseURL = scheme + "://" + net.JoinHostPort(m.ID+".vm."+m.App+".internal", port)
	}
}

// validate refuses settings that this program would ignore, so that no deployment relies on them.
func (c *Config) validate() error {
	var errs []error
	refuse := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	const use = "use platform in a Machine, etcd with lease.etcd.endpoints, or static"
	elects := c.Lease.Type == LeaseEtcd || c.Lease.Type == LeasePlatform
	switch c.Lease.Type {
	case LeaseEtcd, LeasePlatform, LeaseStatic:
	case "consul":
		refuse(true, "lease.type: consul is not supported: %s", use)
	case "":
		refuse(true, "lease.type is missing: %s", use)
	default:
		refuse(true, "lease.type: %q is unknown: %s", c.Lease.Type, use)
	}
	refuse(!c.Lease.Consul.IsZero(), "lease.consul: Consul is not supported: remove it, and use lease.type platform or etcd")
	refuse(c.Lease.Promote, "lease.promote: a node does not take the lease of another when it starts: remove it, and use hangar-db promote")
	refuse(c.Lease.Type == LeaseEtcd && len(c.Lease.Etcd.Endpoints) == 0, "lease.etcd.endpoints is missing")
	refuse(elects && c.Lease.AdvertiseURL == "", "lease.advertise-url is missing: with lease.type %s it is where other nodes reach this one", c.Lease.Type)
	refuse(c.Lease.Type != LeaseEtcd && len(c.Lease.Etcd.Endpoints) > 0, "lease.etcd: with lease.type %s it is not used: remove it", c.Lease.Type)
	refuse(c.Lease.Type != LeasePlatform && c.Lease.Platform != (Platform{}), "lease.platform: with lease.type %s it is not used: remove it", c.Lease.Type)
	for name, t := range map[string]Timing{"lease.etcd": c.Lease.Etcd.Timing, "lease.platform": c.Lease.Platform.Timing} {
		refuse(t.TTL != 0 && t.TTL < time.Second, "%s.ttl must be at least 1s", name)
		refuse(t.LockDelay < 0, "%s.lock-delay must not be negative", name)
	}
	refuse(c.Lease.Platform.TTL > time.Minute, "lease.platform.ttl must be at most 1m")
	refuse(c.Sync < 0 || c.SyncTimeout < 0, "sync and sync-timeout must not be negative")
	refuse(c.Sync > 0 && c.Capture == "tail" && c.Proxy.Addr == "", "sync: with capture tail, commits do not wait: use capture strict, or the proxy")
	for name, t := range map[string]TLS{"tls": c.TLS, "lease.etcd.tls": c.Lease.Etcd.TLS} {
		refuse((t.Cert == "") != (t.Key == ""), "%s: cert and key must be set together", name)
	}
	refuse(c.TLS.CA != "" && c.TLS.Cert == "", "tls.ca: a node that requires certificates needs one itself: set tls.cert and tls.key")
	refuse(len(c.Lease.Databases) > 0, "lease.databases: a node follows all databases: remove it")
	refuse(c.Lease.Type == LeaseStatic && !c.Candidate() && c.Lease.AdvertiseURL == "",
		"lease.advertise-url is missing: with lease.type static it is the URL of the primary")
	c.Proxy.validate(refuse)
	c.Backup.validate(refuse)
	refuse(!c.Tracing.IsZero(), "tracing: this program does not trace: remove it")
	refuse(c.Data.Compress != nil && !*c.Data.Compress, "data.compress: transactions are always compressed: remove it")
	refuse(c.SkipSync, "skip-sync: syncs of SQLite are never skipped: remove it")
	refuse(c.Data.Retention <= 0 || c.Data.Interval <= 0, "data.retention and data.retention-monitor-interval must be positive")
	refuse(c.Log.Format != "" && c.Log.Format != "text" && c.Log.Format != "json", "log.format: %q is unknown: use text or json", c.Log.Format)
	switch c.Capture {
	case "", "auto", "strict", "tail":
	default:
		refuse(true, "capture: %q is unknown: use auto, strict or tail", c.Capture)
	}
	for _, e := range c.Exec {
		refuse(strings.TrimSpace(e.Cmd) == "", "exec: a command is empty")
	}
	return errors.Join(errs...)
}

var expression = regexp.MustCompile(`\$\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:(==|!=)\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z_][A-Za-z0-9_]*))\s*)?\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// Expand replaces variables of the environment.
func Expand(b []byte, getenv func(string) string) []byte {
	return expression.ReplaceAllFunc(b, func(m []byte) []byte {
		g := expression.FindSubmatch(m)
		if len(g[6]) > 0 {
			return []byte(getenv(string(g[6])))
		}
		value := getenv(string(g[1]))
		if len(g[2]) == 0 {
			return []byte(value)
		}
		other := string(g[3]) + string(g[4])
		if len(g[5]) > 0 {
			other = getenv(string(g[5]))
		}
		return fmt.Append(nil, (value == other) == (string(g[2]) == "=="))
	})
}
