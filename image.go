package hangar

import (
	"context"
	"strings"
	"time"
)

// ImageRef is an image as it was resolved: a permanent name of what ran.
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

// Target is what the repository belongs to: ORG/NAME, and what is below it, to the
// organization and, if that has one of this name, to its App, so that a token of the App may
// push there. A name without a slash belongs to the server, without an organization: every
// caller may read it and only an administrator write it.
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
	// Repository returns where a repository is kept, whether it has content or not, to a
	// caller who may do action to it: to pull is ActionRead, to push ActionWrite, to remove
	// ActionDelete. It answers CodeForbidden, and CodeNotFound with ReasonOrgNotFound.
	Repository(ctx context.Context, name RepositoryName, action Action) (Repository, error)
}

// Repository is where a repository of the built-in registry is kept: by the id of its
// organization, whose slug may be another's one day.
type Repository struct {
	Org  OrgID  // empty: it belongs to the server
	Name string // without the slug
}

// Root is the part of Path that all repositories of the organization, or of the server, have.
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

// ImageUsage is what the images of an organization take of hosts, in bytes. What several
// organizations have together counts for each.
type ImageUsage struct {
	Stored   int64 `json:"stored_bytes"`   // in its repositories of the built-in registry
	Uploads  int64 `json:"upload_bytes"`   // pushed and not finished
	Unpacked int64 `json:"unpacked_bytes"` // images that were pulled for it
}

// ResolvedImage is what a reference to an image stands for at present.
type ResolvedImage struct {
	Ref ImageRef
	// Size is how many bytes a host that has nothing of the image transfers; of one that a host holds
	// already, how many bytes it has unpacked.
	Size int64
}

// ImagePuller is for whom a host asks a registry.
type ImagePuller struct {
	Org         OrgID
	Slug        OrgSlug // by which references to the built-in registry name the organization
	AnyRegistry bool    // the registry may be at any address: an administrator has named it
}

// ImageResolver finds out what references to images stand for.
type ImageResolver interface {
	// ResolveImage asks the registry of a reference what it stands for, as a creation of a Machine of
	// the App would, for callers who may write to the App. It answers CodeInvalid with ReasonBadConfig,
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
