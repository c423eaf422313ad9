package remote_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
)

func TestBoundsOfTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir(), Limits: remote.Limits{TenantSpoolBytes: 200_000, SpoolBytes: 300_000, Senders: 1}})
		stop := run(t, w)
		write(t, w, gamma, noise(0))
		synctest.Wait()
		for i := range 20 {
			write(t, w, beta, noise(i))
		}
		for i := range 300 {
			write(t, w, alpha, noise(i))
			if i%10 != 9 {
				continue
			}
			if n := metricstest.Value(t, w, "hangar_remote_spool_bytes", ""); n > 300_000 {
				t.Fatalf("the spool has %v bytes", n)
			}
		}
		stop()
		s.answer = nil
		run(t, w)
		time.Sleep(time.Hour)
		if got := s.values(beta); !slices.Equal(got, upTo(20)) {
			t.Errorf("a tenant within its bounds has lost samples: %v", got)
		}
		got := s.values(alpha)
		if len(got) < 30 || len(got) > 60 || got[len(got)-1] != 299 || got[0] != 300-len(got) || !slices.IsSorted(got) {
			t.Errorf("not the newest samples are left: %v", got)
		}
		if n := metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "spool_full"); int(n) != 300-len(got) {
			t.Errorf("%v samples are counted as dropped, %d are", n, 300-len(got))
		}
	})
}

// TestTheLargestBacklogMakesRoom: at the limit of the spool, the tenant with the largest backlog
// loses samples, even when another one writes.
func TestTheLargestBacklogMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir(), Limits: remote.Limits{TenantSpoolBytes: 400_000, SpoolBytes: 400_000}})
		stop := run(t, w)
		write(t, w, gamma, noise(0))
		synctest.Wait()
		for i := range 90 {
			write(t, w, alpha, noise(i))
		}
		for i := range 40 {
			write(t, w, beta, noise(i))
		}
		stop()
		s.answer = nil
		run(t, w)
		time.Sleep(time.Hour)
		if got := s.values(beta); !slices.Equal(got, upTo(40)) {
			t.Errorf("the smaller backlog has lost samples: %v", got)
		}
		if got := s.values(alpha); len(got) < 30 || got[len(got)-1] != 89 {
			t.Errorf("the larger backlog has %v", got)
		}
	})
}

func TestOldSegmentsAreDropped(t *testing.T) {
	s, dir := &store{}, t.TempDir()
	w := open(t, remote.Options{Store: s, Dir: dir})
	write(t, w, alpha, numbered(0, 7))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range segments(t, dir) {
		long := time.Now().Add(-48 * time.Hour)
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
	}
	w = open(t, remote.Options{Store: s, Dir: dir})
	write(t, w, beta, numbered(0, 1))
	run(t, w)
	await(t, w, "hangar_remote_dropped_samples_total", "old", 7)
	if got := s.values(alpha); got != nil {
		t.Errorf("the store has %v", got)
	}
}

func segments(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*", "*.segment"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return names
}

// TestSegmentsThatCannotBeReadStay: segments cannot be opened for a while, as without free
// descriptors, and nothing of them is lost.
func TestSegmentsThatCannotBeReadStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		w := open(t, remote.Options{Store: s, Dir: dir})
		stop := run(t, w)
		for i := range 3 {
			write(t, w, alpha, noise(i))
		}
		synctest.Wait()
		stop()
		segments, err := filepath.Glob(filepath.Join(dir, "*", "*.segment"))
		if err != nil || len(segments) != 1 {
			t.Fatalf("segments are %v, %v", segments, err)
		}
		// A directory can be opened but not read as a file.
		for _, step := range []error{os.Rename(segments[0], segments[0]+".aside"), os.Mkdir(segments[0], 0o700)} {
			if step != nil {
				t.Fatal(step)
			}
		}
		s.answer = nil
		stop = run(t, w)
		time.Sleep(time.Hour)
		if got := s.values(alpha); len(got) > 0 {
			t.Errorf("%v came of what cannot be read", got)
		}
		if n := metricstest.Value(t, w, "hangar_remote_damaged_segments_total", ""); n != 0 {
			t.Errorf("%v segments count as damaged", n)
		}
		for _, step := range []error{os.Remove(segments[0]), os.Rename(segments[0]+".aside", segments[0])} {
			if step != nil {
				t.Fatal(step)
			}
		}
		time.Sleep(time.Hour)
		if got := s.values(alpha); !slices.Equal(got, upTo(3)) {
			t.Errorf("%v arrived once it can be read", got)
		}
		stop()
	})
}

// TestDamagedSegments: complete records before the damage arrive, and so do later segments.
func TestDamagedSegments(t *testing.T) {
	full := func(t *testing.T) (dir string, whole []byte) {
		t.Helper()
		dir = t.TempDir()
		down := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		w := open(t, remote.Options{Store: down, Dir: dir})
		stop := run(t, w)
		write(t, w, alpha, numbered(0, 1))
		await(t, w, "hangar_remote_store_away", "", 1)
		write(t, w, alpha, numbered(1, 1))
		write(t, w, alpha, numbered(2, 1))
		stop()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(segments(t, dir)[0])
		if err != nil {
			t.Fatal(err)
		}
		return dir, whole
	}
	_, whole := full(t)
	for cut := 0; cut < len(whole); cut += 5 {
		dir, whole := full(t)
		name := segments(t, dir)[0]
		if cut%2 == 0 { // torn
			whole = whole[:cut]
		} else { // a bit has flipped
			whole[cut] ^= 4
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		s := &store{}
		w := open(t, remote.Options{Store: s, Dir: dir})
		write(t, w, alpha, numbered(3, 1))
		stop := run(t, w)
		await(t, w, "hangar_remote_waiting_tenants", "", 0)
		stop()
		got := s.values(alpha)
		last := len(got) - 1
		if last < 0 || got[last] != 3 || !slices.Equal(got[:last], upTo(last)) || last > 2 {
			t.Errorf("damage at %d: the store has %v", cut, got)
		}
	}
}

// writeUntilKilled is the process of TestKill.
func writeUntilKilled(dir string) {
	down := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
	w := remote.New(remote.Options{Store: down, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err := w.Open(); err != nil {
		panic(err)
	}
	go w.Run(context.Background())
	for i := 0; ; i++ {
		if err := w.Write(context.Background(), alpha, numbered(i, 1)); err != nil {
			panic(err)
		}
		w.Gone() // nothing is in memory any more
		fmt.Println(i)
	}
}

// TestKill: samples that were in the spool at a SIGKILL arrive.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), doomedEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var last int
	for last < 500 {
		if _, err := fmt.Fscan(out, &last); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := fmt.Fscan(out, &last); err != nil {
			break
		}
	}
	_ = cmd.Wait() // killed
	s := &store{}
	w := open(t, remote.Options{Store: s, Dir: dir})
	run(t, w)
	await(t, w, "hangar_remote_waiting_tenants", "", 0)
	if got := s.values(alpha); len(got) < last+1 || !slices.Equal(got, upTo(len(got))) {
		t.Errorf("%d of %d samples have arrived", len(got), last+1)
	}
}

func TestNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		room := false
		w := open(t, remote.Options{
			Store: s, Dir: t.TempDir(), Limits: remote.Limits{TenantPending: 20_000, PendingBytes: 50_000},
			Admit: func(int64) error {
				if room {
					return nil
				}
				return unix.ENOSPC
			},
		})
		stop := run(t, w)
		for i := range 100 {
			write(t, w, alpha, noise(i))
			write(t, w, beta, noise(i))
			write(t, w, gamma, noise(i))
			synctest.Wait()
			if i%10 != 9 {
				continue
			}
			if n := metricstest.Value(t, w, "hangar_remote_pending_bytes", ""); n > 50_000 {
				t.Fatalf("%v bytes in memory", n)
			}
		}
		room = true
		write(t, w, alpha, noise(100))
		stop()
		s.answer = nil
		run(t, w)
		time.Sleep(time.Hour)
		got := s.values(alpha)
		if len(got) < 2 || got[len(got)-1] != 100 || got[0] != 101-len(got) {
			t.Errorf("not the newest samples are left: %v", got)
		}
		lost := 301 - len(got) - len(s.values(beta)) - len(s.values(gamma))
		if n := metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "disk_full"); int(n) != lost {
			t.Errorf("%v samples are counted as dropped, %d are", n, lost)
		}
	})
}

// TestAFullDisk fills a real file system: writes that stop half-way leave complete records intact.
func TestAFullDisk(t *testing.T) {
	dir := disktest.Mount(t, disktest.Ext4, 4<<20)
	s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
	w := open(t, remote.Options{Store: s, Dir: filepath.Join(dir, "spool"), Limits: remote.Limits{TenantPending: 200_000}})
	stop := run(t, w)
	write(t, w, alpha, noiseOf(0, 50_000))
	await(t, w, "hangar_remote_store_away", "", 1)
	n := 1
	for ; metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "disk_full") < 20; n++ {
		write(t, w, alpha, noiseOf(n, 50_000))
	}
	stop()
	s.answer = nil
	stop = run(t, w)
	await(t, w, "hangar_remote_waiting_tenants", "", 0)
	write(t, w, alpha, noiseOf(n, 50_000))
	await(t, w, "hangar_remote_waiting_tenants", "", 0)
	stop()
	got := s.values(alpha)
	if len(got) != n+1-20 || !slices.IsSorted(got) || got[len(got)-1] != n {
		t.Errorf("%d of %d samples have arrived, 20 were dropped", len(got), n+1)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
