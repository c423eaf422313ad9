package main

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
)

const (
	testVolume   = hangar.VolumeID("vol_0000000000000001")
	testSnapshot = hangar.SnapshotID("vs_00000000000000000001")
	gib          = int64(1) << 30
)

// scripted is a platform whose long work goes as a test says: each step is what it
// answers from a time on.
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

// inBubble runs a test with a clock of its own. What watches for signals is started
// before, as it never ends.
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
		v, err := followFilling(t.Context(), s, &begun, (&streams{stderr: &out}).workProgress(false))
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
		_, err := followFilling(t.Context(), s, &begun, &progress{})
		if err == nil || err.Error() != "volume vol_0000000000000001: the digest differs" || !strings.Contains(hintFor(err), "hangar volumes events hello") {
			t.Errorf("%v; %s", err, hintFor(err))
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
				got, err := followSnapshot(t.Context(), s, hangar.VolumeRef{App: "hello", ID: testVolume}, &hangar.Snapshot{ID: testSnapshot}, &progress{})
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
		_, err := followSnapshot(t.Context(), s, hangar.VolumeRef{App: "hello", ID: testVolume}, &hangar.Snapshot{ID: testSnapshot}, &progress{})
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
		_, err := followDrill(ctx, s, &s.drills[0].is, &progress{})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		var stderr strings.Builder
		c := &cli{streams: streams{stderr: &stderr}, parsed: true}
		if code := c.report(nil, err); code != exitInterrupted {
			t.Errorf("exit code %d", code)
		}
		const want = "Interrupted.\nNext: it goes on by itself; see `hangar volumes drill hello --show`\n"
		if stderr.String() != want {
			t.Errorf("%q", stderr.String())
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
		got, err := followDrill(t.Context(), s, &begun, (&streams{stderr: &out}).workProgress(false))
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

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		has  int
		text string
		want int // 0: refused
	}{
		{3, "10", 10},
		{3, "+5", 8},
		{3, "10gb", 10},
		{3, "10GB", 10},
		{3, "+1GiB", 4},
		{3, "2048mb", 2},
		{3, "1tb", 0},
		{499, "+1", 500},
		{499, "+2", 0},
		{3, "", 0},
		{3, "+", 0},
		{3, "0", 0},
		{3, "-1", 0},
		{3, "501", 0},
		{3, "1.5", 0},
		{3, "512mb", 0},
		{3, "ten", 0},
		{3, "++1", 0},
		{3, "+ 1", 0},
		{3, "+18446744073709551615", 0},
	} {
		got, err := newSize(test.has, test.text)
		if got != test.want || (err == nil) != (test.want != 0) {
			t.Errorf("%d %q: %d, %v", test.has, test.text, got, err)
		}
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	const id = string(testVolume)
	for text, want := range map[string]hangar.Mount{
		id + ":/data":        {Volume: id, Path: "/data"},
		"data:/data":         {Name: "data", Path: "/data"},
		"vol_short:/var/lib": {Name: "vol_short", Path: "/var/lib"},
		"data:/data:extend_threshold_percent=80:add_size_gb=1:size_gb_limit=10": {
			Name: "data", Path: "/data", ExtendThresholdPercent: 80, AddSizeGB: 1, SizeGBLimit: 10,
		},
		"data:/data:extend_threshold_percent=80,add_size_gb=2": {Name: "data", Path: "/data", ExtendThresholdPercent: 80, AddSizeGB: 2},
	} {
		if got, err := parseMount(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "data", ":/data", "data:", "data:data", "data:/data:ro", "data:/data:add_size_gb", "data:/data:add_size_gb=-1", "data:/d:size_gb=x"} {
		_, err := parseMount(text)
		if _, ok := errors.AsType[usageError](err); !ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPickVolume(t *testing.T) {
	t.Parallel()
	volume := func(id, name string, state hangar.VolumeState, machine hangar.MachineID) *hangar.Volume {
		return &hangar.Volume{ID: hangar.VolumeID(id), Name: name, State: state, AttachedMachine: machine, Region: "loc"}
	}
	volumes := []*hangar.Volume{
		volume("gone", "data", hangar.VolumePendingDestroy, ""), volume("busy", "data", hangar.VolumeCreated, "m1"),
		volume("filled", "data", hangar.VolumeRestoring, ""), volume("free", "data", hangar.VolumeCreated, ""),
		volume("free2", "data", hangar.VolumeExtending, ""), volume("held", "logs", hangar.VolumeCreated, "m1"),
	}
	for _, test := range []struct {
		name   string
		region hangar.Region
		own    hangar.MachineID
		taken  map[hangar.VolumeID]bool
		want   hangar.VolumeID
		code   hangar.Code
	}{
		{name: "data", want: "free"},
		{name: "data", own: "m1", want: "busy"},
		{name: "data", own: "m2", want: "free"},
		{name: "data", taken: map[hangar.VolumeID]bool{"free": true}, want: "free2"},
		{name: "data", region: "loc", want: "free"},
		{name: "data", region: "ams", code: hangar.CodeNotFound},
		{name: "logs", code: hangar.CodeConflict},
		{name: "none", code: hangar.CodeNotFound},
	} {
		v, err := pickVolume(volumes, "hello", test.region, test.own, test.name, test.taken)
		if test.code != "" {
			if hangar.CodeOf(err) != test.code || !strings.Contains(hintFor(err), "hangar volumes create hello "+test.name) {
				t.Errorf("%+v: %v; %s", test, err, hintFor(err))
			}
		} else if err != nil || v.ID != test.want {
			t.Errorf("%+v: %+v, %v", test, v, err)
		}
	}
}

func TestVolumesAreJSONAsTheAPIHasThem(t *testing.T) {
	t.Parallel()
	print := func(v any) string {
		t.Helper()
		var out strings.Builder
		if err := (&streams{stdout: &out}).printJSON(v); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	v := &hangar.Volume{
		ID: testVolume, State: hangar.VolumePendingDestroy, DestroyedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Usage: hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: 100, BlockSize: 4096, BlocksFree: 90},
	}
	free := print(volumeJSON(v))
	for _, want := range []string{
		`"attached_machine_id": null`, `"fstype": "ext4"`, `"blocks": 100`, `"bytes_used": 40960`, `"undelete_until": "2026-01-03T03:04:05Z"`,
	} {
		if !strings.Contains(free, want) {
			t.Errorf("lacks %s: %s", want, free)
		}
	}
	if strings.Contains(free, `"usage"`) || strings.Contains(free, `"attached_machine"`) {
		t.Error(free)
	}
	v.AttachedMachine = "3d8d413b29d089"
	if held := print(volumesJSON([]*hangar.Volume{v})); !strings.Contains(held, `"attached_machine_id": "3d8d413b29d089"`) || held[0] != '[' {
		t.Error(held)
	}
	if s := print(snapshotsJSON([]*hangar.Snapshot{{Frozen: 45 * time.Millisecond}})); !strings.Contains(s, `"frozen_ms": 45`) || strings.Contains(s, `"frozen":`) {
		t.Error(s)
	}
}
