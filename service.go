package hangar

import (
	"slices"
	"strings"
)

// DefaultSoftLimit is the soft limit of a service that sets none.
const DefaultSoftLimit = 20

// AutostopMode says what happens to an idle Machine.
type AutostopMode string

// The modes of autostop.
const (
	AutostopOff     AutostopMode = "off"
	AutostopStop    AutostopMode = "stop"
	AutostopSuspend AutostopMode = "suspend" // stopped, if it cannot be suspended
)

// AutostopMode reads Autostop.
func (s *Service) AutostopMode() AutostopMode {
	switch s.Autostop {
	case true, "stop":
		return AutostopStop
	case "suspend":
		return AutostopSuspend
	default:
		return AutostopOff
	}
}

// Autostarts reports whether a request for a service may start the Machine. Without a setting, it may
// if the Machine is the only one of its App.
func (c *MachineConfig) Autostarts(s *Service, only bool) bool {
	if s.Autostart != nil {
		return *s.Autostart
	}
	return only && (c.DisableMachineAutostart == nil || !*c.DisableMachineAutostart)
}

// UDP reports whether the service takes datagrams.
func (s *Service) UDP() bool { return s.Protocol == "udp" }

// HardLimit is the most requests or connections that a Machine gets; 0: any number.
func (s *Service) HardLimit() int {
	if s.Concurrency == nil {
		return 0
	}
	return s.Concurrency.HardLimit
}

// SoftLimit is how many requests or connections a Machine gets before others do. It is
// never 0, and never above a HardLimit.
func (s *Service) SoftLimit() int {
	soft := DefaultSoftLimit
	if s.Concurrency != nil && s.Concurrency.SoftLimit > 0 {
		soft = s.Concurrency.SoftLimit
	}
	if hard := s.HardLimit(); hard > 0 {
		soft = min(soft, hard)
	}
	return soft
}

// Range is the first and the last public port.
func (p *ServicePort) Range() (first, last int) {
	if p.Port != 0 {
		return p.Port, p.Port
	}
	return p.StartPort, p.EndPort
}

// Covers reports whether a public port is the port's, or in its range.
func (p *ServicePort) Covers(port int) bool {
	first, last := p.Range()
	return first <= port && port <= last
}

// Handling is what the edge does with the connections of a public port, from the outside
// in. The zero value passes bytes through.
type Handling struct {
	TLS        bool // terminate TLS
	HTTP       bool // understand HTTP
	PgTLS      bool // terminate TLS as a PostgreSQL server does
	ProxyProto bool // tell the Machine who the client is, in a PROXY header
}

// Handling is what the edge does for a public port of the service. Datagrams are only passed on.
func (s *Service) Handling(p *ServicePort) Handling {
	if s.UDP() {
		return Handling{}
	}
	return p.Handling()
}

// Handling reads Handlers, for a service without datagrams. "edge_http" is an older word for "http",
// and "tcp" has no effect.
func (p *ServicePort) Handling() Handling {
	has := func(name string) bool { return slices.Contains(p.Handlers, name) }
	return Handling{TLS: has("tls"), HTTP: has("http") || has("edge_http"), PgTLS: has("pg_tls"), ProxyProto: has("proxy_proto")}
}

// Shareable reports whether connections name their App, so that many Apps may share an address.
func (h Handling) Shareable() bool { return h.TLS || h.HTTP }

// Ready reports whether the checks of a Machine let requests for the service on an internal port
// through. The checks of the service, and all checks of the kind readiness, must be passing.
func (m *Machine) Ready(port int) bool {
	if len(m.Checks) == 0 {
		return true
	}
	for i, k := range m.Config.NamedChecks() {
		if (k.Readiness || k.Service && k.ServicePort == port) && (i >= len(m.Checks) || m.Checks[i].Status != CheckPassing) {
			return false
		}
	}
	return true
}

// Hostname is the name of an App below a domain.
func (a AppName) Hostname(domain Hostname) Hostname { return Hostname(a) + "." + domain }

// Canonical returns the Hostname in a Host header or a TLS server name, with or without a port. It is
// empty for an address.
func Canonical(sent string) Hostname {
	host := sent
	if strings.HasPrefix(host, "[") {
		return ""
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || strings.IndexByte(host, ':') >= 0 || host[len(host)-1] >= '0' && host[len(host)-1] <= '9' {
		return "" // no top-level domain ends with a digit
	}
	return Hostname(host)
}
