package hangar

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

var (
	serviceProtocols = []string{"", "tcp", "udp"}
	portHandlers     = []string{"tls", "http", "pg_tls", "proxy_proto", "tcp", "edge_http"}
	concurrencyTypes = []string{"", "connections", "requests"}
	checkTypes       = []string{"tcp", "http"}
	checkProtocols   = []string{"", "http", "https"}
	checkKinds       = []string{"", "informational", "readiness"}
)

// validateServices checks what the edge will serve.
func (c *MachineConfig) validateServices() error {
	if len(c.Services) > maxServices {
		return badConfig("config.services", "has %d entries, more than the %d that are allowed", len(c.Services), maxServices)
	}
	checks, public := len(c.Checks), 0
	for i := range c.Services {
		at := "config.services[" + strconv.Itoa(i) + "]"
		if err := c.Services[i].validate(at); err != nil {
			return err
		}
		if public += c.Services[i].publicPorts(); public > maxPublicPorts {
			return badConfig(at+".ports", "brings the public ports of the Machine to %d, more than the %d that are allowed", public, maxPublicPorts)
		}
		if checks += len(c.Services[i].Checks); checks > maxChecks {
			return badConfig(at+".checks", "brings the checks of the Machine to %d, more than the %d that are allowed", checks, maxChecks)
		}
	}
	return nil
}

func (s *Service) validate(at string) error {
	switch {
	case !slices.Contains(serviceProtocols, s.Protocol):
		return badConfig(at+".protocol", "%q is not \"tcp\" or \"udp\"", s.Protocol)
	case !validPort(s.InternalPort):
		return badConfig(at+".internal_port", "%d is not a port from 1 to 65535", s.InternalPort)
	case s.MinMachinesRunning != nil && *s.MinMachinesRunning < 0:
		return badConfig(at+".min_machines_running", "%d is negative", *s.MinMachinesRunning)
	case s.AutostopAfter != nil && (time.Duration(*s.AutostopAfter) < MinAutostopAfter || time.Duration(*s.AutostopAfter) > MaxAutostopAfter):
		return badConfig(at+".autostop_after", "%s is not from %s to %s", s.AutostopAfter, MinAutostopAfter, MaxAutostopAfter)
	case len(s.Ports) > maxPorts:
		return badConfig(at+".ports", "has %d entries, more than the %d that are allowed", len(s.Ports), maxPorts)
	case len(s.Checks) > maxChecks:
		return badConfig(at+".checks", "has %d entries, more than the %d that are allowed", len(s.Checks), maxChecks)
	}
	switch s.Autostop {
	case nil, true, false, "suspend", "stop", "off":
	default:
		return badConfig(at+".autostop", "%v is not \"off\", \"stop\", \"suspend\" or a boolean", s.Autostop)
	}
	for i, p := range s.Ports {
		if err := p.validate(at + ".ports[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
	}
	if n := s.Concurrency; n != nil {
		switch {
		case !slices.Contains(concurrencyTypes, n.Type):
			return badConfig(at+".concurrency.type", "%q is not \"connections\" or \"requests\"", n.Type)
		case n.SoftLimit < 0:
			return badConfig(at+".concurrency.soft_limit", "%d is negative", n.SoftLimit)
		case n.HardLimit < 0:
			return badConfig(at+".concurrency.hard_limit", "%d is negative", n.HardLimit)
		}
	}
	for i := range s.Checks {
		// A check of a service goes to the service's own port unless it names one.
		if err := s.Checks[i].validate(at+".checks["+strconv.Itoa(i)+"]", false); err != nil {
			return err
		}
	}
	return s.validateEdge(at)
}

func (p *ServicePort) validate(at string) error {
	switch {
	case p.Port != 0 && !validPort(p.Port):
		return badConfig(at+".port", "%d is not a port from 1 to 65535", p.Port)
	case p.Port != 0 && (p.StartPort != 0 || p.EndPort != 0):
		return badConfig(at+".port", "stands beside start_port and end_port; give one of the two")
	case p.Port == 0 && !validPort(p.StartPort):
		return badConfig(at+".start_port", "%d is not a port from 1 to 65535", p.StartPort)
	case p.Port == 0 && (!validPort(p.EndPort) || p.EndPort < p.StartPort):
		return badConfig(at+".end_port", "%d is not a port from start_port to 65535", p.EndPort)
	}
	for i, h := range p.Handlers {
		if !slices.Contains(portHandlers, h) {
			return badConfig(at+".handlers["+strconv.Itoa(i)+"]", "%q is not one of %v", h, portHandlers)
		}
	}
	return nil
}

func (c *MachineConfig) validateChecks() error {
	if len(c.Checks) > maxChecks {
		return badConfig("config.checks", "has %d entries, more than the %d that are allowed", len(c.Checks), maxChecks)
	}
	for name, check := range c.Checks {
		switch {
		case name == "":
			return badConfig("config.checks", "has an empty name")
		case len(name) > maxCheckName:
			return badConfig("config.checks", "has a name of %d bytes, more than the %d that are allowed", len(name), maxCheckName)
		case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
			return badConfig("config.checks", "has a name with control characters: %q", name)
		}
		if err := check.validate("config.checks."+name, true); err != nil {
			return err
		}
	}
	return nil
}

func (k *Check) validate(at string, needsPort bool) error {
	switch {
	case !slices.Contains(checkTypes, strings.ToLower(k.Type)):
		return badConfig(at+".type", "%q is not \"tcp\" or \"http\"", k.Type)
	case !validPort(k.Port) && (needsPort || k.Port != 0):
		return badConfig(at+".port", "%d is not a port from 1 to 65535", k.Port)
	case !slices.Contains(checkKinds, k.Kind):
		return badConfig(at+".kind", "%q is not \"informational\" or \"readiness\"", k.Kind)
	case !slices.Contains(checkProtocols, k.Protocol):
		return badConfig(at+".protocol", "%q is not \"http\" or \"https\"", k.Protocol)
	case k.Path != "" && !strings.HasPrefix(k.Path, "/"):
		return badConfig(at+".path", "%q does not start with a slash", k.Path)
	case len(k.Path) > maxCheckText || strings.ContainsFunc(k.Path, unprintable):
		return badConfig(at+".path", "is not a path of at most %d printable ASCII characters", maxCheckText)
	case k.Method != "" && (len(k.Method) > maxCheckText || !isToken(k.Method)):
		return badConfig(at+".method", "%q is not an HTTP method", k.Method)
	case len(k.TLSServerName) > maxCheckText || strings.ContainsFunc(k.TLSServerName, unprintable):
		return badConfig(at+".tls_server_name", "%q is not the name of a host", k.TLSServerName)
	case len(k.Headers) > maxCheckHeaders:
		return badConfig(at+".headers", "has %d entries, more than the %d that are allowed", len(k.Headers), maxCheckHeaders)
	}
	for _, d := range []struct {
		name     string
		value    *Duration
		min, max time.Duration
	}{
		{"interval", k.Interval, minInterval, maxInterval},
		{"timeout", k.Timeout, minCheckTimeout, maxCheckTimeout},
		{"grace_period", k.GracePeriod, 0, maxInterval},
	} {
		if d.value == nil || *d.value == 0 {
			continue
		}
		if v := time.Duration(*d.value); v < d.min || v > d.max {
			return badConfig(at+"."+d.name, "%s is not from %s to %s", v, d.min, d.max)
		}
	}
	for i, h := range k.Headers {
		here := at + ".headers[" + strconv.Itoa(i) + "]"
		if len(h.Name) > maxCheckText || !isToken(h.Name) {
			return badConfig(here+".name", "%q is not the name of a header", h.Name)
		}
		if len(h.Values) > maxCheckHeaders {
			return badConfig(here+".values", "has %d entries, more than the %d that are allowed", len(h.Values), maxCheckHeaders)
		}
		for n, v := range h.Values {
			if !headerValue(v) {
				return badConfig(here+".values["+strconv.Itoa(n)+"]", "is longer than %d bytes or contains control characters", maxCheckText)
			}
		}
	}
	return nil
}

// unprintable reports whether a path or a host name must not contain r as it is.
func unprintable(r rune) bool { return r <= ' ' || r >= 0x7f }

// isToken reports whether s may be an HTTP method or the name of a header.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return unprintable(r) || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// validateObserved checks from where metrics are scraped.
func (c *MachineConfig) validateObserved() error {
	if m := c.Metrics; m != nil {
		switch {
		case !validPort(m.Port):
			return badConfig("config.metrics.port", "%d is not a port from 1 to 65535", m.Port)
		case !strings.HasPrefix(m.Path, "/"):
			return badConfig("config.metrics.path", "%q does not start with a slash", m.Path)
		}
	}
	return nil
}

func validPort(port int) bool { return port >= 1 && port <= 65535 }
