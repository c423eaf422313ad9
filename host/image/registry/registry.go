// Package registry is an OCI registry in a directory: docker push, skopeo and other clients of the
// OCI distribution API write to it and read from it, and the image store of the same host reads it
// without a detour over the network.
//
// Repositories are stored under the id of their organization, while requests name them by its slug: a
// new organization with an old slug finds nothing of the old one.
//
// A blob is stored once, under its digest, however many repositories have it, and can be read only
// through a repository that it was pushed or mounted to. A name becomes visible when its content is
// on disk, so that after a crash every acknowledged manifest and tag exists and none is partial.
// Every blob and manifest is checked against its digest before it gets its name. Uploads can continue
// after a restart; abandoned ones are collected. The number and size of an organization's unfinished
// uploads are bounded.
//
// All methods may be called from many goroutines. One lock separates the collector (and deletes) from
// everything else; uploads do not hold it.
//
// Several hosts share one registry: a Catalog knows what was pushed to any of them, and blobs that
// this host lacks are read on request from a host that has them. All blobs of a manifest are on the
// host that it is pushed to. A blob of another host is served only to callers that may read a
// repository with it, and its digest is verified. Content that was deleted on another host is not
// found any more, and is collected. Content whose only copy was on a lost host is lost.
//
// The package does not decide about access: the Handler asks an Access.
package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
)

// The defaults of Options.
const (
	DefaultManifestBytes = 4 << 20
	DefaultBlobBytes     = 32 << 30
	DefaultUploadAge     = 24 * time.Hour
	DefaultOrgUploads    = 64
	DefaultUploadBytes   = 32 << 30
	DefaultMinRate       = 16 << 10
	DefaultMaxStall      = time.Minute
)

// ErrNotFound means that the repository, manifest, tag or blob does not exist.
var ErrNotFound = errors.New("not found")

// Options of a Registry.
type Options struct {
	Dir string // the registry's own; Open makes it
	Log *slog.Logger
	// ManifestBytes and BlobBytes bound what a client can push.
	ManifestBytes int64
	BlobBytes     int64
	// UploadAge is how long an idle upload, and a blob without a manifest, are kept before they are
	// collected.
	UploadAge time.Duration
	Space     *diskspace.Space // of the disk that Dir is on; nil: its free space is not checked
	// Quota returns an error if an organization may not store more; nil: no limit.
	Quota func(ctx context.Context, org hangar.OrgID) error
	// OrgUploads and UploadBytes bound how many uploads of an organization may be unfinished,
	// and how many bytes they may have.
	OrgUploads  int
	UploadBytes int64
	// MinRate is the minimum average rate at which a client must read a response, in bytes a second,
	// and MaxStall the longest time without progress.
	MinRate  int
	MaxStall time.Duration

	// Catalog is the shared catalog of all hosts' registries. Nil: this registry is not shared, and
	// its tags are in its directory.
	Catalog hangar.ImageCatalog
	Peers   hangar.PushedReaders // the registries of other hosts; nil: none
	Host    hangar.HostID        // this host, as the Catalog names it
	// RateWindow is how long another host may send less than MinRate.
	RateWindow time.Duration
}

// Registry is an OCI registry in a directory.
type Registry struct {
	opts    Options
	log     *slog.Logger
	catalog hangar.ImageCatalog

	pushes     pushes
	collecting sync.Mutex               // locked by the collector
	adopting   singleflight.Group       // adoption of other hosts' blobs, by repository and digest
	reads      *connlimit.Count[string] // from other hosts, by limitKey
	served     *connlimit.Count[string] // reads by other hosts, by PushedRead.For

	// mu is read-locked while links and manifests are made, so that verified blobs stay on disk.
	// Removals lock it for writing.
	mu      sync.RWMutex
	removed map[hangar.OrgID]bool // removed organizations; their ids are never reused

	uploadsMu sync.Mutex         // guards the fields below
	uploads   map[string]*upload // by id
	byOrg     map[string]uploadSum
}

// New returns a Registry that Open makes usable.
func New(opts Options) *Registry {
	opts.ManifestBytes = cmp.Or(opts.ManifestBytes, DefaultManifestBytes)
	opts.BlobBytes = cmp.Or(opts.BlobBytes, DefaultBlobBytes)
	opts.UploadAge = cmp.Or(opts.UploadAge, DefaultUploadAge)
	opts.OrgUploads = cmp.Or(opts.OrgUploads, DefaultOrgUploads)
	opts.UploadBytes = cmp.Or(opts.UploadBytes, DefaultUploadBytes)
	opts.MinRate = cmp.Or(opts.MinRate, DefaultMinRate)
	opts.MaxStall = cmp.Or(opts.MaxStall, DefaultMaxStall)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.RateWindow = cmp.Or(opts.RateWindow, rateWindow)
	r := &Registry{
		opts: opts, log: opts.Log, catalog: opts.Catalog,
		reads: connlimit.NewCount[string](readsEach, readsAll), served: connlimit.NewCount[string](readsEach, readsAll),
		removed: map[hangar.OrgID]bool{}, uploads: map[string]*upload{}, byOrg: map[string]uploadSum{},
	}
	if r.catalog == nil {
		r.catalog = &files{r: r}
	}
	return r
}

// Open makes the directory, removes partial files of a crash and uploads that were idle for
// UploadAge, and counts the others.
func (r *Registry) Open(ctx context.Context) error {
	if err := os.RemoveAll(r.path("tmp")); err != nil {
		return err
	}
	for _, d := range []string{"tmp", "blobs", "repositories"} {
		if err := durable.MkdirAll(r.path(d), 0o700); err != nil {
			return err
		}
	}
	repositories, err := r.allRepositories()
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		if err := r.loadUploads(repository); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Manifest is a manifest or index as it was pushed.
type Manifest struct {
	Raw       []byte
	MediaType string
	Digest    string
	Remote    bool // another host has it and everything that it names
}

// Lookup returns the manifest of a tag or digest, or ErrNotFound. repository is a
// hangar.Repository.Path.
func (r *Registry) Lookup(ctx context.Context, repository, reference string) (hangar.PushedManifest, error) {
	if !validName(repository) || !validDigest(reference) && !tagPattern.MatchString(reference) {
		return hangar.PushedManifest{}, ErrNotFound
	}
	m, err := r.catalog.Manifest(ctx, repository, reference)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		err = ErrNotFound
	}
	return m, err
}

// Manifest returns the manifest of a tag or digest of a repository, from this host or another.
// limitKey bounds reads from other hosts, see the function of that name. Manifest returns
// ErrNotFound, ErrGone, ErrAway, or another hangar.CodeUnavailable.
func (r *Registry) Manifest(ctx context.Context, repository, reference, limitKey string) (Manifest, error) {
	m, err := r.Lookup(ctx, repository, reference)
	if err != nil {
		return Manifest{}, err
	}
	return r.content(ctx, repository, m, limitKey)
}

// content returns the content of a manifest that the catalog knows.
func (r *Registry) content(ctx context.Context, repository string, m hangar.PushedManifest, limitKey string) (Manifest, error) {
	raw, err := r.heldManifest(repository, m.Digest)
	if errors.Is(err, ErrNotFound) {
		return r.remoteManifest(ctx, repository, m, limitKey)
	}
	return Manifest{Raw: raw, MediaType: m.MediaType, Digest: m.Digest}, err
}

// heldManifest reads a manifest that a repository has on this host.
func (r *Registry) heldManifest(repository, digest string) ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, err := os.Stat(r.repoPath(repository, "manifests", hexOf(digest))); err != nil {
		return nil, notFound(err)
	}
	raw, err := os.ReadFile(r.blobPath(digest))
	return raw, notFound(err)
}

// openBlob opens a blob that a repository has on this host, or returns ErrNotFound.
func (r *Registry) openBlob(repository, digest string) (*os.File, error) {
	if !validName(repository) || !validDigest(digest) {
		return nil, ErrNotFound
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, err := os.Stat(r.repoPath(repository, "blobs", hexOf(digest))); err != nil {
		return nil, notFound(err)
	}
	f, err := os.Open(r.blobPath(digest))
	return f, notFound(err)
}

// Has reports whether this host has a blob of a repository.
func (r *Registry) Has(repository, digest string) bool {
	f, err := r.openBlob(repository, digest)
	return err == nil && f.Close() == nil
}

// linkBlob adds a stored blob to a repository. Repeating it renews the blob's age.
func (r *Registry) linkBlob(repository, digest string) error {
	if err := r.alive(repository); err != nil {
		return err
	}
	name := r.repoPath(repository, "blobs", hexOf(digest))
	now := time.Now()
	if err := os.Chtimes(r.blobPath(digest), now, now); err != nil {
		return notFound(err)
	}
	if err := os.Chtimes(name, now, now); err == nil {
		return nil
	}
	if err := durable.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return durable.WriteFileVia(r.path("tmp"), name, nil, 0o600)
}

// repoMark separates a repository's own files from the repositories below it. It cannot be part of
// a repository name.
const repoMark = "_"

func (r *Registry) path(elem ...string) string {
	return filepath.Join(append([]string{r.opts.Dir}, elem...)...)
}

func (r *Registry) repoPath(repository string, elem ...string) string {
	return r.path(append([]string{"repositories", filepath.FromSlash(repository), repoMark}, elem...)...)
}

func (r *Registry) blobPath(digest string) string { return r.path("blobs", hexOf(digest)) }

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern    = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

func validName(s string) bool   { return len(s) <= 255 && namePattern.MatchString(s) }
func validDigest(s string) bool { return digestPattern.MatchString(s) }

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// Digest returns the digest of a blob or a manifest.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return ErrNotFound
	}
	return err
}
