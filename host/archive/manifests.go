package archive

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo/content"
	contentindex "github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"
)

// The library stores the manifests of each session as a content of its own, and reads all such
// contents after each change. So that they stay few, it merges them, in every session that finds 16.
// A merge leaves out what was removed, and the removal as well. If two sessions merge at once, and one
// of them began before the removal, the removed manifest comes back. Only the holder of collecting,
// and in a bucket of the lease, therefore merges, which is safe beside all other changes; see
// store.IsReadOnly.

// maxManifests is how many contents with manifests there may be before they are merged.
const maxManifests = 32

// IsReadOnly implements blob.Storage. The library asks it for one purpose, whether it may merge
// manifests by itself.
func (s *store) IsReadOnly() bool { return true }

// mergeSome merges the manifests after a change if there are many contents of them. While garbage is
// collected it leaves that to Collect. A failure undoes nothing of the change, so it is only logged.
func (a *Archive) mergeSome(ctx context.Context) {
	select {
	case a.collecting <- struct{}{}:
		defer func() { <-a.collecting }()
	default:
		return
	}
	if err := a.tryMerge(ctx); err != nil && ctx.Err() == nil {
		a.opts.Log.WarnContext(ctx, "The manifests of the archive were not merged.", "error", err)
	}
}

func (a *Archive) tryMerge(ctx context.Context) error {
	switch n, err := manifestContents(ctx, a.rep.ContentReader()); {
	case err != nil:
		return err
	case n <= maxManifests:
		return nil
	}
	if a.shared {
		mine, end, err := a.lease(ctx)
		if mine == nil {
			return err
		}
		defer end()
		ctx = mine
	}
	s, err := a.begin(ctx, "merge")
	if err != nil {
		return err
	}
	defer s.end()
	return s.merge(ctx)
}

// merge makes one content of all that have manifests.
func (s *session) merge(ctx context.Context) error {
	if err := s.w.Refresh(ctx); err != nil {
		return err
	}
	contents := s.w.ContentManager()
	switch n, err := manifestContents(ctx, contents); {
	case err != nil:
		return err
	case n < 2:
		return nil
	}
	m, err := manifest.NewManager(ctx, contents, manifest.ManagerOptions{}, nil)
	if err != nil {
		return err
	}
	if _, err := m.Find(ctx, nil); err != nil { // has it read them
		return err
	}
	if err := m.Compact(ctx); err != nil {
		return fmt.Errorf("merge manifests: %w", err)
	}
	return contents.Flush(ctx)
}

// manifestContents returns how many contents have manifests.
func manifestContents(ctx context.Context, in content.Reader) (n int, err error) {
	opts := content.IterateOptions{Range: contentindex.PrefixRange(manifest.ContentPrefix)}
	err = in.IterateContents(ctx, opts, func(content.Info) error {
		n++
		return nil
	})
	return n, err
}
