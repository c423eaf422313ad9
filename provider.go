package hangar

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ProviderName names a provider of extensions: like the name of an App, at most 63 characters of
// a-z, 0-9 and dash.
type ProviderName string

// The limits of providers.
const (
	MaxProviders       = 100
	MaxProviderURL     = 2048 // bytes of a base URL, a redirect URI or the URL of terms
	MaxRedirectURIs    = 10
	MaxProviderPlans   = 50
	MaxProviderRegions = 100
	MaxGrantedApps     = 100

	// MaxRotationOverlap bounds how long an old secret of a provider stays valid.
	MaxRotationOverlap     = 30 * 24 * time.Hour
	DefaultRotationOverlap = 24 * time.Hour
)

// The defaults of a ProviderLimits.
const (
	DefaultProviderExtensions = 10_000
	DefaultProviderPerOrg     = 50
	DefaultProviderWebhooks   = 600
)

// ProviderTerms are what users accept before they create an extension.
type ProviderTerms struct {
	URL     string `json:"url"`
	Version string `json:"version"`
}

// ProviderLimits bound what a provider and its customers use of the platform. Zero fields stand for
// the defaults.
type ProviderLimits struct {
	Extensions int `json:"extensions,omitempty"`          // of all organizations
	PerOrg     int `json:"per_organization,omitempty"`    // extensions of one organization
	Webhooks   int `json:"webhooks_per_minute,omitempty"` // that are accepted
}

// WithDefaults returns the limits with defaults in its empty fields.
func (l ProviderLimits) WithDefaults() ProviderLimits {
	return ProviderLimits{
		Extensions: cmp.Or(l.Extensions, DefaultProviderExtensions),
		PerOrg:     cmp.Or(l.PerOrg, DefaultProviderPerOrg),
		Webhooks:   cmp.Or(l.Webhooks, DefaultProviderWebhooks),
	}
}

// ProviderSettings are the operator's settings of a provider.
type ProviderSettings struct {
	DisplayName string `json:"display_name,omitempty"` // empty: the name
	// BaseURL is that of the provider's server: https, or http with AllowPrivate.
	BaseURL string `json:"base_url" schema:"required"`
	// AllowPrivate lets the server be on loopback, on a private network or on this platform, and
	// speak plain HTTP.
	AllowPrivate bool     `json:"allow_private,omitempty"`
	RedirectURIs []string `json:"redirect_uris,omitempty"` // of single sign-on, compared byte by byte
	// Terms are accepted once by each user. Nil: there are none.
	Terms      *ProviderTerms `json:"terms,omitempty"`
	NameSuffix string         `json:"name_suffix,omitempty"` // follows the App's name in a default name; empty: a dash and the provider's name
	Plans      []string       `json:"plans,omitempty"`       // to choose from; empty: the provider has plans of its own
	Regions    []Region       `json:"regions,omitempty"`     // where extensions are offered; empty: everywhere
	// Asynchronous says that an extension may not be ready when its creation was answered.
	Asynchronous bool `json:"asynchronous,omitempty"`
	ReadReplicas bool `json:"read_replicas,omitempty"` // there may be read regions
	// PublicEventTypes spells the types of Machine events as the public platform does.
	PublicEventTypes bool `json:"public_event_types,omitempty"`
	// PlatformApp is the provider's App on this platform. Apps of its organization may serve
	// extensions, and the provider gets its Machine events. Empty: the provider is elsewhere.
	PlatformApp AppName `json:"platform_app_name,omitempty"`
	// GrantedApps are further Apps whose Machine events the provider gets.
	GrantedApps []AppName      `json:"granted_apps,omitempty"`
	Limits      ProviderLimits `json:"limits,omitzero"`
}

// Provider offers extensions to the customers of the platform.
type Provider struct {
	Name ProviderName `json:"name"`
	ProviderSettings
	ClientID   string    `json:"client_id"`   // of OAuth
	WebhookURL string    `json:"webhook_url"` // to which the provider sends webhooks
	Extensions int       `json:"extensions"`  // how many there are now
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
	// RotationEnds is when the last old secret becomes invalid. Zero: there is none.
	RotationEnds time.Time `json:"rotation_ends_at,omitzero"`
}

// ProviderCreate is the request for a provider.
type ProviderCreate struct {
	Name ProviderName `json:"name" schema:"required"`
	ProviderSettings
}

// ProviderUpdate changes the fields that are not nil.
type ProviderUpdate struct {
	DisplayName      *string         `json:"display_name,omitempty"`
	BaseURL          *string         `json:"base_url,omitempty"`
	AllowPrivate     *bool           `json:"allow_private,omitempty"`
	RedirectURIs     *[]string       `json:"redirect_uris,omitempty"`
	Terms            *ProviderTerms  `json:"terms,omitempty"` // zero: they are removed
	NameSuffix       *string         `json:"name_suffix,omitempty"`
	Plans            *[]string       `json:"plans,omitempty"`
	Regions          *[]Region       `json:"regions,omitempty"`
	Asynchronous     *bool           `json:"asynchronous,omitempty"`
	ReadReplicas     *bool           `json:"read_replicas,omitempty"`
	PublicEventTypes *bool           `json:"public_event_types,omitempty"`
	PlatformApp      *AppName        `json:"platform_app_name,omitempty"`
	GrantedApps      *[]AppName      `json:"granted_apps,omitempty"`
	Limits           *ProviderLimits `json:"limits,omitempty"`
}

// Apply returns the settings with the changes.
func (u ProviderUpdate) Apply(s ProviderSettings) ProviderSettings {
	set(&s.DisplayName, u.DisplayName)
	set(&s.BaseURL, u.BaseURL)
	set(&s.AllowPrivate, u.AllowPrivate)
	set(&s.RedirectURIs, u.RedirectURIs)
	set(&s.NameSuffix, u.NameSuffix)
	set(&s.Plans, u.Plans)
	set(&s.Regions, u.Regions)
	set(&s.Asynchronous, u.Asynchronous)
	set(&s.ReadReplicas, u.ReadReplicas)
	set(&s.PublicEventTypes, u.PublicEventTypes)
	set(&s.PlatformApp, u.PlatformApp)
	set(&s.GrantedApps, u.GrantedApps)
	set(&s.Limits, u.Limits)
	if u.Terms != nil {
		s.Terms = u.Terms
		if *u.Terms == (ProviderTerms{}) {
			s.Terms = nil
		}
	}
	return s
}

func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// ProviderSecret names one of the secrets of a provider.
type ProviderSecret string

// The secrets of a provider.
const (
	SecretOfClient   ProviderSecret = "client"  // of OAuth
	SecretOfRequests ProviderSecret = "request" // signs what the platform sends
	SecretOfWebhooks ProviderSecret = "webhook" // signs what the provider sends
)

// ProviderSecrets lists every secret.
func ProviderSecrets() []ProviderSecret {
	return []ProviderSecret{SecretOfClient, SecretOfRequests, SecretOfWebhooks}
}

// ProviderRotate says which secrets of a provider are replaced.
type ProviderRotate struct {
	Secrets []ProviderSecret `json:"secrets,omitempty"` // empty: all
	// Overlap is how long old secrets stay valid; the platform signs requests with the old one until
	// then. Nil: DefaultRotationOverlap.
	Overlap *Duration `json:"overlap,omitempty"`
}

// NewProvider is a provider with its new secrets, which cannot be shown again. Secrets that did not
// change are zero. The keys of signatures are the bytes of the secrets as shown.
type NewProvider struct {
	Provider
	ClientSecret, RequestSecret, WebhookSecret Sensitive
}

// ProviderNotFound says that there is no such provider: CodeNotFound, ReasonProviderNotFound.
func ProviderNotFound(name ProviderName) *Error {
	return Errorf(CodeNotFound, ReasonProviderNotFound, "Could not find provider %.63q", string(name))
}

// ProviderService keeps the providers of extensions. It is for administrators of the platform.
type ProviderService interface {
	// CreateProvider registers a provider. It answers CodeInvalid, naming the field, with
	// ReasonNameTaken for a name that another one has; CodeExhausted when there are MaxProviders.
	CreateProvider(ctx context.Context, in ProviderCreate) (*NewProvider, error)
	// Providers are sorted by name.
	Providers(ctx context.Context) ([]*Provider, error)
	// Provider answers CodeNotFound with ReasonProviderNotFound.
	Provider(ctx context.Context, name ProviderName) (*Provider, error)
	// UpdateProvider answers as CreateProvider does.
	UpdateProvider(ctx context.Context, name ProviderName, in ProviderUpdate) (*Provider, error)
	// RotateProvider makes new secrets. It answers CodeFailedPrecondition while the previous secret of
	// the same kind is still valid.
	RotateProvider(ctx context.Context, name ProviderName, in ProviderRotate) (*NewProvider, error)
	// RemoveProvider removes a provider. It answers CodeFailedPrecondition while the provider has
	// extensions. With force it removes these, too, with the secrets that they have set, and does not
	// ask the provider to delete them.
	RemoveProvider(ctx context.Context, name ProviderName, force bool) error
}

// Validate checks the settings of a provider. It answers CodeInvalid, naming the field.
func (s *ProviderSettings) Validate() error {
	if fault := titleFault(s.DisplayName); fault != "" {
		return invalidField("display_name", "%s", fault)
	}
	if err := checkProviderURL("base_url", s.BaseURL, s.AllowPrivate); err != nil {
		return err
	}
	if u, _ := url.Parse(s.BaseURL); u.RawQuery != "" || u.ForceQuery {
		return invalidField("base_url", "must not have a query")
	}
	if len(s.RedirectURIs) > MaxRedirectURIs {
		return invalidField("redirect_uris", "has %d entries, more than %d", len(s.RedirectURIs), MaxRedirectURIs)
	}
	for i, uri := range s.RedirectURIs {
		if err := checkProviderURL(fmt.Sprintf("redirect_uris[%d]", i), uri, s.AllowPrivate); err != nil {
			return err
		}
	}
	if s.Terms != nil {
		if err := checkProviderURL("terms.url", s.Terms.URL, true); err != nil {
			return err
		}
		if s.Terms.Version == "" || titleFault(s.Terms.Version) != "" {
			return invalidField("terms.version", "must have 1 to %d printable characters", maxTitle)
		}
	}
	return s.validateOptions()
}

// validateOptions checks the settings that are not URLs.
func (s *ProviderSettings) validateOptions() error {
	if len(s.NameSuffix) > 32 || strings.Trim(s.NameSuffix, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return invalidField("name_suffix", "must have at most 32 characters of a-z, 0-9 and dash")
	}
	if len(s.Plans) > MaxProviderPlans {
		return invalidField("plans", "has %d entries, more than %d", len(s.Plans), MaxProviderPlans)
	}
	for i, plan := range s.Plans {
		if plan == "" || titleFault(plan) != "" || slices.Contains(s.Plans[:i], plan) {
			return invalidField(fmt.Sprintf("plans[%d]", i), "must have 1 to %d printable characters, and be there once", maxTitle)
		}
	}
	if len(s.Regions) > MaxProviderRegions {
		return invalidField("regions", "has %d entries, more than %d", len(s.Regions), MaxProviderRegions)
	}
	for i, region := range s.Regions {
		if !region.IsCode() {
			return invalidField(fmt.Sprintf("regions[%d]", i), "%.40q is not the code of a region", string(region))
		}
	}
	if len(s.GrantedApps) > MaxGrantedApps {
		return invalidField("granted_apps", "has %d entries, more than %d", len(s.GrantedApps), MaxGrantedApps)
	}
	for name, n := range map[string]int{
		"extensions": s.Limits.Extensions, "per_organization": s.Limits.PerOrg, "webhooks_per_minute": s.Limits.Webhooks,
	} {
		if n < 0 || n > 1_000_000 {
			return invalidField("limits."+name, "must be from 0 to 1000000")
		}
	}
	return nil
}

// checkProviderURL checks that text is an absolute URL of the web, with TLS unless plain is true.
func checkProviderURL(field, text string, plain bool) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return invalidField(field, "is required")
	case len(text) > MaxProviderURL:
		return invalidField(field, "has %d bytes, more than %d", len(text), MaxProviderURL)
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return invalidField(field, "%.80q must be https://, a host and perhaps a path", text)
	case u.Fragment != "" || strings.Contains(text, "#"):
		return invalidField(field, "must not have a fragment")
	case u.Scheme == "http" && !plain:
		return invalidField(field, "must be https, unless allow_private is set")
	default:
		return nil
	}
}

// maxTitle bounds texts for people, in characters.
const maxTitle = 100

// titleFault says what is wrong with a text for people, or returns "".
func titleFault(text string) string {
	switch {
	case utf8.RuneCountInString(text) > maxTitle:
		return fmt.Sprintf("has more than %d characters", maxTitle)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "may only contain printable characters"
	default:
		return ""
	}
}

func invalidField(field, rule string, args ...any) error {
	return Errorf(CodeInvalid, "", "invalid %s: %s", field, fmt.Sprintf(rule, args...))
}
