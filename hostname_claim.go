package hangar

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
)

// HostnameProof is what proves that an App may have a Hostname; empty: nothing has yet. See
// ADR 33.
type HostnameProof string

// The proofs, from the strongest to the weakest.
const (
	ProofOperator    HostnameProof = "operator"    // an administrator of the server vouches for it
	ProofTXT         HostnameProof = "txt"         // a TXT record, see HostnameOwnership, has the id of the App or of its organization
	ProofCertificate HostnameProof = "certificate" // an authority that the server trusts has signed the uploaded certificate
	ProofDNS         HostnameProof = "dns"         // it leads to the App's own name, or to an address that the App has to itself
	ProofACME        HostnameProof = "acme"        // an ACME server has issued a certificate for it, since it leads to this server
)

// HostnameClaimLife is how long an App keeps a Hostname without a proof.
const HostnameClaimLife = 7 * 24 * time.Hour

// ownershipLabel begins the name of the TXT record that proves a Hostname.
const ownershipLabel = "_hangar-ownership."

// HostnameOwnership is the TXT record that proves a Hostname. Either value is enough. The values hold
// ids, which no other App or organization ever gets.
type HostnameOwnership struct {
	Name     Hostname `json:"name"`
	AppValue string   `json:"app_value"`
	OrgValue string   `json:"org_value"`
}

// Ownership returns the record that proves the Hostname for an App and its organization. A wildcard has
// the record of the name after its "*.".
func (h Hostname) Ownership(app AppID, org OrgID) HostnameOwnership {
	name := strings.TrimPrefix(string(h), wildcard)
	return HostnameOwnership{Name: ownershipLabel + Hostname(name), AppValue: "app-" + string(app), OrgValue: "org-" + string(org)}
}

// Proves reports whether TXT records hold one of the values.
func (o HostnameOwnership) Proves(records []string) bool {
	return slices.ContainsFunc(records, func(r string) bool {
		r = strings.TrimSpace(r)
		return r == o.AppValue || r == o.OrgValue
	})
}

// reservedDomains are not part of the public DNS (RFC 6761, 6762, 7686, 9476), or are trusted by
// software on a server or in a Machine.
func reservedDomains() []Hostname {
	return []Hostname{"internal", "flycast", "local", "localhost", "arpa", "onion", "alt", "invalid", "example"}
}

// Unclaimable says why no App can have the Hostname; empty: nothing forbids it.
// Names below a public suffix such as co.uk have many owners, so no App gets the suffix or
// the wildcard of all names directly below it.
func (h Hostname) Unclaimable() string {
	base := Hostname(strings.TrimPrefix(string(h), wildcard))
	for _, domain := range reservedDomains() {
		if base == domain || base.Below(domain) {
			return "names below ." + string(domain) + " are reserved"
		}
	}
	if suffix, _ := publicsuffix.PublicSuffix(string(base)); suffix == string(base) {
		return string(base) + " is a public suffix: names below it belong to many"
	}
	return ""
}

// Registrable is the part of the Hostname that one owner has registered below a public suffix. It is
// empty for a public suffix.
func (h Hostname) Registrable() Hostname {
	name, err := publicsuffix.EffectiveTLDPlusOne(strings.TrimPrefix(string(h), wildcard))
	if err != nil {
		return ""
	}
	return Hostname(name)
}
