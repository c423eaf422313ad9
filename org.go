package hangar

import "context"

// Org is an organization: the owner of Apps, networks, tokens and of the images
// below its slug in the built-in registry.
type Org struct {
	ID        OrgID   `json:"id"`
	Slug      OrgSlug `json:"slug"`
	Name      string  `json:"name"` // for people
	NumericID uint64  `json:"internal_numeric_id"`
}

// Personal reports whether it is the organization that every server has.
func (o Org) Personal() bool { return o.Slug == OrgPersonal }

// OrgCreate is the request for a new organization.
type OrgCreate struct {
	Slug OrgSlug // like an AppName: at most 63 characters of a-z, 0-9 and dash
	Name string  // at most 100 characters; empty: the slug
}

// OrgService keeps the organizations of a server. An organization in which the
// caller is allowed nothing is CodeNotFound, like one that does not exist.
type OrgService interface {
	// CreateOrg is for administrators. It answers CodeInvalid for a bad slug or name
	// (Reason "") and for a slug that exists (ReasonNameTaken).
	CreateOrg(ctx context.Context, in OrgCreate) (*Org, error)
	// Org answers CodeNotFound with ReasonOrgNotFound.
	Org(ctx context.Context, slug OrgSlug) (*Org, error)
	// Orgs are those in which the caller is allowed something, sorted by slug.
	Orgs(ctx context.Context) ([]*Org, error)
	// OrgQuotas are the quotas of the organization, in the order of QuotaKeys.
	OrgQuotas(ctx context.Context, slug OrgSlug) ([]QuotaStatus, error)
	// SetOrgQuotas sets limits of the organization. The limits that reset names return to the server's
	// default. It is for administrators. Usage beyond a lowered limit stays. It answers CodeInvalid for
	// a key or value that is not allowed.
	SetOrgQuotas(ctx context.Context, slug OrgSlug, limits Quotas, reset []QuotaKey) ([]QuotaStatus, error)
	// DeleteOrg removes an organization with its networks, tokens, peers and images. It answers
	// CodeFailedPrecondition for OrgPersonal (Reason "") and while there are Apps
	// (ReasonOrgNotEmpty). It may be repeated until it answers CodeNotFound.
	DeleteOrg(ctx context.Context, slug OrgSlug) error
}
