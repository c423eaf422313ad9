package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/pause"
)

// The API has no stream for the progress of long work, so it is polled: often at first, because much of
// the work is short.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
	// maxSilence is how long polling continues without an answer: the platform may be restarting, and
	// long work continues after that.
	maxSilence = 30 * time.Second
)

// pollUntil calls ask until ended is true for its result, and returns the result.
func pollUntil[T any](ctx context.Context, ask func(context.Context) (T, error), ended func(T) bool) (T, error) {
	delay, answered := firstPause, time.Now()
	for {
		now, err := ask(ctx)
		switch {
		case err == nil && ended(now):
			return now, nil
		case err == nil:
			answered = time.Now()
		case ctx.Err() != nil:
			return now, ctx.Err()
		case hangar.CodeOf(err) != hangar.CodeUnavailable && !cli.Unreachable(err), time.Since(answered) > maxSilence:
			return now, err
		}
		if err := pause.For(ctx, delay); err != nil {
			return now, err
		}
		delay = min(delay*3/2, lastPause)
	}
}

// attend calls work, which follows work of the platform. If the user interrupts it, the error says that
// the platform continues, and which command shows the progress.
func attend(ctx context.Context, see string, work func(context.Context) error) error {
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer restore()
	err := work(ctx)
	if errors.Is(err, context.Canceled) {
		return cli.WithHint(err, fmt.Sprintf("it continues by itself; see `%s`", see))
	}
	return err
}

// Filling waits until a volume has the content of a snapshot or another volume.
func Filling(ctx context.Context, p hangar.VolumeService, v *hangar.Volume, bar *cli.Progress) (*hangar.Volume, error) {
	title := "restoring " + string(v.Filling.Snapshot)
	if v.Filling.Source != "" {
		title = "copying " + string(v.Filling.Source)
	}
	err := attend(ctx, fmt.Sprintf("hangar volumes show %s %s", v.App, v.ID), func(ctx context.Context) (err error) {
		defer bar.Close()
		v, err = pollUntil(ctx,
			func(ctx context.Context) (*hangar.Volume, error) { return p.Volume(ctx, v.Ref()) },
			func(now *hangar.Volume) bool {
				v = now
				if now.State == hangar.VolumeRestoring {
					bar.Update(title, now.Filling.Progress.Done, now.Filling.Progress.Total)
				}
				return now.State != hangar.VolumeRestoring && now.State != hangar.VolumeCreating
			})
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case v.State == hangar.VolumeFailed:
		return nil, whyVolumeFailed(ctx, p, v)
	case v.State.Gone():
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "volume %s was destroyed before it was filled", v.ID)
	}
	return v, nil
}

// whyVolumeFailed returns an error with the reason of the newest failure in a volume's events.
func whyVolumeFailed(ctx context.Context, p hangar.VolumeService, v *hangar.Volume) error {
	cause := "it failed"
	events, err := p.VolumeEvents(ctx, v.Ref())
	if err == nil {
		if i := slices.IndexFunc(events, func(e hangar.VolumeEvent) bool { return e.Fault != "" }); i >= 0 {
			cause = events[i].Fault
		}
	}
	return cli.WithHint(fmt.Errorf("volume %s: %s", v.ID, cause),
		fmt.Sprintf("see `hangar volumes events %s %s`, and destroy it: hangar volumes destroy %s %s", v.App, v.ID, v.App, v.ID))
}

// Snapshot waits until a snapshot is complete.
func Snapshot(ctx context.Context, p hangar.SnapshotService, ref hangar.VolumeRef, s *hangar.Snapshot, bar *cli.Progress) (*hangar.Snapshot, error) {
	title := "snapshot " + string(s.ID)
	err := attend(ctx, fmt.Sprintf("hangar volumes snapshots list %s %s", ref.App, ref.ID), func(ctx context.Context) (err error) {
		defer bar.Close()
		s, err = pollUntil(ctx,
			func(ctx context.Context) (*hangar.Snapshot, error) { return FindSnapshot(ctx, p, ref, s.ID) },
			func(now *hangar.Snapshot) bool {
				s = now
				if now.State == hangar.SnapshotRunning {
					bar.Update(title, now.Progress.Done, now.Progress.Total)
				}
				return now.State == hangar.SnapshotCreated || now.State == hangar.SnapshotFailed
			})
		return err
	})
	if err == nil && s.State == hangar.SnapshotFailed {
		err = cli.WithHint(fmt.Errorf("snapshot %s: %s", s.ID, cmp.Or(s.Fault, "it failed")),
			fmt.Sprintf("see `hangar volumes events %s %s`, and try again", ref.App, ref.ID))
	}
	return s, err
}

// FindSnapshot finds a snapshot of a volume.
func FindSnapshot(ctx context.Context, p hangar.SnapshotService, ref hangar.VolumeRef, id hangar.SnapshotID) (*hangar.Snapshot, error) {
	snapshots, err := p.Snapshots(ctx, ref)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(snapshots, func(s *hangar.Snapshot) bool { return s.ID == id }); i >= 0 {
		return snapshots[i], nil
	}
	return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSnapshotNotFound, "volume %s has no snapshot %s", ref.ID, id)
}

// Drill waits until a drill has finished.
func Drill(ctx context.Context, p hangar.SnapshotService, d *hangar.VolumeDrill, bar *cli.Progress) (*hangar.VolumeDrill, error) {
	began := d.StartedAt
	err := attend(ctx, fmt.Sprintf("hangar volumes drill %s --show", d.App), func(ctx context.Context) (err error) {
		defer bar.Close()
		d, err = pollUntil(ctx,
			func(ctx context.Context) (*hangar.VolumeDrill, error) { return p.VolumeDrill(ctx, d.App) },
			func(now *hangar.VolumeDrill) bool {
				d = now
				if now.FinishedAt.IsZero() {
					bar.Update("trying "+string(now.Snapshot), now.Progress.Done, now.Progress.Total)
				}
				return !now.FinishedAt.IsZero() || !now.StartedAt.Equal(began)
			})
		return err
	})
	return d, err
}
