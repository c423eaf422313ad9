package hangar

import (
	"context"
	"strings"
	"time"
)

// ImageRef is a resolved reference to an image, which permanently names what a Machine ran.
type ImageRef struct {
	Registry   string            `json:"registry"`   // e.g. "registry-1.docker.io"
	Repository string            `json:"repository"` // e.g. "library/nginx"
	Tag        string            `json:"tag,omitempty"`
	Digest     string            `json:"digest"` // "sha256:…" of the manifest; empty until resolved
	Labels     map[string]string `json:"labels"`
}

// String returns registry/repository:tag@digest, leaving out what is empty.
func (r ImageRef) String() string {
	s := r.Registry + "/" + r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// RepositoryName is how clients name a repository of the built-in registry: ORG/NAME, or NAME
// for one of the server.
type RepositoryName string

// Target is what the repository belongs to. ORG/NAME and everything below it belongs to the
// organization, and to its App of this name if there is one, so that a token of the App may push there.
// A name without a slash belongs to the server: every caller may read it, and only an administrator may
// write it.
func (n RepositoryName) Target() Target {
	org, rest, found := strings.Cut(string(n), "/")
	if !found {
		return Target{}
	}
	app, _, _ := strings.Cut(rest, "/")
	return Target{Org: OrgSlug(org), App: AppName(app)}
}

// Name is the name within the organization, or the server.
func (n RepositoryName) Name() string {
	if _, rest, found := strings.Cut(string(n), "/"); found {
		return rest
	}
	return string(n)
}

// RepositoryService decides who may use the repositories of the built-in registry.
type RepositoryService interface {
	// Repository returns where a repository is kept, even one without content. The caller must be
	// allowed action: ActionRead to pull, ActionWrite to push, ActionDelete to remove. It answers
	// CodeForbidden, and CodeNotFound with ReasonOrgNotFound.
	Repository(ctx context.Context, name RepositoryName, action Action) (Repository, error)
}

// Repository is where a repository of the built-in registry is kept. It has the id of the organization,
// because the slug may pass to another one.
type Repository struct {
	Org  OrgID  // empty: it belongs to the server
	Name string // without the slug
}

// Root is the first part of Path, which all repositories of the organization or of the server share.
func (r Repository) Root() string {
	if r.Org == "" {
		return "server"
	}
	return "orgs/" + string(r.Org)
}

// Path names the repository on a host.
func (r Repository) Path() string { return r.Root() + "/" + r.Name }

// Image is an image that a host holds unpacked.
type Image struct {
	Ref       ImageRef  `json:"ref"`
	SizeBytes int64     `json:"size_bytes"` // unpacked
	InUse     bool      `json:"in_use"`     // by a Machine
	LastUsed  time.Time `json:"last_used"`
}

// ImageUsage is the disk space that the images of an organization use, in bytes. An image that several
// organizations use counts for each.
type ImageUsage struct {
	Stored   int64 `json:"stored_bytes"`   // in its repositories of the built-in registry
	Uploads  int64 `json:"upload_bytes"`   // pushed and not finished
	Unpacked int64 `json:"unpacked_bytes"` // images that were pulled for it, with their configs
}

// ResolvedImage is what a reference to an image stands for at present.
type ResolvedImage struct {
	Ref ImageRef
	// Size is how many bytes a host without the image transfers. If a host holds the image already,
	// Size is how many bytes it has unpacked.
	Size int64
}

// ImagePuller is the organization for which a host asks a registry.
type ImagePuller struct {
	Org         OrgID
	Slug        OrgSlug // by which references to the built-in registry name the organization
	AnyRegistry bool    // the registry may be at any address: an administrator has named it
}

// ImageResolver resolves references to images.
type ImageResolver interface {
	// ResolveImage asks the registry what a reference stands for, as the creation of a Machine of the
	// App does. It needs ActionWrite on the App. It answers CodeInvalid with ReasonBadConfig,
	// ReasonImageNotFound, ReasonBadImage or ReasonRegistryNotAllowed, and CodeUnavailable.
	ResolveImage(ctx context.Context, app AppName, ref string) (*ResolvedImage, error)
}

// ImageService shows and frees the images that hosts hold.
type ImageService interface {
	// Images are sorted by reference.
	Images(ctx context.Context) ([]Image, error)
	// RemoveImage frees an image by its digest. It answers CodeNotFound, and
	// CodeFailedPrecondition while a Machine uses it.
	RemoveImage(ctx context.Context, digest string) error
}

// PullProgress says how far the pull of an image has come.
type PullProgress struct {
	Phase string `json:"phase"` // "pulling" or "unpacking"
	Done  int64  `json:"done"`  // bytes
	Total int64  `json:"total"` // bytes; 0 while unknown
}
