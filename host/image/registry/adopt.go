package registry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"

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

// adoption is the content that one push fetches.
type adoption struct {
	r         *Registry
	c         call
	org       hangar.OrgID
	manifests int
}

// adopt fetches everything that a manifest names, if the repository has it.
func (a *adoption) adopt(ctx context.Context, d document, depth int) error {
	for _, digest := range d.blobs() {
		if err := a.blob(ctx, digest); err != nil {
			return err
		}
	}
	for _, digest := range digestsOf(d.Manifests) {
		if err := a.manifest(ctx, digest, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// manifest fetches a manifest and everything that it names.
func (a *adoption) manifest(ctx context.Context, digest string, depth int) error {
	_, err := a.r.heldManifest(a.c.kept, digest)
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if a.manifests++; a.manifests > maxAdopted || depth > maxAdoptDepth {
		return refuse(http.StatusBadRequest, "MANIFEST_INVALID", "the index names too many manifests that this server does not have; push them to it")
	}
	m, err := a.r.Manifest(ctx, a.c.kept, digest, a.c.limitKey)
	if errors.Is(err, ErrNotFound) {
		return nil // the caller refuses the push
	}
	if err != nil {
		return err
	}
	d, mediaType, err := parseManifest(m.Raw, m.MediaType)
	if err != nil {
		return err
	}
	if err := a.adopt(ctx, d, depth); err != nil {
		return err
	}
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
