package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// files is the catalog of a registry that is not shared with other hosts. Tags are files beside the
// links that list a repository's manifests.
type files struct {
	r  *Registry
	mu sync.Mutex // held by writers
}

var _ hangar.ImageCatalog = (*files)(nil)

func errUnknown(reference string) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "%.128s is not known", reference)
}

// known turns ErrNotFound into the catalog's error.
func known(reference string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return errUnknown(reference)
	}
	return err
}

// Manifest implements hangar.ImageCatalog.
func (f *files) Manifest(_ context.Context, repository, reference string) (hangar.PushedManifest, error) {
	digest, err := f.digestOf(repository, reference)
	if err != nil {
		return hangar.PushedManifest{}, known(reference, err)
	}
	l, at, err := f.r.manifestLink(repository, digest)
	return l.pushed(digest, at), known(reference, err)
}

// digestOf resolves a tag, and returns a digest unchanged.
func (f *files) digestOf(repository, reference string) (string, error) {
	if validDigest(reference) {
		return reference, nil
	}
	if !tagPattern.MatchString(reference) {
		return "", ErrNotFound
	}
	raw, err := os.ReadFile(f.r.repoPath(repository, "tags", reference))
	if err != nil {
		return "", notFound(err)
	}
	if digest := string(raw); validDigest(digest) {
		return digest, nil
	}
	return "", fmt.Errorf("tag %s of %s is damaged", reference, repository)
}

// Repository implements hangar.ImageCatalog.
func (f *files) Repository(_ context.Context, repository string) (hangar.PushedRepository, error) {
	all := hangar.PushedRepository{Manifests: map[string]hangar.PushedManifest{}, Tags: map[string]string{}}
	tags, err := f.r.tagFiles(repository)
	if err != nil {
		return all, err
	}
	for _, tag := range tags {
		raw, err := os.ReadFile(f.r.repoPath(repository, "tags", tag))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return all, err
		}
		all.Tags[tag] = string(raw)
	}
	digests, err := f.r.linked(repository)
	if err != nil {
		return all, err
	}
	for _, digest := range digests {
		l, at, err := f.r.manifestLink(repository, digest)
		if errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return all, err
		}
		all.Manifests[digest] = l.pushed(digest, at)
	}
	return all, nil
}

// Repositories implements hangar.ImageCatalog.
func (f *files) Repositories(_ context.Context, root string) ([]string, error) {
	all, err := f.r.repositoriesBelow(root)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, repository := range all {
		digests, err := f.r.linked(repository)
		if err != nil {
			return nil, err
		}
		if len(digests) > 0 {
			paths = append(paths, repository)
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// Holders implements hangar.ImageCatalog: no other host is known.
func (f *files) Holders(context.Context, string) ([]hangar.HostID, error) { return nil, nil }

// Push implements hangar.ImageCatalog. The registry has written the link of the manifest.
func (f *files) Push(_ context.Context, repository string, m hangar.PushedManifest, tag string) error {
	if tag == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, _, err := f.r.manifestLink(repository, m.Digest); errors.Is(err, ErrNotFound) { // deleted since it was written
		if err := f.r.writeLink(repository, m); err != nil {
			return err
		}
	}
	if err := durable.MkdirAll(f.r.repoPath(repository, "tags"), 0o700); err != nil {
		return err
	}
	return durable.WriteFileVia(f.r.path("tmp"), f.r.repoPath(repository, "tags", tag), []byte(m.Digest), 0o600)
}

// Delete implements hangar.ImageCatalog.
func (f *files) Delete(ctx context.Context, repository, reference string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !validDigest(reference) {
		if !tagPattern.MatchString(reference) {
			return errUnknown(reference)
		}
		return known(reference, f.r.remove(f.r.repoPath(repository, "tags", reference)))
	}
	all, err := f.Repository(ctx, repository)
	if err != nil {
		return err
	}
	if _, ok := all.Manifests[reference]; !ok {
		return errUnknown(reference)
	}
	for tag, digest := range all.Tags { // tags first: a tag must never name a missing manifest
		if digest != reference {
			continue
		}
		if err := f.r.remove(f.r.repoPath(repository, "tags", tag)); err != nil {
			return err
		}
	}
	return f.r.remove(f.r.repoPath(repository, "manifests", hexOf(reference)))
}

// Release implements hangar.ImageCatalog. The registry removes the link.
func (f *files) Release(ctx context.Context, repository string, m hangar.PushedManifest) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.Repository(ctx, repository)
	if err != nil {
		return false, err
	}
	for _, digest := range all.Tags {
		if digest == m.Digest {
			return false, nil
		}
	}
	return all.Manifests[m.Digest].Revision == m.Revision, nil
}

// link is the record of a manifest on this host. The modification time of its file is the time of the
// last push.
type link struct {
	MediaType    string            `json:"media_type"`
	Size         int64             `json:"size"`
	Subject      string            `json:"subject,omitempty"`
	ArtifactType string            `json:"artifact_type,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

func (l link) pushed(digest string, at int64) hangar.PushedManifest {
	return hangar.PushedManifest{
		Digest: digest, MediaType: l.MediaType, Size: l.Size, Subject: l.Subject, ArtifactType: l.ArtifactType, Annotations: l.Annotations, Revision: at,
	}
}

func (r *Registry) manifestLink(repository, digest string) (l link, at int64, err error) {
	name := r.repoPath(repository, "manifests", hexOf(digest))
	fi, err := os.Stat(name)
	if err != nil {
		return l, 0, notFound(err)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return l, 0, notFound(err)
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return l, 0, fmt.Errorf("link of manifest %s: %w", digest, err)
	}
	return l, fi.ModTime().UnixNano(), nil
}

func (r *Registry) writeLink(repository string, m hangar.PushedManifest) error {
	raw, err := json.Marshal(link{MediaType: m.MediaType, Size: m.Size, Subject: m.Subject, ArtifactType: m.ArtifactType, Annotations: m.Annotations})
	if err != nil {
		return err
	}
	name := r.repoPath(repository, "manifests", hexOf(m.Digest))
	if err := durable.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return durable.WriteFileVia(r.path("tmp"), name, raw, 0o600)
}

// linked returns the digests of a repository's manifests on this host, sorted.
func (r *Registry) linked(repository string) ([]string, error) {
	entries, err := os.ReadDir(r.repoPath(repository, "manifests"))
	if err != nil && !errors.Is(notFound(err), ErrNotFound) {
		return nil, err
	}
	digests := make([]string, len(entries))
	for i, e := range entries {
		digests[i] = "sha256:" + e.Name()
	}
	return digests, nil
}

// tagFiles returns the tags that have a file in a repository.
func (r *Registry) tagFiles(repository string) ([]string, error) {
	entries, err := os.ReadDir(r.repoPath(repository, "tags"))
	if err != nil && !errors.Is(notFound(err), ErrNotFound) {
		return nil, err
	}
	tags := make([]string, len(entries))
	for i, e := range entries {
		tags[i] = e.Name()
	}
	return tags, nil
}
