package hangar

import (
	"context"
	"io"
)

// PushedManifest is a manifest or index in a repository of the built-in registry, as all hosts know
// it.
type PushedManifest struct {
	Digest       string            `json:"-"` // "sha256:…"
	MediaType    string            `json:"media_type"`
	Size         int64             `json:"size"` // bytes
	Subject      string            `json:"subject,omitempty"`
	ArtifactType string            `json:"artifact_type,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	// Hosts hold the manifest and everything it names, the latest last.
	Hosts []HostID `json:"hosts,omitempty"`
	// Revision changes with each push.
	Revision int64 `json:"-"`
}

// PushedRepository is what a repository of the built-in registry has.
type PushedRepository struct {
	Manifests map[string]PushedManifest // by digest
	Tags      map[string]string         // digests, by tag
}

// MaxPushed is how many manifests and tags the repositories of one organization may have.
const MaxPushed = 10_000

// ImageCatalog is the state of the built-in registry that all hosts share: which manifests and tags
// each repository has, and which hosts hold them. Repositories are named by Repository.Path. A catalog
// belongs to one host, which its methods call this host. Every method may be repeated, and may answer
// CodeUnavailable.
type ImageCatalog interface {
	// Manifest returns what a tag or a digest stands for. It answers CodeNotFound.
	Manifest(ctx context.Context, repository, reference string) (PushedManifest, error)
	// Repository returns all that a repository has, which may be nothing.
	Repository(ctx context.Context, repository string) (PushedRepository, error)
	// Repositories returns the paths of the repositories below a Repository.Root that have a
	// manifest, sorted.
	Repositories(ctx context.Context, root string) ([]string, error)
	// Holders returns the hosts that may hold blobs of a repository.
	Holders(ctx context.Context, repository string) ([]HostID, error)
	// Push records that this host holds a manifest. If tag is not empty, it stands for the manifest
	// from now on. Push answers CodeExhausted with ReasonQuota beyond MaxPushed.
	Push(ctx context.Context, repository string, m PushedManifest, tag string) error
	// Delete removes a tag, or a manifest with the tags that stand for it. It answers CodeNotFound.
	Delete(ctx context.Context, repository, reference string) error
	// Release records that this host no longer holds a manifest. It reports false, and changes nothing,
	// if the manifest was pushed since m was read, or has a tag.
	Release(ctx context.Context, repository string, m PushedManifest) (bool, error)
}

// PushedRead is what one host asks another of the built-in registry.
type PushedRead struct {
	Repository string `json:"repository"` // Repository.Path
	Digest     string `json:"digest"`
	Manifest   bool   `json:"manifest,omitempty"` // else a blob
	Offset     int64  `json:"offset,omitempty"`   // bytes to skip
	// For names the reader; reads for the same name share a limit.
	For string `json:"for"`
}

// PushedContent is a blob or manifest that is open for reading.
type PushedContent interface {
	io.ReadCloser
	Size() int64 // of all bytes, including skipped ones
}

// PushedReader reads what one host holds of the built-in registry.
type PushedReader interface {
	// OpenPushed opens a blob or manifest that a repository has on the host. It answers CodeNotFound,
	// and CodeUnavailable for a host that cannot be reached or has too many reads under way. ctx must
	// live until the content is closed.
	OpenPushed(ctx context.Context, in PushedRead) (PushedContent, error)
}

// PushedReaders finds the readers of other hosts.
type PushedReaders interface {
	// Pushed answers CodeNotFound for a host that is unknown and CodeUnavailable for one that cannot
	// be reached.
	Pushed(id HostID) (PushedReader, error)
}
