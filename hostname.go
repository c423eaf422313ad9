package hangar

import (
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// The bounds of a hostname, in bytes.
const (
	maxHostname      = 253
	maxHostnameInput = 1024 // before it is converted
	wildcard         = "*."
)

// ParseHostname returns the canonical form of a Hostname: in lower case, in the ASCII form of an
// internationalized name, and without the final dot. It answers CodeInvalid, naming the field hostname,
// for a name that cannot have a certificate: an address, a name of one label, or one with a "*" that is
// not in front.
func ParseHostname(text string) (Hostname, error) {
	fault := func(why string) (Hostname, error) {
		return "", Errorf(CodeInvalid, "", "invalid hostname: %.100q %s", text, why)
	}
	if text == "" {
		return "", Errorf(CodeInvalid, "", "invalid hostname: is required")
	}
	if len(text) > maxHostnameInput {
		return fault("is longer than a DNS name may be")
	}
	name := strings.TrimSuffix(text, ".")
	rest, below := strings.CutPrefix(name, wildcard)
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return fault("is an address, not a DNS name")
	}
	ascii, err := idna.Lookup.ToASCII(rest)
	if err == nil {
		_, err = idna.Lookup.ToUnicode(ascii) // invalid UTF-8 becomes a name that no client can request
	}
	if err != nil || ascii == "" || strings.HasSuffix(ascii, ".") {
		return fault("is not a DNS name: letters, digits and dashes, in labels of at most 63 characters")
	}
	labels := strings.Split(ascii, ".")
	if len(labels) < 2 {
		return fault("has a single label; a name such as www.example.com is wanted")
	}
	for _, label := range labels {
		if len(label) == 0 || len(label) > 63 {
			return fault("has a label that is empty or longer than 63 characters")
		}
	}
	if strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return fault("ends in a number, as only addresses do")
	}
	if below {
		ascii = wildcard + ascii
	}
	if len(ascii) > maxHostname {
		return fault("is longer than 253 characters")
	}
	return Hostname(ascii), nil
}

// Wildcard reports whether the Hostname stands for all names one label below another.
func (h Hostname) Wildcard() bool { return strings.HasPrefix(string(h), wildcard) }

// Parent is the Hostname without its first label; empty when there is no dot.
func (h Hostname) Parent() Hostname {
	_, parent, _ := strings.Cut(string(h), ".")
	return Hostname(parent)
}

// Covering is the wildcard that stands for a Hostname.
func (h Hostname) Covering() Hostname { return wildcard + h.Parent() }

// Below reports whether the Hostname is a name below another one, at any depth.
func (h Hostname) Below(parent Hostname) bool {
	return strings.HasSuffix(string(h), "."+string(parent))
}
