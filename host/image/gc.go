package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/image/registry"
	"github.com/hangar-platform/hangar/internal/durable"
)

// grace protects a recently used image from eviction for lack of space: its caller may be about to
// mark it as in use.
const grace = 5 * time.Minute

// pressedUploadAge is how long an upload may be idle while disk space is short.
const pressedUploadAge = time.Hour

// Policy says what GC frees.
type Policy struct {
	// MaxAge: images unused for so long are removed. Zero keeps all.
	MaxAge time.Duration
	// MinFreeBytes: images are removed, least recently used first, until the file system has that much
	// free space. Zero keeps all.
	MinFreeBytes int64
	// UntaggedAge: untagged manifests in the built-in registry are removed so long after they were
	// pushed. Zero keeps all.
	UntaggedAge time.Duration
}

// GC frees what the policy allows and returns how many bytes of files it freed. It also removes
// layers without an image, and abandoned uploads and blobs of the built-in registry. It never removes
// images in InUse or layers of a pull in progress.
func (s *Store) GC(ctx context.Context, p Policy) (freed int64, err error) {
	used := s.inUse()
	collect := registry.Policy{UntaggedAge: p.UntaggedAge, Keep: func(digest string) bool { return used[digest] }}
	free, err := freeBytes(s.opts.Dir)
	if err != nil {
		return 0, err
	}
	if free < p.MinFreeBytes {
		collect.UploadAge = pressedUploadAge
	}
	freed, failed := s.registry.GC(ctx, collect)
	if ctx.Err() != nil {
		return freed, ctx.Err()
	}
	defer func() { err = errors.Join(failed, err) }()
	if s.reread() {
		return freed, ctx.Err() // removing images would free no layers
	}
	n, err := s.sweep(ctx)
	freed += n
	if err != nil {
		return freed, err
	}
	for _, r := range s.leastRecentlyUsed() {
		age := time.Since(r.lastUsed)
		expired := p.MaxAge > 0 && age > p.MaxAge
		if !expired && age > grace && p.MinFreeBytes > 0 {
			free, err := freeBytes(s.opts.Dir)
			if err != nil {
				return freed, err
			}
			expired = free < p.MinFreeBytes
		}
		if !expired {
			continue
		}
		dropped, err := s.evict(r)
		if err != nil {
			return freed, err
		}
		if !dropped {
			continue
		}
		n, err := s.sweep(ctx)
		freed += n
		if err != nil {
			return freed, err
		}
	}
	return freed, ctx.Err()
}

// candidate is an image as the collector has listed it.
type candidate struct {
	digest   string
	lastUsed time.Time
}

func (s *Store) leastRecentlyUsed() []candidate {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]candidate, 0, len(s.records))
	for digest, r := range s.records {
		list = append(list, candidate{digest, r.lastUsed})
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), cmp.Compare(a.digest, b.digest))
	})
	return list
}

// evict drops an image unless it is in use or was used after the caller listed it. It calls InUse
// again before it takes the lock: a Machine is in InUse before it requests its image, and the request
// updates the time of use.
func (s *Store) evict(c candidate) (bool, error) {
	used := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[c.digest]
	if !ok || used[c.digest] || !r.lastUsed.Equal(c.lastUsed) {
		return false, nil
	}
	if err := s.drop(r); err != nil {
		return false, err
	}
	s.log.Info("image freed", slog.String("image", r.Ref.String()), slog.Time("last_used", c.lastUsed))
	return true, nil
}

// reread reads again the records that Open could not read, and removes those of images that no Machine
// uses. It reports whether one remains: the layers of its image are unknown, so none may be removed.
func (s *Store) reread() bool {
	used := s.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	for file := range s.unread {
		r, err := s.readRecord(file)
		switch {
		case err == nil:
			s.records[r.Ref.Digest] = r
		case used["sha256:"+strings.TrimSuffix(file, ".json")]:
			s.log.Warn("layers are kept, because an image that a Machine uses cannot be read",
				slog.String("file", file), slog.Any("error", err))
			continue
		default:
			if err := os.RemoveAll(s.path("images", file)); err != nil {
				s.log.Warn("cannot remove an image that cannot be read", slog.String("file", file), slog.Any("error", err))
			}
		}
		delete(s.unread, file)
	}
	return len(s.unread) > 0
}

// sweep removes layers that belong to no image and that no pull relies on. It moves them away under
// the lock, so that a pull finds a complete layer or none.
func (s *Store) sweep(ctx context.Context) (freed int64, err error) {
	if s.reread() {
		return 0, ctx.Err()
	}
	dead, err := s.hide()
	for _, d := range dead {
		if rerr := os.RemoveAll(d.dir); rerr != nil {
			return freed, rerr
		}
		freed += d.bytes
	}
	if err != nil {
		return freed, err
	}
	return freed, ctx.Err()
}

type deadLayer struct {
	dir   string
	bytes int64
}

func (s *Store) hide() ([]deadLayer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := map[string]bool{}
	for _, r := range s.records {
		for _, l := range r.Layers {
			live[l] = true
		}
	}
	entries, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return nil, err
	}
	var dead []deadLayer
	for i, e := range entries {
		if live[e.Name()] || s.pins[e.Name()] > 0 {
			continue
		}
		var r layerRecord
		if raw, err := os.ReadFile(s.path("layers", e.Name(), "layer.json")); err == nil {
			_ = json.Unmarshal(raw, &r) // only the size is needed; a damaged record counts as zero
		}
		to := s.path("tmp", "dead-"+strconv.FormatInt(time.Now().UnixNano(), 36)+"-"+strconv.Itoa(i))
		if err := os.Rename(s.path("layers", e.Name()), to); err != nil {
			return dead, err
		}
		dead = append(dead, deadLayer{to, r.Bytes})
	}
	if len(dead) == 0 {
		return nil, nil
	}
	return dead, durable.SyncDir(filepath.Join(s.opts.Dir, "layers"))
}

// freeBytes returns the free space of the file system that dir is on.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
