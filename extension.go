package hangar

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"time"
)

// ExtensionID identifies an extension permanently: 16 characters of a-z and 0-9.
type ExtensionID string

// ExtensionStatus is how an extension is. Beside the constants there are words of providers.
type ExtensionStatus string

// The statuses that the platform gives.
const (
	ExtensionProvisioning ExtensionStatus = "provisioning" // the provider has not made it yet
	ExtensionReady        ExtensionStatus = "ready"
	ExtensionSleeping     ExtensionStatus = "sleeping"
	ExtensionError        ExtensionStatus = "error"      // provisioning has failed; see Extension.Error
	ExtensionDestroying   ExtensionStatus = "destroying" // the provider has not confirmed its end yet
)

// The limits of an extension.
const (
	MaxExtensionUsage = 16 << 10 // bytes of Extension.Usage
	MaxReadRegions    = 20
)

// Extension is something that a provider offers, such as a database, for one App.
type Extension struct {
	ID       ExtensionID  `json:"id"`
	Name     string       `json:"name"` // unique across the platform, but for what has no App
	Provider ProviderName `json:"provider"`
	// App is empty for what a provider has made for the organization by itself.
	App           AppName         `json:"app_name,omitempty"`
	Org           OrgSlug         `json:"org_slug"`
	User          UserID          `json:"user_id"` // its creator
	Plan          string          `json:"plan,omitempty"`
	PrimaryRegion Region          `json:"primary_region,omitempty"`
	ReadRegions   []Region        `json:"read_regions,omitempty"`
	Status        ExtensionStatus `json:"status"`
	Error         string          `json:"error,omitempty"` // what went wrong last, and still does
	// IP is a private address in the network of the App that the provider's App may serve.
	IP          netip.Addr `json:"ip_address,omitzero"`
	PlatformApp AppName    `json:"platform_app_name,omitempty"` // the provider's App that serves IP
	ProviderID  string     `json:"provider_id,omitempty"`       // the provider's own id for it
	Secrets     []string   `json:"secrets"`                     // names of the App's secrets that it has set
	// Usage are further members of what the provider says of it, as they are.
	Usage     map[string]json.RawMessage `json:"usage,omitempty"`
	CheckedAt time.Time                  `json:"checked_at,omitzero"` // when the provider last said how it is
	CreatedAt time.Time                  `json:"created_at"`
	UpdatedAt time.Time                  `json:"updated_at"`
}

// ExtensionCreate is the request for an extension.
type ExtensionCreate struct {
	Provider      ProviderName `json:"provider" schema:"required"`
	Name          string       `json:"name,omitempty"` // empty: that of the App with the provider's suffix
	Plan          string       `json:"plan,omitempty"`
	PrimaryRegion Region       `json:"primary_region,omitempty"`
	ReadRegions   []Region     `json:"read_regions,omitempty"`
	// AcceptTerms is the version of the provider's terms that the user accepts. It is needed once for
	// each user, provider and version.
	AcceptTerms string `json:"accept_terms,omitempty"`
	// Overwrite replaces secrets of the App that have the names of the extension's.
	Overwrite bool `json:"overwrite,omitempty"`
}

// ExtensionUpdate changes what is not nil.
type ExtensionUpdate struct {
	Plan          *string   `json:"plan,omitempty"`
	PrimaryRegion *Region   `json:"primary_region,omitempty"`
	ReadRegions   *[]Region `json:"read_regions,omitempty"`
}

// ExtensionRetry is the request to try a failed step again.
type ExtensionRetry struct {
	Overwrite bool `json:"overwrite,omitempty"` // as in ExtensionCreate
}

// ExtensionLink opens an extension at its provider.
type ExtensionLink struct {
	// URL works once, within five minutes.
	URL string `json:"url"`
}

// ExtensionNotFound says that an App has no such extension: CodeNotFound, ReasonExtensionNotFound.
func ExtensionNotFound(name string) *Error {
	return Errorf(CodeNotFound, ReasonExtensionNotFound, "Could not find extension %.63q", name)
}

// CheckRegions answers CodeInvalid, naming the field, for regions that do not exist, are more than
// MaxReadRegions, or are not among the offered ones, if there are any.
func CheckRegions(field string, regions, offered []Region) error {
	if len(regions) > MaxReadRegions {
		return invalidField(field, "has %d regions, more than %d", len(regions), MaxReadRegions)
	}
	for _, region := range regions {
		if !region.IsCode() {
			return invalidField(field, "%.40q is not the code of a region", string(region))
		}
		if len(offered) > 0 && !slices.Contains(offered, region) {
			return invalidField(field, "the provider offers nothing in %s; it does in %v", region, offered)
		}
	}
	return nil
}

// ExtensionService keeps the extensions of Apps. What changes one needs ActionWrite on its App, and
// what shows one ActionRead.
type ExtensionService interface {
	// CreateExtension has a provider make an extension, and sets what the provider answers as
	// secrets of the App: all or none. It returns when that is done, or after a few seconds, with the
	// status at that time; the work continues. It answers CodeInvalid with ReasonProviderNotFound for
	// an unknown provider and with ReasonNameTaken for a name that is not free,
	// CodeFailedPrecondition with ReasonTermsNotAccepted while the user has to accept the provider's
	// terms, or for a token that belongs to no user, and CodeExhausted when the organization or the
	// provider has as many as it may.
	CreateExtension(ctx context.Context, app AppName, in ExtensionCreate) (*Extension, error)
	// Extensions are those of an App, sorted by name.
	Extensions(ctx context.Context, app AppName) ([]*Extension, error)
	// OrgExtensions are all of an organization, sorted by name, also those that its providers have
	// made by themselves, and those whose App is gone and whose provider has not confirmed
	// their end yet. It needs ActionRead on the organization.
	OrgExtensions(ctx context.Context, org OrgSlug) ([]*Extension, error)
	// Extension answers CodeNotFound with ReasonExtensionNotFound.
	Extension(ctx context.Context, app AppName, name string) (*Extension, error)
	// UpdateExtension asks the provider for a change, and returns as CreateExtension does. It answers
	// CodeConflict with ReasonWrongState while the extension is being made, changed or destroyed.
	UpdateExtension(ctx context.Context, app AppName, name string, in ExtensionUpdate) (*Extension, error)
	// DestroyExtension removes the secrets that the extension has set, and has the provider delete
	// it. It returns nil when the provider has confirmed that within a few seconds, and otherwise
	// the extension, which goes when it does. It may be repeated.
	DestroyExtension(ctx context.Context, app AppName, name string) (*Extension, error)
	// RetryExtension tries again what has failed, and returns as CreateExtension does. It answers
	// CodeConflict with ReasonWrongState when nothing has.
	RetryExtension(ctx context.Context, app AppName, name string, in ExtensionRetry) (*Extension, error)
	// ExtensionLink returns the link of single sign-on. It answers CodeConflict with
	// ReasonWrongState before the provider has made the extension.
	ExtensionLink(ctx context.Context, app AppName, name string) (*ExtensionLink, error)
}
