package backup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/replica/measure"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// victimEnv turns this program into a node that stores, until it is killed.
const victimEnv = "HANGAR_DB_TEST_BACKUP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestRestoreEachTime writes for some days and restores every state of them.
func TestRestoreEachTime(t *testing.T) {
	for name, open := range map[string]func(*testing.T) Store{
		"directory": func(t *testing.T) Store {
			s, _ := openDirectory(t)
			return s
		},
		"bucket": func(t *testing.T) Store { return startServer(t, "").store(t) },
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			c := newClock()
			s := newSource(t, c)
			b := newBackup(t, s, store, c)
			b.o.Retention = 60 * time.Hour
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			for n := range 90 {
				c.advance(time.Duration(1+rng.IntN(int(100*time.Minute/time.Millisecond))) * time.Millisecond)
				rare := ""
				switch {
				case n == 60:
					rare = "PRAGMA page_size=1024; VACUUM" // the log begins after it
				case n%40 == 20:
					rare = "VACUUM"
				}
				must(t, s.write(rng, rare))
				// Transactions that are trimmed from the log are in the backup once there is a
				// snapshot; a backup that has not read them before loses them. A backup reaches back to
				// its first round.
				if n == 0 || n == 59 || n == 60 || rng.IntN(4) > 0 {
					must(t, b.round(t.Context(), n < 4 || n%30 == 0, rng.IntN(8) == 0))
				}
			}
			must(t, b.round(t.Context(), false, true))
			must(t, b.round(t.Context(), false, true))
			checkTimes(t, s, store, c, b)
		})
	}
}

func checkTimes(t *testing.T, s *source, store Store, c *clock, b *Backup) {
	t.Helper()
	oldest := c.Now().Add(-b.o.Retention).UnixMilli()
	exact := c.Now().Add(-b.o.Exact).UnixMilli()
	newest := s.history[len(s.history)-1]
	if r, err := restored(t, store, 0); err != nil || r.Pos != newest.Pos {
		t.Errorf("newest: %+v, %v, want %s", r, err, newest.Pos)
	}
	for i, state := range s.history {
		if state.Stamp < oldest {
			continue
		}
		if state.Stamp >= exact {
			s.exact(t, store, state.Stamp)
			if i > 0 && s.history[i-1].Stamp >= exact {
				s.exact(t, store, state.Stamp-1)
			}
			continue
		}
		// At least the last state of each hour can be restored, and nothing else than real states.
		r, err := restored(t, store, state.Stamp)
		if err != nil {
			t.Fatalf("at %s: %v", at(state.Stamp), err)
		}
		if !slices.ContainsFunc(s.history, func(o committed) bool { return o.Pos == r.Pos && o.Stamp == r.Time.UnixMilli() }) {
			t.Errorf("at %s: there was no %+v", at(state.Stamp), r)
		}
		hour := at(state.Stamp).Truncate(time.Hour)
		if least := s.at(hour.UnixMilli() - 1); r.Pos.TXID < least.Pos.TXID || r.Pos.TXID > state.Pos.TXID {
			t.Errorf("at %s: %s, want %s to %s", at(state.Stamp), r.Pos, least.Pos, state.Pos)
		}
	}
	if _, err := restored(t, store, s.history[0].Stamp-1); !errors.Is(err, ErrNotFound) {
		t.Errorf("before the first transaction: %v", err)
	}
	from := max(oldest, s.history[0].Stamp) // by some seeds, all of it is younger than the retention
	list, err := Databases(t.Context(), store)
	if err != nil || len(list) != 1 || list[0].Name != "app.db" || list[0].To.UnixMilli() != newest.Stamp || list[0].From.UnixMilli() > from {
		t.Errorf("databases: %+v, %v", list, err)
	}
	forms := map[string]int{}
	for _, name := range names(t, store) {
		forms[filepath.Ext(name)]++
		if db, i, ok := parseItem(name, 0); ok && i.last < oldest-int64((b.o.SnapshotInterval+3*time.Hour)/time.Millisecond) {
			t.Errorf("%s: %s of %s is kept", db, i.form, at(i.last))
		}
	}
	t.Logf("objects %v", forms)
	if forms[".ltx"] == 0 || forms[".snap"] == 0 || forms[".txs"] == 0 || forms[".txs"] > 100 {
		t.Errorf("objects %v", forms)
	}
}

// TestTakeover continues with a node that lacks the newest transactions of the previous one.
func TestTakeover(t *testing.T) {
	for name, each := range map[string]bool{"an object for each transaction": true, "one object": false} {
		t.Run(name, func(t *testing.T) {
			store, _ := openDirectory(t)
			c := newClock()
			rng := rand.New(rand.NewPCG(7, 7))
			old, next := newSource(t, c), newSource(t, c)
			first := newBackup(t, old, store, c)
			for n := range 10 {
				c.advance(time.Second)
				must(t, old.write(rng, ""))
				if each || n == 9 {
					must(t, first.round(t.Context(), n == 0 || n == 9, false))
				}
			}
			// The other node has eight of the ten, and then commits something different.
			r, err := old.db.Log().After(empty)
			must(t, err)
			defer r.Close()
			for range 8 {
				b, err := r.Next()
				must(t, err)
				tx, err := txlog.Decode(b)
				must(t, err)
				must(t, next.db.Apply(t.Context(), tx, b, 1))
			}
			next.history = slices.Clone(old.history[:8])
			next.epoch = 2
			second := newBackup(t, next, store, c)
			for n := range 3 {
				c.advance(time.Second)
				must(t, next.write(rng, ""))
				must(t, second.round(t.Context(), n == 0, true))
			}
			for _, state := range next.history {
				next.exact(t, store, state.Stamp)
			}
			next.exact(t, store, 1<<42)
			// Clients then saw the data of that time's primary.
			if each {
				old.exact(t, store, old.history[9].Stamp)
			}
			// The former primary, which has been reset, may be the primary again.
			old.epoch, old.history = 3, nil
			c.advance(time.Second)
			must(t, old.write(rng, ""))
			must(t, first.round(t.Context(), true, true))
			old.exact(t, store, 1<<42)
		})
	}
}

// TestSnapshotAhead: a node ends after it has stored a snapshot, but not yet the transactions that lead to it. They
// are stored after the next start, and each of them can be restored.
func TestSnapshotAhead(t *testing.T) {
	for _, before := range []int{0, 2} {
		t.Run(fmt.Sprintf("%d transactions stored", before), func(t *testing.T) {
			store, _ := openDirectory(t)
			c := newClock()
			s := newSource(t, c)
			rng := rand.New(rand.NewPCG(11, 11))
			write := func(n int) {
				for range n {
					c.advance(time.Second)
					must(t, s.write(rng, ""))
				}
			}
			first, second, third := newBackup(t, s, store, c), newBackup(t, s, store, c), newBackup(t, s, store, c)
			write(before)
			must(t, first.round(t.Context(), true, false))
			write(3)
			c.advance(first.o.SnapshotInterval)
			must(t, (&term{first, s.epoch}).snapshots(t.Context()))
			if r, err := restored(t, store, 0); err != nil || r.Pos != s.db.Pos() {
				t.Fatalf("the snapshot is %+v, %v, want %s", r, err, s.db.Pos())
			}
			write(1)
			must(t, second.round(t.Context(), true, false))
			for _, state := range s.history {
				s.exact(t, store, state.Stamp)
			}
			// Transactions that no restore needs any more are not stored again, even if the log has them.
			c.advance(second.o.Retention + time.Hour)
			must(t, second.round(t.Context(), false, true))
			stored := names(t, store)
			must(t, third.round(t.Context(), true, false))
			if again := names(t, store); len(stored) != 2 || !slices.Equal(again, stored) {
				t.Errorf("the next start makes %v of %v", again, stored)
			}
		})
	}
}

// TestOtherCluster: the databases of two clusters are not mixed.
func TestOtherCluster(t *testing.T) {
	store, _ := openDirectory(t)
	c := newClock()
	s := newSource(t, c)
	b := newBackup(t, s, store, c)
	must(t, s.write(rand.New(rand.NewPCG(1, 1)), ""))
	must(t, b.round(t.Context(), true, true))
	before := names(t, store)
	s.cluster = "LFSC2"
	if err := b.round(t.Context(), true, true); err == nil || !strings.Contains(err.Error(), "LFSC1") || !strings.Contains(err.Error(), "use another URL") {
		t.Error(err)
	}
	if after := names(t, store); !slices.Equal(before, after) {
		t.Errorf("%v, before %v", after, before)
	}
}

// TestDamage changes each object: no restore makes a file of a damaged one.
func TestDamage(t *testing.T) {
	store, dir := openDirectory(t)
	c := newClock()
	s := newSource(t, c)
	b := newBackup(t, s, store, c)
	b.o.SnapshotInterval, b.o.Exact = 2*time.Hour, time.Hour
	rng := rand.New(rand.NewPCG(3, 3))
	for n := range 12 {
		c.advance(30 * time.Minute)
		must(t, s.write(rng, ""))
		must(t, b.round(t.Context(), n == 0, n == 11))
	}
	damaged := map[form]int{}
	var items []item
	for _, name := range names(t, store) {
		if _, i, ok := parseItem(name, 0); ok {
			items = append(items, i)
		}
	}
	for _, name := range names(t, store) {
		_, i, ok := parseItem(name, 0)
		if !ok {
			continue
		}
		if c := newCatalog(items); i.form != snapshot && c.snapshotAt(i.to) {
			continue // the snapshot is used instead
		}
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		must(t, err)
		for what, content := range map[string][]byte{
			"changed": slices.Concat(whole[:len(whole)/2], []byte{whole[len(whole)/2] ^ 4}, whole[len(whole)/2+1:]),
			"cut":     whole[:len(whole)-1],
			"empty":   {},
		} {
			must(t, os.WriteFile(path, content, 0o600))
			if r, err := restored(t, store, i.last); err == nil {
				t.Errorf("%s: %s gives %+v", name, what, r)
			}
			damaged[i.form]++
		}
		must(t, os.WriteFile(path, whole, 0o600))
		if _, err := restored(t, store, i.last); err != nil {
			t.Error(name, err)
		}
	}
	if damaged[single] == 0 || damaged[merged] == 0 || damaged[snapshot] == 0 {
		t.Errorf("damaged %v", damaged)
	}
	// A restore never writes over a file.
	path := filepath.Join(tempDir(t), "mine")
	must(t, os.WriteFile(path, []byte("mine"), 0o600))
	if _, err := Restore(t.Context(), store, "app.db", time.Time{}, path); !errors.Is(err, os.ErrExist) {
		t.Error(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Error("written over")
	}
}

// TestFullDisk fills the disk of the backup: commits continue, and so does the backup once there is
// room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: a backup on a full disk is not tested")
	}
	dir := tempDir(t)
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	store, err := OpenStore("file://"+filepath.Join(dir, "backup"), Credentials{})
	must(t, err)
	c := newClock()
	s := newSource(t, c)
	b := newBackup(t, s, store, c)
	rng := rand.New(rand.NewPCG(5, 5))
	full := 0
	for n := range 60 {
		c.advance(time.Second)
		must(t, s.write(rng, ""))
		if err := b.round(t.Context(), n == 0, false); errors.Is(err, unix.ENOSPC) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 {
		t.Fatal("the disk was never full")
	}
	stored, err := restored(t, store, 0)
	if err != nil || stored.Pos == s.db.Pos() {
		t.Errorf("on a full disk: %+v, %v", stored, err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=64m"))
	must(t, b.round(t.Context(), false, true))
	for _, state := range s.history {
		s.exact(t, store, state.Stamp)
	}
}

// readOnly is a Store whose objects cannot be removed.
type readOnly struct {
	Store

	refused atomic.Int32
}

func (s *readOnly) Remove(context.Context, string) error {
	s.refused.Add(1)
	return os.ErrPermission
}

// TestRemovalRefused runs a backup in a store that refuses to remove objects: it continues to store snapshots.
func TestRemovalRefused(t *testing.T) {
	objects, _ := openDirectory(t)
	store := &readOnly{Store: objects}
	c := newClock()
	s := newSource(t, c)
	b := newBackup(t, s, store, c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	rng := rand.New(rand.NewPCG(11, 11))
	stored := func() bool { return b.Needs("app.db") == s.db.Pos().TXID }
	must(t, s.write(rng, ""))
	eventually(t, "the transaction is stored", stored)
	for n, size := range []int{1024, 2048, 1024} { // with each, the log begins again
		c.advance(40 * 24 * time.Hour)
		must(t, s.write(rng, fmt.Sprintf("PRAGMA page_size=%d; VACUUM", size)))
		eventually(t, "the snapshot is stored", stored)
		if n > 0 {
			eventually(t, "old objects would be removed", func() bool { return store.refused.Load() > 0 })
		}
	}
	cancel()
	must(t, <-done)
}

// TestTidyDamaged: an object that is damaged does not keep others from being merged.
func TestTidyDamaged(t *testing.T) {
	store, dir := openDirectory(t)
	c := newClock()
	s := newSource(t, c)
	b := newBackup(t, s, store, c)
	rng := rand.New(rand.NewPCG(12, 12))
	for n := range 4 {
		c.advance(2 * time.Hour)
		must(t, s.write(rng, ""))
		must(t, b.round(t.Context(), n == 0, false))
	}
	forms := func() map[form]int {
		count := map[form]int{}
		for _, name := range names(t, store) {
			if _, i, ok := parseItem(name, 0); ok {
				count[i.form]++
			}
		}
		return count
	}
	for _, name := range names(t, store) {
		if _, i, ok := parseItem(name, 0); ok && i.from.TXID == 0 && i.form == single {
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
	}
	c.advance(2 * exact)
	must(t, s.write(rng, ""))
	err := b.round(t.Context(), false, true)
	if got := forms(); err == nil || got[single] != 2 || got[merged] != 3 {
		t.Errorf("%v, %v; want the damaged and the newest object, and 3 merged ones", got, err)
	}
}

// TestBucketAway runs a backup whose server starts late, stops and comes back.
func TestBucketAway(t *testing.T) {
	address, err := freeport.Address(t.Context())
	must(t, err)
	c := newClock()
	s := newSource(t, c)
	server := &s3Server{address: address, dir: tempDir(t)}
	server.needed(t)
	store := server.store(t)
	b := newBackup(t, s, store, c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	rng := rand.New(rand.NewPCG(9, 9))
	behind := func() bool { return s.history == nil || uint64(b.Needs("app.db")) < uint64(s.db.Pos().TXID) }
	failures := func() int {
		b.counts.mu.Lock()
		defer b.counts.mu.Unlock()
		return b.counts.failures
	}
	for range 2 {
		before := failures()
		for range 5 {
			c.advance(time.Second)
			must(t, s.write(rng, ""))
		}
		eventually(t, "an attempt fails", func() bool { return failures() > before })
		server.start(t)
		eventually(t, "all is stored", func() bool { return b.Needs("app.db") == s.db.Pos().TXID })
		if behind() {
			t.Error("the log need not keep more")
		}
		server.stop()
	}
	server.start(t)
	c.advance(time.Second)
	must(t, s.write(rng, ""))
	cancel()
	must(t, <-done)
	// The last commit is stored before the node stops.
	for _, state := range s.history {
		s.exact(t, store, state.Stamp)
	}
	var page measure.Page
	b.Measure(&page)
	var text bytes.Buffer
	_, err = page.WriteTo(&text)
	must(t, err)
	values := map[string]float64{}
	for line := range strings.Lines(text.String()) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			name, _, _ := strings.Cut(series, "{")
			values[name], err = strconv.ParseFloat(value, 64)
			must(t, err)
		}
	}
	if values["hangar_db_backup_errors_total"] == 0 || values["hangar_db_backup_transactions_total"] != float64(len(s.history)) ||
		values["hangar_db_backup_behind_transactions"] != 0 || values["hangar_db_backup_last_success_timestamp_seconds"] == 0 {
		t.Errorf("metrics: %v", values)
	}
}

// eventually waits for a condition that another goroutine makes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("timed out: ", what)
		}
	}
}

// victim is the node that TestKill kills: it prints what it has committed.
func victim(dir string) error {
	s, err := openSource(filepath.Join(dir, "node"), nil)
	if err != nil {
		return err
	}
	store, err := OpenStore("file://"+filepath.Join(dir, "backup"), Credentials{})
	if err != nil {
		return err
	}
	b := New(Options{
		Node: s, Store: store, Dir: filepath.Join(dir, "tmp"), Delay: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		SnapshotInterval: time.Nanosecond, Exact: time.Hour, Retention: time.Hour,
	})
	go b.Run(context.Background())
	seed, err := strconv.ParseUint(os.Getenv(victimEnv+"_SEED"), 10, 64)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for {
		if err := s.write(rng, ""); err != nil {
			return err
		}
		printJSON(s.history[len(s.history)-1])
		// Each has a millisecond of its own.
		<-time.After(2 * time.Millisecond)
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// TestKill repeatedly kills a node while it stores, and restores each state that it has reported.
func TestKill(t *testing.T) {
	dir := tempDir(t)
	exe, err := os.Executable()
	must(t, err)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	var history []committed
	for range 5 {
		cmd := exec.Command(exe)
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		cmd.Env = append(os.Environ(), victimEnv+"="+dir, fmt.Sprintf("%s_SEED=%d", victimEnv, rng.Uint64()))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 2 + rng.IntN(20) {
			if !lines.Scan() {
				break
			}
			var state committed
			must(t, json.Unmarshal(lines.Bytes(), &state))
			history = append(history, state)
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() {
			var state committed
			if json.Unmarshal(lines.Bytes(), &state) == nil {
				history = append(history, state)
			}
		}
		cmd.Wait()
	}
	// The last one stores the rest.
	s, err := openSource(filepath.Join(dir, "node"), nil)
	must(t, err)
	t.Cleanup(func() { must(t, s.close()) })
	store, err := OpenStore("file://"+filepath.Join(dir, "backup"), Credentials{})
	must(t, err)
	b := newBackup(t, s, store, newClock())
	b.o.Now = time.Now
	must(t, b.round(t.Context(), true, false))
	s.history = history
	for _, state := range history {
		s.exact(t, store, state.Stamp)
	}
	snapshots := 0
	for _, name := range names(t, store) {
		if strings.HasSuffix(name, ".snap") {
			snapshots++
		}
	}
	t.Logf("%d states, %d objects, %d of them snapshots", len(history), len(names(t, store)), snapshots)
	if snapshots == 0 {
		t.Error("no snapshot was made")
	}
}

// TestStores checks each kind of store against the interface.
func TestStores(t *testing.T) {
	directory, _ := openDirectory(t)
	for name, s := range map[string]Store{"directory": directory, "bucket": startServer(t, "").store(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if _, err := s.Get(ctx, "db/x/a"); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			must(t, s.List(ctx, "db/", func(string, int64) error { return errors.New("there is something") }))
			for _, name := range []string{"db/x/a", "db/x%2Fy/b", "db/xx/c"} {
				must(t, s.Put(ctx, name, strings.NewReader(name), int64(len(name))))
			}
			if err := s.Put(ctx, "db/x/short", io.MultiReader(strings.NewReader("abc")), 10); err == nil {
				t.Error("stored less than it should")
			}
			got := map[string]int64{}
			must(t, s.List(ctx, "db/x/", func(name string, size int64) error {
				got[name] = size
				return nil
			}))
			if len(got) != 1 || got["db/x/a"] != 6 {
				t.Error(got)
			}
			if all := names(t, s); len(all) != 3 {
				t.Error(all)
			}
			r, err := s.Get(ctx, "db/x%2Fy/b")
			must(t, err)
			b, err := io.ReadAll(r)
			if must(t, errors.Join(err, r.Close())); string(b) != "db/x%2Fy/b" {
				t.Errorf("%q", b)
			}
			must(t, s.Remove(ctx, "db/x/a"))
			must(t, s.Remove(ctx, "db/x/a"))
			if _, err := s.Get(ctx, "db/x/a"); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
			stop := errors.New("stop")
			if err := s.List(ctx, "db/", func(string, int64) error { return stop }); !errors.Is(err, stop) {
				t.Error(err)
			}
		})
	}
	if _, err := OpenStore("s3://b", Credentials{}); err == nil || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Error(err)
	}
}

// TestDirectoryLeftovers: old temporary files of a crash are removed.
func TestDirectoryLeftovers(t *testing.T) {
	s, dir := openDirectory(t)
	old, young := filepath.Join(dir, "a.tmp-1"), filepath.Join(dir, "b.tmp-2")
	must(t, os.WriteFile(old, nil, 0o600))
	must(t, os.WriteFile(young, nil, 0o600))
	must(t, os.Chtimes(old, time.Now(), time.Now().Add(-25*time.Hour)))
	if all := names(t, s); len(all) != 0 {
		t.Error(all)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); !slices.Equal(left, []string{young}) {
		t.Error(left)
	}
}

// s3Server is an S3 server that can be stopped and started again. `make s3-server` builds it.
type s3Server struct {
	address, dir string
	cmd          *exec.Cmd
}

const s3Program = "../../.tools/versitygw-v1.7.0"

func (s *s3Server) needed(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(s3Program); err != nil {
		t.Skip("there is no S3 server: run make s3-server")
	}
}

func startServer(t *testing.T, address string) *s3Server {
	t.Helper()
	if address == "" {
		var err error
		address, err = freeport.Address(t.Context())
		must(t, err)
	}
	s := &s3Server{address: address, dir: tempDir(t)}
	s.needed(t)
	s.start(t)
	return s
}

func (s *s3Server) start(t *testing.T) {
	t.Helper()
	for _, d := range []string{"s3/bucket", "meta"} {
		must(t, os.MkdirAll(filepath.Join(s.dir, d), 0o700))
	}
	s.cmd = exec.Command(s3Program, "--quiet", "--port", s.address, "--access", "tester", "--secret", "topsecret",
		"posix", "--sidecar", filepath.Join(s.dir, "meta"), filepath.Join(s.dir, "s3"))
	var said bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &said, &said
	must(t, s.cmd.Start())
	t.Cleanup(s.stop)
	store := s.store(t)
	eventually(t, "the S3 server answers", func() bool {
		return store.List(t.Context(), "none/", func(string, int64) error { return nil }) == nil
	})
}

func (s *s3Server) stop() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *s3Server) store(t *testing.T) Store {
	t.Helper()
	store, err := OpenStore("s3://bucket/some/where?tls=off&endpoint="+s.address, Credentials{AccessKey: "tester", SecretKey: "topsecret"})
	must(t, err)
	return store
}
