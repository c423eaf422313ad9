package hangar

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// CheckStatus is the status of a health check.
type CheckStatus string

// The statuses of a health check.
const (
	CheckPassing  CheckStatus = "passing"
	CheckWarning  CheckStatus = "warning"  // nothing is known yet, or the Machine is not started
	CheckCritical CheckStatus = "critical" // the latest run failed
)

// MachineCheck is a health check of a Machine and what is known of it.
type MachineCheck struct {
	Name      string      `json:"name"`
	Status    CheckStatus `json:"status"`
	Output    string      `json:"output"`     // of the latest run, or why there was none; at most MaxCheckOutput bytes
	UpdatedAt time.Time   `json:"updated_at"` // when the status changed
}

// MaxCheckOutput is how much of a check's output is kept, in bytes.
const MaxCheckOutput = 512

// The defaults of a Check.
const (
	DefaultCheckInterval = 15 * time.Second
	DefaultCheckTimeout  = 2 * time.Second
)

// NamedCheck is a Check of a config with its defaults filled in, and the name of its results.
type NamedCheck struct {
	Name     string
	Type     string // "tcp" or "http"
	Port     int
	Interval time.Duration // between runs, at least a second
	Timeout  time.Duration // of a run
	Grace    time.Duration // after a boot, before the first run
	Service  bool          // it belongs to a service
	// ServicePort is the internal port of the service.
	ServicePort int
	Readiness   bool // while it fails, the Machine gets no requests at all

	// Of a check by HTTP.

	Method     string
	Path       string
	Headers    []Header
	TLS        bool   // speak https
	ServerName string // the name in the expected certificate; empty: the address
	SkipVerify bool   // any certificate will do
}

// NamedChecks returns every health check of the config: those of the config by
// name, then those of services in their order.
func (c *MachineConfig) NamedChecks() []NamedCheck {
	some := len(c.Checks) > 0
	for i := range c.Services {
		some = some || len(c.Services[i].Checks) > 0
	}
	if !some {
		return nil // the usual case, and every reader of a Machine calls this
	}
	var list []NamedCheck
	taken := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(c.Checks)) {
		taken[name] = true
		list = append(list, c.Checks[name].named(name))
	}
	for i := range c.Services {
		s := &c.Services[i]
		for n, k := range s.Checks {
			k.Port = cmp.Or(k.Port, s.InternalPort)
			name := serviceCheckName(n, &k)
			for more := n + 1; taken[name]; more++ { // services may share a port
				name = serviceCheckName(more, &k)
			}
			taken[name] = true
			named := k.named(name)
			named.Service, named.ServicePort = true, s.InternalPort
			list = append(list, named)
		}
	}
	return list
}

// serviceCheckName returns the name under which clients know the n-th check of a service.
func serviceCheckName(n int, k *Check) string {
	return fmt.Sprintf("servicecheck-%02d-%s-%d", n, strings.ToLower(k.Type), k.Port)
}

func (k Check) named(name string) NamedCheck {
	n := NamedCheck{
		Name: name, Type: strings.ToLower(k.Type), Port: k.Port,
		Interval: k.Interval.or(DefaultCheckInterval), Timeout: k.Timeout.or(DefaultCheckTimeout), Grace: k.GracePeriod.or(0),
		Method: strings.ToUpper(k.Method), Path: k.Path, Headers: k.Headers,
		Readiness: k.Kind == "readiness",
		TLS:       k.Protocol == "https", ServerName: k.TLSServerName, SkipVerify: k.TLSSkipVerify,
	}
	n.Method = cmp.Or(n.Method, "GET")
	n.Path = cmp.Or(n.Path, "/")
	return n
}

// or returns d, or usual if d is nil or zero.
func (d *Duration) or(usual time.Duration) time.Duration {
	if d == nil || *d == 0 {
		return usual
	}
	return time.Duration(*d)
}
