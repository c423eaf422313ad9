package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/flight"
)

// A host that has a manifest has everything that the manifest names. A client may omit content that
// the repository has on another host; this host then fetches it from there.

// maxAdopted bounds the manifests that one push fetches, and maxAdoptDepth the nesting of indexes.
const (
	maxAdopted    = 256
	maxAdoptDepth = 3
)

// adoption is the content that one push fetches. It keeps the collector away from the manifests that
// the push names, until end.
type adoption struct {
	r         *Registry
	c         call
	org       hangar.OrgID
	manifests int                              // that were fetched
	known     map[string]hangar.PushedManifest // of the repository; nil: not read yet
	pushes    map[string]func()                // end the pushes of the named manifests, by digest
}

func (r *Registry) newAdoption(c call) *adoption {
	return &adoption{r: r, c: c, org: c.org, pushes: map[string]func(){}}
}

func (a *adoption) end() {
	for _, end := range a.pushes {
		end()
	}
}

// adopt makes sure that this host has everything that a manifest names: it fetches what the
// repository has on another host.
func (a *adoption) adopt(ctx context.Context, d document, depth int) error {
	for _, digest := range d.blobs() {
		if err := a.blob(ctx, digest); err != nil {
			return err
		}
	}
	if len(d.Manifests) > 0 && a.known == nil {
		all, err := a.r.catalog.Repository(ctx, a.c.kept)
		if err != nil {
			return err
		}
		a.known = all.Manifests
	}
	for _, digest := range digestsOf(d.Manifests) {
		if a.pushes[digest] != nil {
			continue
		}
		if err := a.manifest(ctx, digest, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// manifest is adopt for a manifest itself and everything that it names. The catalog decides whether
// the repository has it: after a deletion, its link stays on this host for a while.
func (a *adoption) manifest(ctx context.Context, digest string, depth int) error {
	a.pushes[digest] = a.r.pushes.begin(a.c.kept, digest)
	released := a.r.pushes.isReleased(a.c.kept, digest)
	missing := refuse(http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "the index names %s, which %s does not have", digest, a.c.repository)
	known, ok := a.known[digest]
	if !ok {
		return missing
	}
	if depth > maxAdoptDepth {
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "indexes are nested more than %d deep", maxAdoptDepth)
	}
	m, err := a.r.content(ctx, a.c.kept, known, a.c.limitKey)
	if errors.Is(err, ErrNotFound) {
		return missing
	}
	if err != nil {
		return err
	}
	if m.Remote {
		if a.manifests++; a.manifests > maxAdopted {
			return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the index names too many manifests that this server does not have; push them to it")
		}
	}
	d, mediaType, err := parseManifest(m.Raw, m.MediaType)
	if err != nil {
		return err
	}
	if err := a.adopt(ctx, d, depth); err != nil {
		return err
	}
	counted := a.r.opts.Catalog == nil || slices.Contains(known.Hosts, a.r.opts.Host)
	if !m.Remote && counted && !released {
		return nil
	}
	// If the collector releases it, this push makes the catalog refuse that, or undoes it.
	return a.r.keepManifest(ctx, a.c, "", m.Digest, mediaType, m.Raw, d)
}

// blob fetches a blob.
func (a *adoption) blob(ctx context.Context, digest string) error {
	if _, err := os.Stat(a.r.repoPath(a.c.kept, "blobs", hexOf(digest))); err == nil {
		return nil
	}
	_, err := flight.Do(ctx, &a.r.adopting, a.c.kept+" "+digest, func() (struct{}, error) {
		return struct{}{}, a.fetch(ctx, digest)
	})
	return err
}

func (a *adoption) fetch(ctx context.Context, digest string) error {
	b, err := a.r.Blob(ctx, a.c.kept, digest, a.c.limitKey)
	if errors.Is(err, ErrNotFound) {
		return nil // the caller refuses the push
	}
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	if b.Local() {
		return nil
	}
	if b.Size > a.r.opts.BlobBytes {
		return refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "a blob has at most %d bytes", a.r.opts.BlobBytes)
	}
	if err := a.r.admit(ctx, a.org, b.Size); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(a.r.path("tmp"), "adopted-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = tmp.Close()
		_ = os.Remove(tmp.Name()) // fails once the file has been renamed
	}()
	_, err = io.CopyBuffer(struct{ io.Writer }{a.r.opts.Space.Writer(diskspace.PushImage, tmp)}, b, make([]byte, 256<<10))
	if err == nil {
		err = tmp.Sync()
	}
	if err != nil {
		return err
	}
	a.r.mu.RLock()
	defer a.r.mu.RUnlock()
	if err := a.r.alive(a.c.kept); err != nil {
		return err
	}
	if err := durable.Rename(tmp.Name(), a.r.blobPath(digest)); err != nil {
		return err
	}
	return a.r.linkBlob(a.c.kept, digest)
}

// admit returns an error if an organization has no space left. Without an organization, it checks the
// server's disk only.
func (r *Registry) admit(ctx context.Context, org hangar.OrgID, bytes int64) error {
	if err := r.opts.Space.Admit(diskspace.PushImage, bytes); err != nil {
		return err
	}
	if r.opts.Quota == nil || org == "" {
		return nil
	}
	return r.opts.Quota(ctx, org)
}
