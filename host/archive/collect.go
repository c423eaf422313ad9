package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/indexblob"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/maintenancestats"
	"github.com/kopia/kopia/snapshot/snapshotgc"
)

// Collect frees the room that no snapshot needs, and returns how many bytes that were. It may run
// beside anything, be interrupted anywhere and be repeated; of two at once in one process the
// second waits. In a bucket one daemon collects at a time: while another one does, it frees
// nothing and answers no error.
//
// Room is freed in files of some 10 MiB. A file that is still needed in part is rewritten once
// less than three quarters of 10 MiB of it are.
//
// First it looks, in one list of the files, for those that are missing or too short, and logs them.
// Write then stores again what it needs of them.
func (a *Archive) Collect(ctx context.Context) (freed int64, err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	select {
	case a.collecting <- struct{}{}:
		defer func() { <-a.collecting }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if a.shared {
		mine, end, err := a.lease(ctx)
		if err != nil {
			return 0, fmt.Errorf("collect garbage: %w", err)
		}
		if mine == nil {
			return 0, nil
		}
		defer end()
		ctx = mine
	}
	if freed, err = a.collect(ctx); err != nil {
		return freed, fmt.Errorf("collect garbage: %w", err)
	}
	return freed, nil
}

// grace is the tolerance of timestamps of files and of the library, with a margin.
const grace = 2 * time.Second

func (a *Archive) collect(ctx context.Context) (freed int64, err error) {
	if err := a.merge(ctx); err != nil {
		return 0, err
	}
	s, err := a.begin(ctx, "collect")
	if err != nil {
		return 0, err
	}
	defer s.end()
	if err := a.inspect(ctx); err != nil {
		return 0, fmt.Errorf("look for lost files: %w", err)
	}
	safety := a.safety()
	marked, err := a.mark(ctx, s, safety)
	if err != nil {
		return 0, err
	}
	drop := marked
	if a.shared {
		schedule, err := maintenance.GetSchedule(ctx, s.w)
		if err != nil {
			return 0, err
		}
		drop = settled(schedule, safety)
	}
	if !drop.IsZero() {
		opts := indexblob.CompactOptions{AllIndexes: true, DropDeletedBefore: drop, DisableEventualConsistencySafety: !a.shared}
		if _, err := s.w.ContentManager().CompactIndexes(ctx, opts); err != nil {
			return 0, err
		}
	}
	freed, err = a.sweep(ctx, s, safety)
	return freed, errors.Join(err, a.tidy(ctx, s))
}

// safety returns the minimum ages of garbage. They protect what other processes may be about to
// use. A directory has no other processes, and the sessions of this one are known.
func (a *Archive) safety() maintenance.SafetyParameters {
	if a.shared {
		return maintenance.SafetyFull
	}
	return maintenance.SafetyNone
}

// mark decides what is garbage, durably and reversibly. It returns the second of the decision.
// Content that is stored again has that time or a later one, and overrides the decision. For
// content that was stored in the same second, the decision gets a later time, and takes effect with
// the next Collect.
func (a *Archive) mark(ctx context.Context, s *session, safety maintenance.SafetyParameters) (time.Time, error) {
	if err := a.gate.Acquire(ctx, gateAlone); err != nil {
		return time.Time{}, err
	}
	defer a.gate.Release(gateAlone)
	if !a.shared {
		// The contents of an open session are not garbage.
		safety.MinContentAgeSubjectToGC = a.opts.Now().Sub(a.oldest(s))
	}
	if err := s.w.Refresh(ctx); err != nil {
		return time.Time{}, err
	}
	now := a.opts.Now()
	if err := snapshotgc.Run(ctx, &careful{DirectRepositoryWriter: s.w}, true, safety, now); err != nil {
		return time.Time{}, err
	}
	return now.Truncate(time.Second), nil
}

// oldest returns the begin of the oldest other session, minus a margin, or the current time without
// one. If the clock was set back since, it is the begin by the clock as it is now.
func (a *Archive) oldest(s *session) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := a.opts.Now().Round(0)
	now := oldest
	for other, begun := range a.sessions {
		if other == s {
			continue
		}
		for _, at := range []time.Time{begun.wall, now.Add(-time.Since(begun.at))} {
			if at = at.Add(-grace); at.Before(oldest) {
				oldest = at
			}
		}
	}
	return oldest
}

// settled returns the time until which all decisions are final: a later run has confirmed them,
// after everything in progress at the time had become visible. It returns zero if there is no such
// time.
func settled(schedule *maintenance.Schedule, safety maintenance.SafetyParameters) time.Time {
	runs := slices.DeleteFunc(slices.Clone(schedule.Runs[maintenance.TaskSnapshotGarbageCollection]),
		func(r maintenance.RunInfo) bool { return !r.Success })
	if len(runs) == 0 {
		return time.Time{}
	}
	slices.SortFunc(runs, func(x, y maintenance.RunInfo) int { return y.Start.Compare(x.Start) })
	for _, r := range runs[1:] {
		if runs[0].Start.Sub(r.End) > safety.MarginBetweenSnapshotGC {
			return r.Start.Add(-safety.DropContentFromIndexExtraMargin)
		}
	}
	return time.Time{}
}

// packSize is the size at which the library writes its buffer to a file. A file of which less than
// shortPack is needed is rewritten.
const (
	packSize  = 10 << 20 // the library's minimum
	shortPack = packSize / 4 * 3
)

// sweep rewrites files with little live content, and removes files without any.
func (a *Archive) sweep(ctx context.Context, s *session, safety maintenance.SafetyParameters) (freed int64, err error) {
	schedule, err := maintenance.GetSchedule(ctx, s.w)
	if err != nil {
		return 0, err
	}
	before := s.uploaded.Load()
	// A process with an old index reads the old files. In a bucket they are therefore kept until
	// all processes have read the new index, and no more files are rewritten meanwhile.
	rewritten, removed := last(schedule, maintenance.TaskRewriteContentsFull), last(schedule, maintenance.TaskDeleteOrphanedBlobsFull)
	var damage error
	if !a.shared || !rewritten.After(removed) {
		damage = a.rewrite(ctx, s, safety)
	}
	if a.shared && a.opts.Now().Sub(rewritten) < safety.MinRewriteToOrphanDeletionDelay {
		return 0, damage
	}
	// Files in a directory carry this server's time. Files younger than an open session may belong
	// to it, and may not be in the index yet.
	until := a.oldest(s)
	if a.shared {
		until = a.opts.Now()
	}
	err = maintenance.ReportRun(ctx, s.w, maintenance.TaskDeleteOrphanedBlobsFull, nil, func() (maintenancestats.Kind, error) {
		stats, err := maintenance.DeleteUnreferencedPacks(ctx, s.w, maintenance.DeleteUnreferencedPacksOptions{
			NotAfterTime: until.Add(-grace), // the library adds a second
			Parallel:     4,
		}, safety)
		if err != nil {
			return nil, err
		}
		freed = stats.DeletedTotalSize
		return stats, nil
	})
	return max(freed-(s.uploaded.Load()-before), 0), errors.Join(err, damage)
}

func last(schedule *maintenance.Schedule, task maintenance.TaskType) (end time.Time) {
	for _, r := range schedule.Runs[task] {
		if r.Success && r.End.After(end) {
			end = r.End
		}
	}
	return end
}

// rewrite moves live content out of files with little of it. The library has a function for this,
// but it lists all stored content in memory.
func (a *Archive) rewrite(ctx context.Context, s *session, safety maintenance.SafetyParameters) error {
	type pack struct {
		id   blob.ID
		size int64
	}
	var short []pack
	err := s.w.ContentReader().IteratePacks(ctx, content.IteratePackOptions{IncludePacksWithOnlyDeletedContent: true}, func(p content.PackInfo) error {
		if p.TotalSize < shortPack {
			short = append(short, pack{p.PackID, p.TotalSize})
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Rewriting a single file would only copy it. The smallest files come first, because they free
	// the most files for the least copying.
	kinds := map[string]int{}
	for _, p := range short {
		kinds[string(p.id[:1])]++
	}
	short = slices.DeleteFunc(short, func(p pack) bool { return kinds[string(p.id[:1])] < 2 })
	slices.SortFunc(short, func(x, y pack) int { return cmp.Compare(x.size, y.size) })
	chosen := map[blob.ID]bool{}
	for _, p := range short[:min(len(short), maxRewritten)] {
		chosen[p.id] = true
	}
	if len(chosen) == 0 {
		return nil
	}
	var contents []content.Info
	err = s.w.ContentReader().IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(i content.Info) error {
		if chosen[i.PackBlobID] && s.w.Time().Sub(i.Timestamp()) >= safety.RewriteMinAge {
			contents = append(contents, i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return maintenance.ReportRun(ctx, s.w, maintenance.TaskRewriteContentsFull, nil, func() (maintenancestats.Kind, error) {
		stats, err := copyContents(ctx, s.w.ContentManager(), contents)
		if err != nil {
			return nil, err
		}
		return stats, nil
	})
}

// copyContents stores contents again, except for damaged ones. The library's own function fails on
// garbage that leaves the index meanwhile.
func copyContents(ctx context.Context, to *content.WriteManager, contents []content.Info) (*maintenancestats.RewriteContentsStats, error) {
	var stats maintenancestats.RewriteContentsStats
	var failed []error
	for _, i := range contents {
		stats.ToRewriteContentCount++
		stats.ToRewriteContentSize += int64(i.PackedLength)
		err := to.RewriteContent(ctx, i.ContentID)
		if errors.Is(err, content.ErrContentNotFound) {
			continue
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("rewrite content %s: %w", i.ContentID, err))
			continue
		}
		stats.RewrittenContentCount++
		stats.RewrittenContentSize += int64(i.PackedLength)
	}
	if err := to.Flush(ctx); err != nil {
		return nil, err
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("%d contents were not copied: %w", len(failed), failed[0])
	}
	return &stats, nil
}

// maxRewritten bounds the files that one Collect rewrites.
const maxRewritten = 1000

// tidy merges the small index files that sessions leave.
func (a *Archive) tidy(ctx context.Context, s *session) error {
	epochs, ok, err := s.w.ContentManager().EpochManager(ctx)
	if err != nil || !ok {
		return err
	}
	_, err1 := epochs.MaybeCompactSingleEpoch(ctx)
	_, err2 := epochs.MaybeAdvanceWriteEpoch(ctx)
	_, err3 := epochs.MaybeGenerateRangeCheckpoint(ctx)
	_, err4 := epochs.CleanupMarkers(ctx)
	_, err5 := epochs.CleanupSupersededIndexes(ctx)
	return errors.Join(err1, err2, err3, err4, err5)
}
