package state_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
	"github.com/hangar-platform/hangar/internal/etcdtest"
)

const crashDir = "HANGAR_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

func openEtcd(tb testing.TB, dir string) *state.Etcd {
	tb.Helper()
	s, err := state.OpenEtcd(tb.Context(), state.EtcdConfig{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) {
	statetest.Run(t, func(*testing.T) statetest.Store { return state.NewMemory() })
}

func TestEtcd(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store { return openEtcd(t, t.TempDir()) })
}

// TestExternalEtcd runs the suite over gRPC, as with an external cluster.
func TestExternalEtcd(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store {
		s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{
			Endpoints: []string{etcdtest.Start(t)}, Prefix: "/mine", Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestEtcdKeepsItsDirectoryToItself(t *testing.T) {
	dir := t.TempDir()
	s := openEtcd(t, dir)
	if _, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, state.ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	again := openEtcd(t, dir)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnreachableClusterIsAnError(t *testing.T) {
	s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{
		Endpoints: []string{"http://127.0.0.1:1"}, Timeout: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, getErr := s.Get(t.Context(), "/a")
	_, listErr := s.List(t.Context(), "/", state.ListOptions{})
	_, txnErr := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/a", nil)}})
	for _, err := range []error{getErr, listErr, txnErr} {
		if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, state.ErrNotFound) {
			t.Errorf("%v, want an error that is not the caller's deadline", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(ctx, "/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("of a caller who went away: %v, want canceled", err)
	}
}

// TestEtcdRecoversFromItsQuota fills a member until it refuses writes, deletes its content and
// starts it again: the file has shrunk and accepts writes.
func TestEtcdRecoversFromItsQuota(t *testing.T) {
	dir := t.TempDir()
	open := func() *state.Etcd {
		s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: dir, QuotaBytes: 24 << 20, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	put := func(key string) error {
		_, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, make([]byte, 1<<20))}})
		return err
	}
	full := func(key string) bool {
		t.Helper()
		err := put(key)
		for range 10 { // a disk that stalls is not a full member
			if err == nil || errors.Is(err, rpctypes.ErrNoSpace) {
				return err != nil
			}
			err = put(key)
		}
		t.Fatal(err)
		return false
	}
	n := 0
	for !full(fmt.Sprintf("/k/%02d", n)) {
		if n++; n > 100 {
			t.Fatal("a member with a quota of 24 MiB took 100 MiB")
		}
	}
	if !full("/other") {
		t.Error("a member that is full takes more")
	}
	before := fileSize(t, dir)
	revision := state.Revision(0)
	for i := range n {
		r, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Delete(fmt.Sprintf("/k/%02d", i))}})
		if err != nil {
			t.Fatalf("delete from a full member: %v", err)
		}
		revision = r
	}
	if err := s.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start finds nothing to repair
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
	}
	if err := put("/other"); err != nil {
		t.Errorf("write after the restart: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if size := fileSize(t, dir); size > before-8<<20 {
		t.Errorf("the file has %d bytes, and had %d when it was full", size, before)
	}
}

// TestEtcdForgetsHistory: old revisions are removed while new ones are made, and recent ones are
// kept.
func TestEtcdForgetsHistory(t *testing.T) {
	const history = 200
	s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: t.TempDir(), History: history, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func() state.Revision {
		t.Helper()
		r, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/key", []byte("x"))}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	at := func(r state.Revision) error {
		_, err := s.List(t.Context(), "/", state.ListOptions{Revision: r})
		return err
	}
	first := put()
	for range history - 10 {
		put()
	}
	if err := at(first); err != nil {
		t.Errorf("the first revision is gone too early: %v", err)
	}
	var last state.Revision
	for range history {
		last = put()
	}
	for begun := time.Now(); !errors.Is(at(first), state.ErrCompacted); <-time.After(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("the first of %d revisions is still there: %v", last, at(first))
		}
		last = put()
	}
	if err := at(last - history); err != nil {
		t.Errorf("a young revision: %v", err)
	}
}

func fileSize(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "member", "member", "snap", "db"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestEtcdListensNowhere(t *testing.T) {
	listening := func() (sockets []string) {
		for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			b, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			inodes := ownSockets(t)
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && inodes[f[9]] {
					sockets = append(sockets, f[1])
				}
			}
		}
		return sockets
	}
	s := openEtcd(t, t.TempDir())
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := listening(); len(got) > 0 {
		t.Errorf("the embedded member listens on %v", got)
	}
}

// ownSockets are the inodes of the sockets that this process holds.
func ownSockets(t *testing.T) map[string]bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	inodes := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	return inodes
}

// TestEtcdSurvivesKill repeatedly kills a process that writes, and looks for every acknowledged
// write.
func TestEtcdSurvivesKill(t *testing.T) {
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	dir := t.TempDir()
	acked := map[string]int{}
	for round := range rounds {
		child := exec.CommandContext(t.Context(), os.Args[0])
		child.Env = append(os.Environ(), crashDir+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, stop := bufio.NewScanner(out), 50+rand.IntN(500)
		for n := 0; lines.Scan(); n++ {
			key, value, _ := strings.Cut(lines.Text(), " ")
			if acked[key], err = strconv.Atoi(value); err != nil {
				t.Fatalf("child says %q", lines.Text())
			}
			if n == stop {
				_ = child.Process.Kill() // and read the rest of its output
			}
		}
		_ = child.Wait()

		s := openEtcd(t, dir)
		for key, want := range acked {
			item, err := s.Get(t.Context(), key)
			if err != nil {
				t.Fatalf("round %d: %s: %v", round, key, err)
			}
			// The write after the last acknowledged one may have happened too.
			if got, _ := strconv.Atoi(string(item.Value)); got < want || got > want+1 {
				t.Errorf("round %d: %s is %d, acknowledged was %d", round, key, got, want)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acked) == 0 {
		t.Fatal("the child wrote nothing")
	}
}

// writeUntilKilled is the child of TestEtcdSurvivesKill: several writers that print their
// acknowledged writes.
func writeUntilKilled(dir string) {
	ctx := context.Background()
	s, err := state.OpenEtcd(ctx, state.EtcdConfig{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			key := fmt.Sprintf("/writer/%d", w)
			n := 0
			if item, err := s.Get(ctx, key); err == nil {
				n, _ = strconv.Atoi(string(item.Value))
			}
			for {
				n++
				if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Put(key, strconv.AppendInt(nil, int64(n), 10))}}); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				_, _ = io.WriteString(os.Stdout, fmt.Sprintf("%s %d\n", key, n)) // one write(2): lines do not mix
			}
		})
	}
	wg.Wait()
}

func BenchmarkEtcd(b *testing.B) {
	s := openEtcd(b, b.TempDir())
	defer func() { _ = s.Close() }()
	value := make([]byte, 2048)
	b.Run("Put", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Txn(b.Context(), state.Txn{Then: []state.Op{state.Put("/k", value)}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Get", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Get(b.Context(), "/k"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
