package hangar

// PlatformName is a label directly below the domain of Apps under which the platform itself
// answers, as in api.example.com.
type PlatformName string

// The names at which the platform answers.
const (
	PlatformAPI      PlatformName = "api"      // the REST API, with everything else that its listener serves
	PlatformRegistry PlatformName = "registry" // the OCI distribution API of the built-in registry
	PlatformOIDC     PlatformName = "oidc"     // the issuers of identity tokens
	PlatformMetrics  PlatformName = "metrics"  // queries of series
	PlatformAuth     PlatformName = "auth"     // where users sign in by a browser, and third parties learn who they are
)

// Hostname is the name below a domain.
func (n PlatformName) Hostname(domain Hostname) Hostname { return Hostname(n) + "." + domain }

// Reserved reports whether no App may have a name below the domain. Either the platform answers there,
// now or in a later version, or software looks the name up by convention and trusts the answer, as
// browsers do with wpad. RFC 2142 and RFC 8461 have others.
func (a AppName) Reserved() bool {
	switch a {
	case AppName(PlatformAPI), AppName(PlatformRegistry), AppName(PlatformOIDC), AppName(PlatformMetrics), AppName(PlatformAuth), "ui":
		return true
	case "admin", "console", "dashboard", "docs", "hangar", "login", "status", "www":
		return true
	case "autoconfig", "autodiscover", "dns", "imap", "isatap", "localhost", "mail", "mta-sts", "ns", "ns1", "ns2", "pop", "smtp", "wpad":
		return true
	}
	return false
}
