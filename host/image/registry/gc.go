package registry

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// Policy says what GC removes beyond blobs that no repository has.
type Policy struct {
	// UntaggedAge: manifests of that age go that have no tag, are a part of no index that
	// stays, belong to nothing that stays, and that Keep (which may be nil) does not claim.
	// Zero keeps all.
	UntaggedAge time.Duration
	Keep        func(digest string) bool
	// UploadAge: uploads that rest for so long go; zero: after that of the Options.
	UploadAge time.Duration
}

// GC removes uploads that nobody continues, blobs that no manifest names and manifests as the
// policy says. It answers how many bytes it freed.
func (r *Registry) GC(ctx context.Context, p Policy) (int64, error) {
	if p.UploadAge == 0 {
		p.UploadAge = r.opts.UploadAge
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	linked := map[string]bool{} // blobs that some repository has
	freed := r.collectUploads(ctx, p.UploadAge)
	repositories, err := r.allRepositories()
	if err != nil {
		return freed, err
	}
	for _, repository := range repositories {
		if err := ctx.Err(); err != nil {
			return freed, err
		}
		if err := r.collectRepository(repository, p, linked); err != nil {
			return freed, err
		}
	}
	blobs, err := os.ReadDir(r.path("blobs"))
	if err != nil {
		return freed, err
	}
	for _, e := range blobs {
		if linked[e.Name()] {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return freed, err
		}
		if err := os.Remove(r.path("blobs", e.Name())); err != nil {
			return freed, err
		}
		freed += fi.Size()
	}
	return freed, nil
}

func (r *Registry) allRepositories() ([]string, error) { return r.repositoriesBelow("") }

// repositoriesBelow lists the repositories that are kept below a part of their path.
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

// collectRepository drops the links of one repository that nothing needs and adds
// the others to linked.
func (r *Registry) collectRepository(repository string, p Policy, linked map[string]bool) error {
	manifests, err := r.manifestsOf(repository)
	if err != nil {
		return err
	}
	live, err := r.live(repository, manifests, p.UntaggedAge, p.Keep)
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	for digest, m := range manifests {
		if !live[digest] {
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

// linkedManifest is a manifest of a repository with what the collector asks of it.
type linkedManifest struct {
	doc document
	age time.Duration // since it was pushed last
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
			err = json.Unmarshal(raw, &m.doc)
		}
		if err != nil {
			// Nothing can be pulled by it, and it must not keep the rest from being
			// collected; the next push of the manifest mends it.
			r.log.Warn("manifest cannot be read", slog.String("repository", repository), slog.String("digest", digest), slog.Any("error", err))
		}
		manifests[digest] = m
	}
	return manifests, nil
}

// live marks the manifests that stay: those that have a tag, are young or claimed,
// what their indexes name, and what refers to one that stays.
func (r *Registry) live(repository string, manifests map[string]linkedManifest, untaggedAge time.Duration, keep func(string) bool) (map[string]bool, error) {
	tags, err := r.tagged(repository)
	if err != nil {
		return nil, err
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
		if untaggedAge == 0 || m.age <= untaggedAge || len(tags[digest]) > 0 || (keep != nil && keep(digest)) {
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
	return live, nil
}
