package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// pushes tracks manifests that are being pushed, and those that an index that is being pushed names.
// The collector must not remove one, or consider it deleted on another host, and RemoveOrg waits for
// the last push of an organization. The zero value is ready to use.
type pushes struct {
	mu       sync.Mutex
	ended    sync.Cond           // signals the end of a push; its L is mu
	now      map[manifestAt]int  // pushes in progress
	recent   map[manifestAt]bool // pushes in progress at watch or later; nil: no watch
	released map[manifestAt]bool // what the collector releases; nil: no watch
}

// manifestAt is a manifest of a repository.
type manifestAt struct{ repository, digest string }

// begin registers a push until the caller ends it.
func (p *pushes) begin(repository, digest string) (end func()) {
	at := manifestAt{repository, digest}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = map[manifestAt]int{}
	}
	p.now[at]++
	if p.recent != nil {
		p.recent[at] = true
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.now[at]--; p.now[at] == 0 {
			delete(p.now, at)
		}
		p.ended.Broadcast()
	}
}

// watch makes since report the pushes in progress from now on, until stop.
func (p *pushes) watch() (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent, p.released = map[manifestAt]bool{}, map[manifestAt]bool{}
	for at := range p.now {
		p.recent[at] = true
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.recent, p.released = nil, nil
	}
}

// release reports whether the collector may release a manifest in the catalog, because none of the
// pushes in progress since watch is about it. A push that begins later finds it in isReleased.
func (p *pushes) release(repository, digest string) bool {
	at := manifestAt{repository, digest}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recent[at] {
		return false
	}
	p.released[at] = true
	return true
}

// isReleased reports whether the collector has begun to release a manifest.
func (p *pushes) isReleased(repository, digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.released[manifestAt{repository, digest}]
}

func (p *pushes) since(repository, digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recent[manifestAt{repository, digest}]
}

// wait returns when no push to a repository of an organization is in progress.
func (p *pushes) wait(root string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended.L = &p.mu
	for p.any(root) {
		p.ended.Wait()
	}
}

// any reports whether a push is in progress below root; the caller holds mu.
func (p *pushes) any(root string) bool {
	for at := range p.now {
		if rootOf(at.repository) == root {
			return true
		}
	}
	return false
}

// publishedFile exists once the manifests from before the shared catalog were added to it. From then
// on, content that the catalog does not know has been deleted.
const publishedFile = "published"

func (r *Registry) published() (bool, error) {
	_, err := os.Stat(r.path(publishedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Publish adds the manifests and tags from before the shared catalog to it, once, before the first
// push. It may be repeated, and does not change tags that the catalog knows. The collector considers
// nothing deleted before Publish has succeeded.
func (r *Registry) Publish(ctx context.Context) error {
	if done, err := r.published(); done || err != nil || r.opts.Catalog == nil {
		return err
	}
	repositories, err := r.allRepositories()
	if err != nil {
		return err
	}
	for _, repository := range repositories {
		if err := r.publishRepository(ctx, repository); err != nil {
			return fmt.Errorf("publish repository %s: %w", repository, err)
		}
	}
	return durable.WriteFile(r.path(publishedFile), nil, 0o600)
}

func (r *Registry) publishRepository(ctx context.Context, repository string) error {
	own, err := (&files{r: r}).Repository(ctx, repository)
	if err != nil {
		return err
	}
	for digest, m := range own.Manifests {
		if _, err := os.Stat(r.blobPath(digest)); err != nil {
			continue // damaged before
		}
		if err := r.catalog.Push(ctx, repository, m, ""); err != nil {
			return err
		}
	}
	for tag, digest := range own.Tags {
		m, ok := own.Manifests[digest]
		_, err := r.catalog.Manifest(ctx, repository, tag)
		if !ok || err == nil {
			continue
		}
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			return err
		}
		if err := r.catalog.Push(ctx, repository, m, tag); err != nil {
			return err
		}
	}
	return nil
}

// Repositories lists the names of repositories that have a manifest on any host, of the organization
// of at or, without one, of the server.
func (r *Registry) Repositories(ctx context.Context, at hangar.Repository) ([]string, error) {
	paths, err := r.catalog.Repositories(ctx, at.Root())
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = strings.TrimPrefix(path, at.Root()+"/")
	}
	return names, err
}
