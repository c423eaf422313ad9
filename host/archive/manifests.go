package archive

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
)

// The library stores the manifests of each session as a content of its own, reads all such contents after
// each change, and would merge them in every session that finds 16. A merge leaves out what was removed,
// and the removal as well, so that of two merges at once the one that had begun before the removal would
// bring the removed manifest back. The archive therefore merges them itself, and keeps the contents with recent
// removals. Merges are then safe at any time, and in any number of processes.

const (
	// maxChanges is how many changes a process makes before a removal merges manifests.
	maxChanges = 32
	// recently is for how long a removal is kept, at least; merging bounds a merge.
	recently = time.Hour
	merging  = 10 * time.Minute
)

// IsReadOnly implements blob.Storage. The library asks it for one purpose, whether it may merge
// manifests by itself.
func (s *store) IsReadOnly() bool { return true }

// mergeSome merges the manifests after many changes. A failure undoes nothing of the changes, so it is only
// logged.
func (a *Archive) mergeSome(ctx context.Context) {
	if a.changes.Load() < maxChanges {
		return
	}
	if err := a.merge(ctx); err != nil && ctx.Err() == nil {
		a.opts.Log.WarnContext(ctx, "The manifests of the archive were not merged.", "error", err)
	}
}

// merge makes one content of all that have manifests, and keeps those with recent removals beside it.
func (a *Archive) merge(ctx context.Context) error {
	a.changes.Store(0)
	ctx, cancel := context.WithTimeout(ctx, merging)
	defer cancel()
	s, err := a.begin(ctx, "merge")
	if err != nil {
		return err
	}
	defer s.end()
	if err := s.w.Refresh(ctx); err != nil {
		return err
	}
	contents := &keptRemovals{WriteManager: s.w.ContentManager(), since: a.opts.Now().Add(-recently)}
	m, err := manifest.NewManager(ctx, contents, manifest.ManagerOptions{}, nil)
	if err != nil {
		return err
	}
	if _, err := m.Find(ctx, nil); err != nil { // has it read them
		return fmt.Errorf("read manifests: %w", err)
	}
	switch err := m.Compact(ctx); {
	case errors.Is(err, content.ErrContentNotFound): // merged by another session meanwhile
		return nil
	case err != nil:
		return fmt.Errorf("merge manifests: %w", err)
	}
	return contents.Flush(ctx)
}

// keptRemovals deletes no content with manifests that has a recent removal.
type keptRemovals struct {
	*content.WriteManager

	since time.Time
	kept  sync.Map // of content.ID
}

// GetContent reads a content with manifests.
func (k *keptRemovals) GetContent(ctx context.Context, id content.ID) ([]byte, error) {
	b, err := k.WriteManager.GetContent(ctx, id)
	if err != nil {
		return nil, err
	}
	switch removed, err := removedAfter(b, k.since); {
	case err != nil:
		return nil, fmt.Errorf("manifests %s: %w", id, err)
	case removed:
		k.kept.Store(id, true)
	}
	return b, nil
}

// DeleteContent deletes a content that was read.
func (k *keptRemovals) DeleteContent(ctx context.Context, id content.ID) error {
	if _, kept := k.kept.Load(id); kept {
		return nil
	}
	return k.WriteManager.DeleteContent(ctx, id)
}

// removedAfter reports whether a content with manifests has a removal after a time. The format is that
// of kopia's package manifest.
func removedAfter(b []byte, at time.Time) (bool, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return false, err
	}
	type entry struct {
		Modified time.Time `json:"modified"`
		Deleted  bool      `json:"deleted"`
	}
	var of struct {
		Entries []entry `json:"entries"`
	}
	if err := json.NewDecoder(r).Decode(&of); err != nil {
		return false, err
	}
	return slices.ContainsFunc(of.Entries, func(e entry) bool { return e.Deleted && e.Modified.After(at) }), nil
}
