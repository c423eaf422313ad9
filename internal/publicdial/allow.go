package publicdial

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Allowed is an exception by the operator of a server.
type Allowed struct {
	host   string       // lowercase; empty: prefix applies
	prefix netip.Prefix // of dialled addresses
	port   string       // empty: every port, or 80 and 443 for a host
}

// ParseAllowed reads an exception. A network, 10.1.0.0/16, allows every port of its addresses. An
// address with or without a port, 10.1.2.3:5000 or [fd00::1], allows that address under any name. A
// name with or without a port, registry.example.com:5000, allows all addresses of the name; it is for
// names whose DNS the operator trusts. A name without a port allows the ports 80 and 443.
func ParseAllowed(text string) (Allowed, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return Allowed{}, fmt.Errorf("%.100q is not a network like 10.1.0.0/16", text)
		case p != p.Masked():
			return Allowed{}, fmt.Errorf("%.100q is not a network; that would be %s", text, p.Masked())
		case p.Addr().Is4In6():
			return Allowed{}, fmt.Errorf("%.100q must be written as an IPv4 network", text)
		}
		return Allowed{prefix: p}, nil
	}
	host, port := text, ""
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return Allowed{}, fmt.Errorf("%.100q has no port from 1 to 65535", text)
		}
	}
	host = strings.ToLower(host)
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		a = plain(a)
		return Allowed{prefix: netip.PrefixFrom(a, a.BitLen()), port: orWeb(port)}, nil
	}
	if host == "" || len(host) > maxHost || strings.ContainsAny(host, ":[]*?#@ \t\r\n") {
		return Allowed{}, fmt.Errorf("%.100q must be HOST, HOST:PORT, an address or a network", text)
	}
	return Allowed{host: host, port: orWeb(port)}, nil
}

// webPorts means 80 and 443.
const webPorts = "web"

func orWeb(port string) string {
	if port == "" {
		return webPorts
	}
	return port
}

// covers reports whether the exception applies to the dialled address of a host.
func (a Allowed) covers(host string, dialled netip.AddrPort) bool {
	port := strconv.Itoa(int(dialled.Port()))
	if a.port != "" && a.port != port && (a.port != webPorts || port != "80" && port != "443") {
		return false
	}
	if a.host != "" {
		return a.host == strings.ToLower(strings.TrimSuffix(host, "."))
	}
	return a.prefix.Contains(plain(dialled.Addr()))
}
