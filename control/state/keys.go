package state

import "github.com/hangar-platform/hangar"

// Keys of the state, except for those of packages auth and oidc. Names and ids cannot contain a
// slash, so a prefix that ends with one selects exactly the records of one App, organization or
// host. The content of an App or organization is found by its id: the next one of the same name
// finds nothing of it (ADR 28).
const (
	OrgsPrefix         = "/orgs/"            // <org>
	NetworksPrefix     = "/networks/"        // <id of the org>/<network>
	AppsPrefix         = "/apps/"            // <app>
	OrgAppsPrefix      = "/org-apps/"        // <id of the org>/<app>, whose id it is
	ReservationsPrefix = "/machines/"        // <id of the app>/<id>
	NamesPrefix        = "/machine-names/"   // <id of the app>/<name>
	HostsPrefix        = "/hosts/"           // <host>/machines/<id>
	VolumesPrefix      = "/volumes/"         // <id of the app>/<id>, also of Apps that were destroyed
	CredentialsPrefix  = "/registries/"      // <registry>
	SecretsPrefix      = "/secrets/"         // <id of the app>
	PeersPrefix        = "/peers/"           // <id of the org>/<name>
	PeerKeysPrefix     = "/peer-keys/"       // <public key in hexadecimal>
	AddressesPrefix    = "/addresses/"       // <id of the app>/<address>
	OwnersPrefix       = "/address-owners/"  // <address>
	HostnamesPrefix    = "/hostnames/"       // <hostname, its labels from the right: com.example.www>
	HeldNamesPrefix    = "/held-hostnames/"  // <id of the org>/<id of the app, none if it was given up>/<as in HostnamesPrefix>
	CertificatesPrefix = "/certificates/"    // <hostname>, what was uploaded
	ACMEPrefix         = "/acme/"            // <ACME server>/<the edges' own>: account, certificates, failures; encrypted
	ACMELocksPrefix    = "/acme-locks/"      // <ACME server>/<the edges' own>, as long as its holder lives
	ArchivePrefix      = "/archive/"         // what the archive of snapshots needs
	AlertsPrefix       = "/alerts/"          // <id of the org>
	WebhooksPrefix     = "/webhooks/"        // <id of the org>
	ReleasesPrefix     = "/releases/"        // <id of the app>/<version, ten digits>
	ElectionsPrefix    = "/elections/"       // <id of the app>, and below it <name>/record and <name>/sessions/<id>
	SSHPrefix          = "/ssh-authorities/" // <id of the org>, encrypted
	PushedPrefix       = "/pushed/"          // <hangar.Repository.Path>/_/ of the built-in registry, and below it manifests, tags and hosts
	UsersPrefix        = "/users/"           // <id of the user>
	EmailsPrefix       = "/user-emails/"     // <e-mail address in lower case>
	PasswordsPrefix    = "/user-passwords/"  // <id of the user>
	SignInsPrefix      = "/user-sign-ins/"   // <id of the user>, when the last was
	ResetsPrefix       = "/user-resets/"     // <id of the user>, of the password
	IdentitiesPrefix   = "/user-identities/" // <digest of issuer and subject>
	CustomersPrefix    = "/user-customers/"  // <what is before the @ of a customer address>
	OAuthPrefix        = "/oauth/"           // <id of the user>, codes and consents
	MembersPrefix      = "/members/"         // <id of the org>/<id of the user>
	FleetPrefix        = "/fleet/"           // hosts/<host>, alive/<host> as long as it lives, join-tokens/<id>
	InvitationsPrefix  = "/invitations/"     // <id of the invitation>, which begins with that of the org
	// Extensions and their providers.
	ProvidersPrefix       = "/providers/"           // <provider>
	ProviderSecretsPrefix = "/provider-secrets/"    // <provider>, encrypted
	ProviderCountsPrefix  = "/provider-counts/"     // <provider>, how many extensions there are
	ClientsPrefix         = "/oauth-clients/"       // <id of the client>, whose it is
	TermsPrefix           = "/terms/"               // <provider>/<id of the user>, what was accepted
	ExtensionsPrefix      = "/extensions/"          // <id of the org>/<id of the extension>
	ExtensionNamesPrefix  = "/extension-names/"     // <name>
	ExtensionConfigPrefix = "/extension-config/"    // <id of the org>/<id of the extension>, encrypted
	ResourcesPrefix       = "/extension-resources/" // <provider>/<the provider's id, escaped>

	SealKey            = "/seal"           // says which keys encrypt what is encrypted
	UsagePrefix        = "/usage/"         // <id of the organization>, what it uses of its quotas
	VolumeClaimsPrefix = "/volume-claims/" // <id of the volume>, what it counts against quotas
	AppCounter         = "/counters/apps"
	NetworkCounter     = "/counters/networks"
	OrgCounter         = "/counters/orgs"
	PeerCounter        = "/counters/peers"
	HostnameCounter    = "/counters/hostnames"
	AddressCounters    = "/counters/addresses/" // v4, v6 or the number of a network
)

// OrgKey is the key of an organization.
func OrgKey(org hangar.OrgSlug) string { return OrgsPrefix + string(org) }

// AlertsKey is the key of what an organization is alerted of.
func AlertsKey(org hangar.OrgID) string { return AlertsPrefix + string(org) }

// WebhooksKey is the key of the webhooks of an organization.
func WebhooksKey(org hangar.OrgID) string { return WebhooksPrefix + string(org) }

// SSHAuthorityKey is the key of the authority that signs SSH certificates of an organization.
func SSHAuthorityKey(org hangar.OrgID) string { return SSHPrefix + string(org) }

// NetworkKey is the key of a network of an organization; without a name, the prefix of all.
func NetworkKey(org hangar.OrgID, name string) string {
	return NetworksPrefix + string(org) + "/" + name
}

// AppKey is the key of an App.
func AppKey(app hangar.AppName) string { return AppsPrefix + string(app) }

// OrgAppKey is the key by which an App is found among those of its organization; without a name, the prefix of all.
func OrgAppKey(org hangar.OrgID, app hangar.AppName) string {
	return OrgAppsPrefix + string(org) + "/" + string(app)
}

// ReservationKey is the key of the reservation of a Machine; without an id, the prefix of all of
// its App.
func ReservationKey(ref hangar.MachineRef) string {
	return ReservationsPrefix + string(ref.AppID) + "/" + string(ref.ID)
}

// NameKey is the key of the name of a Machine; without a name, the prefix of all of the App.
func NameKey(app hangar.AppID, name string) string {
	return NamesPrefix + string(app) + "/" + name
}

// VolumeKey is the key of the row of a volume; without an id, the prefix of all of its App.
func VolumeKey(ref hangar.VolumeRef) string {
	return VolumesPrefix + string(ref.AppID) + "/" + string(ref.ID)
}

// UsageKey is the key of what an organization uses.
func UsageKey(org hangar.OrgID) string { return UsagePrefix + string(org) }

// UserKey is the key of a user.
func UserKey(id hangar.UserID) string { return UsersPrefix + string(id) }

// OAuthKey is the key of what a user has to do with third parties.
func OAuthKey(id hangar.UserID) string { return OAuthPrefix + string(id) }

// MemberKey is the key of a membership; without a user, the prefix of all of the organization.
func MemberKey(org hangar.OrgID, id hangar.UserID) string {
	return MembersPrefix + string(org) + "/" + string(id)
}
