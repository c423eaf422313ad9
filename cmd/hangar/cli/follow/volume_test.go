package follow

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const (
	testVolume   = hangar.VolumeID("vol_0000000000000001")
	testSnapshot = hangar.SnapshotID("vs_00000000000000000001")
	gib          = int64(1) << 30
)

// scripted is a platform with scripted progress of long operations. Each step is its answer from a time on.
type scripted struct {
	hangar.VolumeService
	began time.Time
	asked int

	volumes   []step[hangar.Volume]
	snapshots []step[hangar.Snapshot]
	drills    []step[hangar.VolumeDrill]
	events    []hangar.VolumeEvent
}

// step is an answer, or an error, from a time on.
type step[T any] struct {
	from time.Duration
	is   T
	err  error
}

func at[T any](s *scripted, steps []step[T]) (*T, error) {
	s.asked++
	var now step[T]
	for _, x := range steps {
		if time.Since(s.began) >= x.from {
			now = x
		}
	}
	return &now.is, now.err
}

func (s *scripted) Volume(context.Context, hangar.VolumeRef) (*hangar.Volume, error) {
	return at(s, s.volumes)
}

func (s *scripted) Snapshots(context.Context, hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	now, err := at(s, s.snapshots)
	return []*hangar.Snapshot{{ID: "vs_00000000000000000000"}, now}, err
}

func (s *scripted) VolumeDrill(context.Context, hangar.AppName) (*hangar.VolumeDrill, error) {
	return at(s, s.drills)
}

func (s *scripted) VolumeEvents(context.Context, hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	return s.events, nil
}

func filling(state hangar.VolumeState, done int64) hangar.Volume {
	v := hangar.Volume{ID: testVolume, App: "hello", State: state}
	if state == hangar.VolumeRestoring {
		v.Filling = hangar.Filling{Snapshot: testSnapshot, Progress: hangar.Progress{Done: done, Total: 4 * gib}}
	}
	return v
}

// inBubble runs a test with a fake clock. It starts the goroutine that watches for signals before, because that
// never ends.
func inBubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	signal.Stop(c)
	synctest.Test(t, test)
}

func TestFollowFillingInLines(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		s := &scripted{began: time.Now(), volumes: []step[hangar.Volume]{
			{0, filling(hangar.VolumeRestoring, 0), nil},
			{4 * time.Second, filling(hangar.VolumeRestoring, gib), nil},
			{9 * time.Second, filling(hangar.VolumeRestoring, 2*gib), nil},
			{14 * time.Second, filling(hangar.VolumeRestoring, 3*gib), nil},
			{18 * time.Second, filling(hangar.VolumeCreated, 0), nil},
		}}
		var out strings.Builder
		begun := filling(hangar.VolumeRestoring, 0)
		v, err := Filling(t.Context(), s, &begun, (&cli.Streams{Stderr: &out}).WorkProgress(false))
		if err != nil || v.State != hangar.VolumeCreated {
			t.Fatalf("%+v, %v", v, err)
		}
		if took := time.Since(s.began); took > 18*time.Second+lastPause {
			t.Errorf("noticed after %s", took)
		}
		if s.asked > 26 {
			t.Errorf("asked %d times in 18 s", s.asked)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 4 || lines[0] != "restoring vs_00000000000000000001…" ||
			!strings.HasPrefix(lines[1], "restoring vs_00000000000000000001: 1GiB of 4GiB (25%), ") || !strings.HasSuffix(lines[1], "s left") ||
			!strings.Contains(lines[3], "3GiB of 4GiB (75%)") {
			t.Errorf("%s", out.String())
		}
	})
}

func TestFollowFillingThatFails(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		s := &scripted{
			began:   time.Now(),
			volumes: []step[hangar.Volume]{{0, filling(hangar.VolumeRestoring, 0), nil}, {time.Second, filling(hangar.VolumeFailed, 0), nil}},
			events:  []hangar.VolumeEvent{{Type: hangar.VolumeEventDetach}, {Type: hangar.VolumeEventRestore, Fault: "the digest differs"}, {Fault: "older"}},
		}
		begun := filling(hangar.VolumeRestoring, 0)
		_, err := Filling(t.Context(), s, &begun, &cli.Progress{})
		if err == nil || err.Error() != "volume vol_0000000000000001: the digest differs" || !strings.Contains(cli.HintFor(err), "hangar volumes events hello") {
			t.Errorf("%v; %s", err, cli.HintFor(err))
		}
	})
}

func TestFollowOutlivesARestartOfTheDaemon(t *testing.T) {
	t.Parallel()
	away := hangar.Errorf(hangar.CodeUnavailable, "", "away")
	back := 20 * time.Second
	for name, test := range map[string]struct {
		err  error
		lost time.Duration // from then on
		want hangar.Code
	}{
		"comes back":   {away, back, ""},
		"stays away":   {away, time.Hour, hangar.CodeUnavailable},
		"says no more": {hangar.Errorf(hangar.CodeForbidden, "", "revoked"), back, hangar.CodeForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				s := &scripted{began: time.Now(), snapshots: []step[hangar.Snapshot]{
					{0, hangar.Snapshot{ID: testSnapshot, State: hangar.SnapshotRunning}, nil},
					{time.Second, hangar.Snapshot{}, test.err},
					{test.lost, hangar.Snapshot{ID: testSnapshot, State: hangar.SnapshotCreated, Size: 7}, nil},
				}}
				got, err := Snapshot(t.Context(), s, hangar.VolumeRef{App: "hello", ID: testVolume}, &hangar.Snapshot{ID: testSnapshot}, &cli.Progress{})
				if test.want == "" && (err != nil || got.Size != 7) || test.want != "" && hangar.CodeOf(err) != test.want {
					t.Errorf("%+v, %v", got, err)
				}
				if took := time.Since(s.began); took > maxSilence+2*lastPause {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

func TestFollowSnapshotThatFails(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		s := &scripted{began: time.Now(), snapshots: []step[hangar.Snapshot]{
			{0, hangar.Snapshot{ID: testSnapshot, State: hangar.SnapshotWaiting}, nil},
			{time.Second, hangar.Snapshot{ID: testSnapshot, State: hangar.SnapshotFailed, Fault: "no space left on device"}, nil},
		}}
		_, err := Snapshot(t.Context(), s, hangar.VolumeRef{App: "hello", ID: testVolume}, &hangar.Snapshot{ID: testSnapshot}, &cli.Progress{})
		if err == nil || err.Error() != "snapshot vs_00000000000000000001: no space left on device" {
			t.Error(err)
		}
	})
}

func TestInterruptingLeavesTheWork(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		s := &scripted{began: time.Now(), drills: []step[hangar.VolumeDrill]{{0, hangar.VolumeDrill{App: "hello", StartedAt: time.Now()}, nil}}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		_, err := Drill(ctx, s, &s.drills[0].is, &cli.Progress{})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if got, want := cli.HintFor(err), "it continues by itself; see `hangar volumes drill hello --show`"; got != want {
			t.Errorf("%q", got)
		}
	})
}

func TestFollowDrill(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		begun := hangar.VolumeDrill{App: "hello", Snapshot: testSnapshot, StartedAt: time.Now(), Progress: hangar.Progress{Total: gib}}
		read := begun
		read.Progress.Done = gib
		ended := begun
		ended.FinishedAt, ended.Fault = time.Now().Add(6*time.Second), "e2fsck: unexpected inconsistency"
		s := &scripted{began: time.Now(), drills: []step[hangar.VolumeDrill]{{0, begun, nil}, {7 * time.Second, read, nil}, {30 * time.Second, ended, nil}}}
		var out strings.Builder
		got, err := Drill(t.Context(), s, &begun, (&cli.Streams{Stderr: &out}).WorkProgress(false))
		if err != nil || got.Passed || got.Fault != ended.Fault {
			t.Errorf("%+v, %v", got, err)
		}
		const want = "trying vs_00000000000000000001…\ntrying vs_00000000000000000001: 0B of 1GiB (0%)\n" +
			"trying vs_00000000000000000001: 1GiB of 1GiB (100%)\n"
		if out.String() != want {
			t.Errorf("%q", out.String())
		}
	})
}
