package hangar

import (
	"context"
	"strings"
	"time"
)

// ImageRef is an image as it was resolved: what ran, for ever nameable.
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

// RepositoryTarget is what a repository of the built-in registry belongs to: ORG/NAME,
// and what is below it, to the organization and, if that has one of this name, to its
// App, so that a token of the App may push there. A name without a slash belongs to the server, without an
// organization: everybody may read it and only an administrator write it.
func RepositoryTarget(repository string) Target {
	org, rest, found := strings.Cut(repository, "/")
	if !found {
		return Target{}
	}
	app, _, _ := strings.Cut(rest, "/")
	return Target{Org: OrgSlug(org), App: AppName(app)}
}

// Image is an image that a host holds unpacked.
type Image struct {
	Ref       ImageRef  `json:"ref"`
	SizeBytes int64     `json:"size_bytes"` // unpacked
	InUse     bool      `json:"in_use"`     // by a Machine
	LastUsed  time.Time `json:"last_used"`
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
