package hangar

import (
	"net/netip"
	"strconv"
	"strings"
)

// DNSConfig changes the names of a Machine and how it resolves others.
type DNSConfig struct {
	SkipRegistration bool             `json:"skip_registration,omitempty"` // the Machine has no name in the private network
	Nameservers      []string         `json:"nameservers,omitempty"`       // addresses, instead of the platform's
	Searches         []string         `json:"searches,omitempty"`
	Options          []DNSOption      `json:"options,omitempty"`
	ForwardRules     []DNSForwardRule `json:"dns_forward_rules,omitempty"`
	Hostname         string           `json:"hostname,omitempty"` // instead of the Machine's id
	HostnameFQDN     string           `json:"hostname_fqdn,omitempty"`
}

// DNSOption is an option of resolv.conf: a name such as "edns0", or one with a value
// such as "ndots".
type DNSOption struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
}

// DNSForwardRule sends queries below a name to a resolver.
type DNSForwardRule struct {
	Basename string `json:"basename,omitempty"`
	Addr     string `json:"addr,omitempty"`
}

// The bounds of a DNSConfig, some of which DNS and the kernel set.
const (
	maxNameBytes     = 253
	maxLabelBytes    = 63
	maxNameservers   = 8
	maxSearches      = 32
	maxDNSOptions    = 32
	maxHostnameBytes = 64
)

func (c *MachineConfig) validateDNS() error {
	d := c.DNS
	const at = "config.dns"
	switch {
	case d == nil:
		return nil
	case len(d.ForwardRules) > 0:
		return unsupported(at+".dns_forward_rules", "forwarding of names is not offered")
	case len(d.Nameservers) > maxNameservers:
		return badConfig(at+".nameservers", "has %d entries, more than the %d that are allowed", len(d.Nameservers), maxNameservers)
	case len(d.Searches) > maxSearches:
		return badConfig(at+".searches", "has %d entries, more than the %d that are allowed", len(d.Searches), maxSearches)
	case len(d.Options) > maxDNSOptions:
		return badConfig(at+".options", "has %d entries, more than the %d that are allowed", len(d.Options), maxDNSOptions)
	case d.Hostname != "" && (!validName(d.Hostname) || len(d.Hostname) > maxHostnameBytes):
		return badConfig(at+".hostname", "%q is not the name of a host", d.Hostname)
	case d.HostnameFQDN != "" && !validName(d.HostnameFQDN):
		return badConfig(at+".hostname_fqdn", "%q is not the name of a host", d.HostnameFQDN)
	}
	for i, ns := range d.Nameservers {
		if _, err := netip.ParseAddr(ns); err != nil {
			return badConfig(at+".nameservers["+strconv.Itoa(i)+"]", "%q is not an IP address", ns)
		}
	}
	for i, s := range d.Searches {
		if s != "." && !validName(s) {
			return badConfig(at+".searches["+strconv.Itoa(i)+"]", "%q is not a domain", s)
		}
	}
	for i, o := range d.Options {
		at := at + ".options[" + strconv.Itoa(i) + "]"
		switch {
		case o.Name == "" || strings.ContainsFunc(o.Name, notInOption):
			return badConfig(at+".name", "%q is not the name of an option", o.Name)
		case strings.ContainsFunc(o.Value, notInOption):
			return badConfig(at+".value", "%q is not the value of an option", o.Value)
		}
	}
	return nil
}

func notInOption(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }

// validName reports whether name consists of labels, with or without a dot at its end.
func validName(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > maxNameBytes {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabelBytes || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool {
				return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
			}) {
			return false
		}
	}
	return true
}
