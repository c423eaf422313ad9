package config

import (
	"net"
	"time"
)

// Proxy configures the HTTP proxy before an App.
type Proxy struct {
	Addr              string        `yaml:"addr"`   // where it listens; empty means there is no proxy
	Target            string        `yaml:"target"` // host:port of the App
	DB                string        `yaml:"db"`     // whose position clients receive
	MaxLag            time.Duration `yaml:"max-lag"`
	Debug             bool          `yaml:"debug"`
	Passthrough       []string      `yaml:"passthrough"`
	AlwaysForward     []string      `yaml:"always-forward"`
	RedirectTimeout   time.Duration `yaml:"primary-redirect-timeout"`
	ReadTimeout       time.Duration `yaml:"read-timeout"`
	ReadHeaderTimeout time.Duration `yaml:"read-header-timeout"`
	WriteTimeout      time.Duration `yaml:"write-timeout"`
	IdleTimeout       time.Duration `yaml:"idle-timeout"`
}

func defaultProxy() Proxy {
	return Proxy{
		MaxLag: 10 * time.Second, RedirectTimeout: 5 * time.Second,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
	}
}

func (p *Proxy) validate(refuse func(bool, string, ...any)) {
	if p.Addr == "" {
		refuse(p.Target != "", "proxy.addr is missing")
		return
	}
	_, _, err := net.SplitHostPort(p.Target)
	refuse(p.Target == "", "proxy.target is missing: it is the host:port of the app")
	refuse(p.Target != "" && err != nil, "proxy.target: %q is not a host:port", p.Target)
	refuse(p.DB == "", "proxy.db is missing: it is the database whose position clients receive")
	for key, d := range map[string]time.Duration{
		"max-lag": p.MaxLag, "primary-redirect-timeout": p.RedirectTimeout, "read-timeout": p.ReadTimeout,
		"read-header-timeout": p.ReadHeaderTimeout, "write-timeout": p.WriteTimeout, "idle-timeout": p.IdleTimeout,
	} {
		refuse(d < 0, "proxy.%s must not be negative", key)
	}
}
