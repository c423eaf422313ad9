package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Policy says what GC removes beyond blobs that no repository has.
type Policy struct {
	// UntaggedAge: manifests of that age are removed unless they have a tag, belong to an index that
	// stays, refer to a manifest that stays, or Keep (which may be nil) claims them. Zero keeps all.
	UntaggedAge time.Duration
	Keep        func(digest string) bool
	// UploadAge: uploads idle for so long are removed; zero: UploadAge of the Options.
	UploadAge time.Duration
}

// GC removes abandoned uploads, blobs that no manifest names, and manifests according to the policy.
// It returns how many bytes it freed. Repositories that cannot be read keep what they have.
func (r *Registry) GC(ctx context.Context, p Policy) (int64, error) {
	if p.UploadAge == 0 {
		p.UploadAge = r.opts.UploadAge
	}
	r.collecting.Lock()
	defer r.collecting.Unlock()
	defer r.pushes.watch()()
	repositories, err := r.allRepositories()
	if err != nil {
		return 0, err
	}
	dead := map[string]map[string]bool{} // manifests to remove, by repository
	var failed error
	for _, repository := range repositories {
		if dead[repository], err = r.release(ctx, repository, p); ctx.Err() != nil {
			return 0, ctx.Err()
		}
		failed = errors.Join(failed, about(repository, err))
	}
	freed, err := r.sweep(ctx, dead, p)
	return freed, errors.Join(failed, err)
}

// about adds the repository to an error of its collection.
func about(repository string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("collect repository %s: %w", repository, err)
}

// release decides, with the catalog's consent, which manifests of a repository are removed. It
// removes none while it cannot reach the catalog.
func (r *Registry) release(ctx context.Context, repository string, p Policy) (map[string]bool, error) {
	manifests, err := r.manifestsOf(repository)
	if err != nil {
		return nil, err
	}
	published, err := r.published()
	if err != nil {
		return nil, err
	}
	all, err := r.catalog.Repository(ctx, repository)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case r.opts.Catalog == nil && err != nil:
		return nil, err
	case err != nil:
		r.log.WarnContext(ctx, "collecting manifests is postponed", slog.String("repository", repository), slog.Any("error", err))
		return nil, nil //nolint:nilnil // none
	}
	live := live(manifests, all.Tags, p)
	dead := map[string]bool{}
	for digest := range manifests {
		m, known := all.Manifests[digest]
		if r.opts.Catalog != nil && (!known || !slices.Contains(m.Hosts, r.opts.Host)) {
			dead[digest] = published // deleted on another host
			continue
		}
		if live[digest] || !r.pushes.release(repository, digest) {
			continue
		}
		if dead[digest], err = r.catalog.Release(ctx, repository, m); err != nil {
			return dead, err
		}
	}
	return dead, nil
}

// sweep removes the dead manifests, and blobs that no manifest needs.
func (r *Registry) sweep(ctx context.Context, dead map[string]map[string]bool, p Policy) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	repositories, err := r.allRepositories() // under mu: the blobs of one that is missing here are removed
	if err != nil {
		return 0, err
	}
	linked := map[string]bool{} // blobs that a repository has
	freed := r.collectUploads(ctx, p.UploadAge)
	var failed error
	for _, repository := range repositories {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		err := r.collectRepository(repository, dead[repository], linked)
		if err == nil {
			continue
		}
		failed = errors.Join(failed, about(repository, err))
		if err := r.keepRepository(repository, linked); err != nil {
			return freed, errors.Join(failed, about(repository, err)) // its blobs are unknown
		}
	}
	blobs, err := os.ReadDir(r.path("blobs"))
	if err != nil {
		return freed, errors.Join(failed, err)
	}
	for _, e := range blobs {
		if linked[e.Name()] {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return freed, errors.Join(failed, err)
		}
		if err := os.Remove(r.path("blobs", e.Name())); err != nil {
			return freed, errors.Join(failed, err)
		}
		freed += fi.Size()
	}
	return freed, failed
}

// keepRepository adds all links of a repository to linked.
func (r *Registry) keepRepository(repository string, linked map[string]bool) error {
	for _, kind := range []string{"manifests", "blobs"} {
		entries, err := os.ReadDir(r.repoPath(repository, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			linked[e.Name()] = true
		}
	}
	return nil
}

func (r *Registry) allRepositories() ([]string, error) { return r.repositoriesBelow("") }

// repositoriesBelow lists the repositories below a part of their path.
func (r *Registry) repositoriesBelow(part string) ([]string, error) {
	var names []string
	root := r.path("repositories")
	err := filepath.WalkDir(filepath.Join(root, filepath.FromSlash(part)), func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() || e.Name() != repoMark {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		names = append(names, filepath.ToSlash(rel))
		return filepath.SkipDir
	})
	return names, err
}

// collectRepository removes the unneeded links of one repository and adds the others to linked.
func (r *Registry) collectRepository(repository string, dead map[string]bool, linked map[string]bool) error {
	manifests, err := r.manifestsOf(repository)
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for digest, m := range manifests {
		if dead[digest] && !r.pushes.since(repository, digest) {
			if err := r.remove(r.repoPath(repository, "manifests", hexOf(digest))); err != nil {
				return err
			}
			continue
		}
		linked[hexOf(digest)] = true
		for _, b := range m.doc.blobs() {
			needed[hexOf(b)] = true
		}
	}
	entries, err := os.ReadDir(r.repoPath(repository, "blobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if needed[e.Name()] || !older(fi, r.opts.UploadAge) {
			linked[e.Name()] = true
			continue
		}
		if err := os.Remove(r.repoPath(repository, "blobs", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// linkedManifest is a manifest of a repository as the collector sees it.
type linkedManifest struct {
	doc document
	age time.Duration // since the last push
}

func (r *Registry) manifestsOf(repository string) (map[string]linkedManifest, error) {
	entries, err := os.ReadDir(r.repoPath(repository, "manifests"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	manifests := map[string]linkedManifest{}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return nil, err
		}
		digest := "sha256:" + e.Name()
		m := linkedManifest{age: time.Since(fi.ModTime())}
		raw, err := os.ReadFile(r.blobPath(digest))
		if err == nil {
			m.doc, err = readDocument(raw)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err // it may be readable later
		}
		if err != nil {
			// No client can pull the manifest, and it must not block the collection of the rest. Its
			// next push repairs it.
			r.log.Warn("manifest cannot be read", slog.String("repository", repository), slog.String("digest", digest), slog.Any("error", err))
		}
		manifests[digest] = m
	}
	return manifests, nil
}

// live marks the manifests that stay: tagged, young and claimed ones, those that their indexes name,
// and referrers of one that stays.
func live(manifests map[string]linkedManifest, tags map[string]string, p Policy) map[string]bool {
	tagged := map[string]bool{}
	for _, digest := range tags {
		tagged[digest] = true
	}
	live := map[string]bool{}
	var mark func(digest string)
	mark = func(digest string) {
		if _, ok := manifests[digest]; !ok || live[digest] {
			return
		}
		live[digest] = true
		for _, child := range digestsOf(manifests[digest].doc.Manifests) {
			mark(child)
		}
	}
	for digest, m := range manifests {
		if p.UntaggedAge == 0 || m.age <= p.UntaggedAge || tagged[digest] || (p.Keep != nil && p.Keep(digest)) {
			mark(digest)
		}
	}
	for changed := true; changed; {
		before := len(live)
		for digest, m := range manifests {
			if m.doc.Subject != nil && live[m.doc.Subject.Digest] {
				mark(digest)
			}
		}
		changed = len(live) > before
	}
	return live
}
