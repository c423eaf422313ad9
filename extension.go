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

// ExtensionStatus is the status of an extension. Providers may set other values than the constants.
type ExtensionStatus string

// The statuses that the platform sets.
const (
	ExtensionProvisioning ExtensionStatus = "provisioning" // the provider has not made it yet
	ExtensionReady        ExtensionStatus = "ready"
	ExtensionSleeping     ExtensionStatus = "sleeping"
	ExtensionError        ExtensionStatus = "error"      // provisioning has failed; see Extension.Error
	ExtensionDestroying   ExtensionStatus = "destroying" // the provider has not confirmed the deletion yet
)

// The limits of an extension.
const (
	MaxExtensionUsage = 16 << 10 // bytes of Extension.Usage
	MaxReadRegions    = 20
)

// Extension is something that a provider offers, such as a database, for one App.
type Extension struct {
	ID       ExtensionID  `json:"id"`
	Name     string       `json:"name"` // unique on the platform among extensions with an App
	Provider ProviderName `json:"provider"`
	// App is empty for an extension that a provider has created for the organization by itself.
	App           AppName         `json:"app_name,omitempty"`
	Org           OrgSlug         `json:"org_slug"`
	User          UserID          `json:"user_id"` // its creator
	Plan          string          `json:"plan,omitempty"`
	PrimaryRegion Region          `json:"primary_region,omitempty"`
	ReadRegions   []Region        `json:"read_regions,omitempty"`
	Status        ExtensionStatus `json:"status"`
	Error         string          `json:"error,omitempty"` // the last fault, while it lasts
	// IP is a private address in the network of the App. The provider's App may serve it.
	IP          netip.Addr `json:"ip_address,omitzero"`
	PlatformApp AppName    `json:"platform_app_name,omitempty"` // the provider's App that serves IP
	ProviderID  string     `json:"provider_id,omitempty"`       // the provider's own id for it
	Secrets     []string   `json:"secrets"`                     // names of the App's secrets that the extension has set
	// Usage holds further members of the provider's answer, unchanged.
	Usage     map[string]json.RawMessage `json:"usage,omitempty"`
	CheckedAt time.Time                  `json:"checked_at,omitzero"` // when the provider last reported the status
	CreatedAt time.Time                  `json:"created_at"`
	UpdatedAt time.Time                  `json:"updated_at"`
}

// ExtensionCreate is the request for an extension.
type ExtensionCreate struct {
	Provider      ProviderName `json:"provider" schema:"required"`
	Name          string       `json:"name,omitempty"` // empty: the App's name with the provider's suffix
	Plan          string       `json:"plan,omitempty"`
	PrimaryRegion Region       `json:"primary_region,omitempty"`
	ReadRegions   []Region     `json:"read_regions,omitempty"`
	// AcceptTerms is the version of the provider's terms that the user accepts. It is needed once for
	// each user, provider and version.
	AcceptTerms string `json:"accept_terms,omitempty"`
	// Overwrite replaces secrets of the App that have the names of the extension's.
	Overwrite bool `json:"overwrite,omitempty"`
}

// ExtensionUpdate changes the fields that are not nil.
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

// CheckRegions answers CodeInvalid, naming the field, for unknown regions, for more than
// MaxReadRegions, and for regions that are not offered. If none are offered, all are allowed.
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

// ExtensionService manages the extensions of Apps. To change one needs ActionWrite on its App, to read
// one ActionRead.
type ExtensionService interface {
	// CreateExtension has a provider create an extension, and sets the secrets of its answer in the
	// App: all or none. It returns when that is done, or after a few seconds, with the status at that
	// time; the work continues. It answers CodeInvalid with ReasonProviderNotFound for an unknown
	// provider and with ReasonNameTaken for a name that is not free. It answers CodeFailedPrecondition
	// with ReasonTermsNotAccepted while the user has not accepted the provider's terms, or for a token
	// that belongs to no user, and CodeExhausted when the organization or the provider has reached its
	// limit.
	CreateExtension(ctx context.Context, app AppName, in ExtensionCreate) (*Extension, error)
	// Extensions are those of an App, sorted by name.
	Extensions(ctx context.Context, app AppName) ([]*Extension, error)
	// OrgExtensions are all extensions of an organization, sorted by name. They include those that
	// providers have created by themselves, and those of a destroyed App whose provider has not
	// confirmed the deletion yet. It needs ActionRead on the organization.
	OrgExtensions(ctx context.Context, org OrgSlug) ([]*Extension, error)
	// Extension answers CodeNotFound with ReasonExtensionNotFound.
	Extension(ctx context.Context, app AppName, name string) (*Extension, error)
	// UpdateExtension asks the provider for a change, and returns as CreateExtension does. It answers
	// CodeConflict with ReasonWrongState while the extension is being made, changed or destroyed.
	UpdateExtension(ctx context.Context, app AppName, name string, in ExtensionUpdate) (*Extension, error)
	// DestroyExtension removes the secrets that the extension has set, and has the provider delete it.
	// It returns nil if the provider confirms that within a few seconds. Otherwise it returns the
	// extension, which disappears once the provider confirms. It may be repeated.
	DestroyExtension(ctx context.Context, app AppName, name string) (*Extension, error)
	// RetryExtension repeats the step that failed, and returns as CreateExtension does. It answers
	// CodeConflict with ReasonWrongState when no step has failed.
	RetryExtension(ctx context.Context, app AppName, name string, in ExtensionRetry) (*Extension, error)
	// ExtensionLink returns the link of single sign-on. It answers CodeConflict with
	// ReasonWrongState before the provider has made the extension.
	ExtensionLink(ctx context.Context, app AppName, name string) (*ExtensionLink, error)
}
