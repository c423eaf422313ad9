package image

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// Puller is the organization for which an image is resolved or pulled.
type Puller struct {
	Org hangar.OrgID
	// Slug is the name of the organization in references to the built-in registry.
	Slug hangar.OrgSlug
	// AnyRegistry allows a registry at any address, because an administrator has named it.
	AnyRegistry bool
}

// context returns a context for the puller's connections.
func (p Puller) context(ctx context.Context) context.Context {
	if p.AnyRegistry {
		return publicdial.WithAdministrator(ctx)
	}
	return ctx
}

// key scopes a key of shared work to the puller's organization.
func (p Puller) key(elem ...string) string {
	kind := "tenant"
	if p.AnyRegistry {
		kind = "administrator"
	}
	return strings.Join(append([]string{string(p.Org), kind}, elem...), " ")
}

// repository returns the built-in registry's name for the repository of a reference, if it belongs
// to the puller's organization or to the server.
func (p Puller) repository(ref reference) (string, bool) {
	repository := hangar.RepositoryName(ref.repository.RepositoryStr())
	org := repository.Target().Org
	if org == "" {
		return hangar.Repository{Name: repository.Name()}.Path(), true
	}
	return hangar.Repository{Org: p.Org, Name: repository.Name()}.Path(), p.Org != "" && org == p.Slug
}

// locate expands a short reference. NAME and SLUG/NAME mean the repository of the puller's
// organization in the built-in registry, and NAME also means that of the server, if the repository
// has the tag or digest. Otherwise they mean Docker Hub, like every other reference without a
// registry. A failed lookup is an error: a stranger's image must not replace the organization's image
// of the same name.
func (s *Store) locate(ctx context.Context, who Puller, ref reference) (reference, error) {
	if ref.short == "" || len(s.opts.Local) == 0 {
		return ref, nil
	}
	slug, path, qualified := strings.Cut(ref.short, "/")
	var candidates []string
	switch {
	case !qualified:
		candidates = []string{string(who.Slug) + "/" + ref.short, ref.short}
	case slug == string(who.Slug) && path != "":
		candidates = []string{ref.short}
	}
	for _, path := range candidates {
		repository, err := name.NewRepository(s.opts.Local[0] + "/" + path)
		if err != nil {
			continue // no organization: the puller is the server
		}
		found := ref
		found.repository = repository
		kept, ok := who.repository(found)
		if !ok {
			continue
		}
		switch _, err := s.registry.Lookup(ctx, kept, ref.identifier()); {
		case err == nil:
			return found, nil
		case !errors.Is(err, registry.ErrNotFound):
			return ref, about("failed to get manifest", ref, err)
		}
	}
	return ref, nil
}

// builtInOrigin prefixes repositories of the built-in registry. No other registry can have this
// name.
const builtInOrigin = "built-in/"

// origin names the registry and repository from which a reference is pulled.
func (s *Store) origin(who Puller, ref reference) (string, bool) {
	if !named(ref.repository.RegistryStr(), s.opts.Local) {
		return ref.source(), true
	}
	repository, ok := who.repository(ref)
	return builtInOrigin + repository, ok
}

// sourceOf names the organization that pulls an image, and the origin of the image.
func (s *Store) sourceOf(who Puller, ref reference) (string, bool) {
	origin, ok := s.origin(who, ref)
	return string(who.Org) + " " + origin, ok
}

// maxSources bounds the recorded origins of an image for one organization.
const maxSources = 16

// withSource adds a source of an image. If the organization has too many, it drops the oldest.
func withSource(sources []string, org hangar.OrgID, source string) []string {
	own := 0
	for _, s := range sources {
		if strings.HasPrefix(s, string(org)+" ") {
			own++
		}
	}
	kept := slices.Clone(sources)
	if own >= maxSources {
		oldest := slices.IndexFunc(kept, func(s string) bool { return strings.HasPrefix(s, string(org)+" ") })
		kept = slices.Delete(kept, oldest, oldest+1)
	}
	return append(kept, source)
}

// RemoveOrg removes all content of an organization: its repositories in the built-in registry, and
// the images that only it has pulled and that no Machine uses. Afterwards nothing can be pushed for
// the organization. It may be repeated.
func (s *Store) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	if err := s.registry.RemoveOrg(ctx, org); err != nil {
		return err
	}
	if err := s.forgetSources(org); err != nil {
		return err
	}
	_, err := s.sweep(ctx)
	return err
}

// Usage returns the space that an organization uses in the built-in registry and for the images that
// it has pulled.
func (s *Store) Usage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error) {
	kept, err := s.registry.Usage(ctx, org)
	usage := hangar.ImageUsage{Stored: kept.Stored, Uploads: kept.Uploads}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if slices.ContainsFunc(r.Sources, func(source string) bool { return strings.HasPrefix(source, string(org)+" ") }) {
			usage.Unpacked += r.Size + r.configSize
		}
	}
	return usage, err
}

// measureTimeout bounds the measurement of an organization's usage.
const measureTimeout = 10 * time.Minute

// measured is the usage of an organization at one time.
type measured struct {
	bytes int64
	at    time.Time
}

// withinQuota returns an error for an organization that has reached its quota. It measures usage at
// most once in Limits.UsageAge. Pushes and pulls that have begun already are finished, within their
// own bounds.
func (s *Store) withinQuota(ctx context.Context, org hangar.OrgID) error {
	if s.opts.Quota == nil || org == "" {
		return nil
	}
	s.mu.Lock()
	known, ok := s.usages[org]
	s.mu.Unlock()
	if !ok || time.Since(known.at) >= s.opts.Limits.UsageAge {
		now, err, _ := s.measuring.Do(string(org), func() (any, error) { return s.measure(ctx, org) })
		if err != nil {
			return err
		}
		known = now.(measured)
	}
	return s.opts.Quota(ctx, org, known.bytes)
}

// measure returns and stores an organization's usage, and drops expired measurements. It does not end
// with the caller's context, because other callers wait for the same result.
func (s *Store) measure(ctx context.Context, org hangar.OrgID) (measured, error) {
	ctx, cancel := finish.Within(ctx, measureTimeout)
	defer cancel()
	usage, err := s.Usage(ctx, org)
	if err != nil {
		return measured{}, err
	}
	now := measured{usage.Stored + usage.Uploads + usage.Unpacked, time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.usages, func(_ hangar.OrgID, m measured) bool { return time.Since(m.at) >= s.opts.Limits.UsageAge })
	s.usages[org] = now
	return now, nil
}

// forgetSources drops the images that only this organization has pulled. If a Machine that is being
// destroyed still uses one, the collector removes it later.
func (s *Store) forgetSources(org hangar.OrgID) error {
	used := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	for digest, r := range s.records {
		kept := slices.DeleteFunc(slices.Clone(r.Sources), func(source string) bool { return strings.HasPrefix(source, string(org)+" ") })
		if len(kept) == len(r.Sources) {
			continue
		}
		if len(kept) == 0 && !used[digest] {
			if err := s.drop(r); err != nil {
				return err
			}
			continue
		}
		next := *r
		next.Sources = kept
		if err := s.write(&next); err != nil {
			return err
		}
	}
	return nil
}

// slots bound the concurrent work of each organization. There is no global bound, because one
// organization could use it up; only administrators create organizations.
type slots struct {
	each int64

	held, waiting atomic.Int64

	mu    sync.Mutex
	byOrg map[hangar.OrgID]*slot
}

// slot is the slot of one organization; the mu of slots guards users.
type slot struct {
	free  *semaphore.Weighted
	users int // holders and waiters
}

// take waits for a slot of an organization, or until ctx ends.
func (s *slots) take(ctx context.Context, org hangar.OrgID) (release func(), err error) {
	s.mu.Lock()
	if s.byOrg == nil {
		s.byOrg = map[hangar.OrgID]*slot{}
	}
	mine, ok := s.byOrg[org]
	if !ok {
		mine = &slot{free: semaphore.NewWeighted(s.each)}
		s.byOrg[org] = mine
	}
	mine.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(s.byOrg, org)
		}
	}
	s.waiting.Add(1)
	err = mine.free.Acquire(ctx, 1)
	s.waiting.Add(-1)
	if err != nil {
		leave()
		return nil, err
	}
	s.held.Add(1)
	return func() {
		s.held.Add(-1)
		mine.free.Release(1)
		leave()
	}, nil
}
