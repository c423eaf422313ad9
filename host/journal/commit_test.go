package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// hold keeps the committer busy until release is called, so that commits gather.
func hold(tb testing.TB, j *journal.Journal) (release func()) {
	tb.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- j.Commit(func(*journal.Tx) error {
			close(entered)
			<-leave
			return nil
		})
	}()
	<-entered
	return func() {
		close(leave)
		if err := <-done; err != nil {
			tb.Error(err)
		}
	}
}

// queued waits until n calls wait for the committer.
func queued(j *journal.Journal, n int) {
	for journal.Queued(j) < n {
		<-journal.Tick()
	}
}

func TestConcurrentCommitsShareOneTransaction(t *testing.T) {
	j := open(t, journal.Options{})
	const writers = 64
	release := hold(t, j)
	before := j.Stats()
	var wg sync.WaitGroup
	seqs := make([]uint64, writers)
	for i := range writers {
		wg.Go(func() {
			r := record(machineID(i), "m")
			put(t, j, r)
			seqs[i] = r.Seq
		})
	}
	queued(j, writers)
	release()
	wg.Wait()
	after := j.Stats()
	if n := after.Transactions - before.Transactions; n != 1 {
		t.Errorf("%d transactions for %d waiting writers, want 1", n, writers)
	}
	if n := after.Commits - before.Commits; n != writers {
		t.Errorf("Commits grew by %d, want %d", n, writers)
	}
	if got := all(t, j); len(got) != writers {
		t.Errorf("%d records", len(got))
	}
	distinct := make(map[uint64]bool)
	for _, s := range seqs {
		distinct[s] = true
	}
	if len(distinct) != writers {
		t.Errorf("%d numbers for %d commits", len(distinct), writers)
	}
}

func TestFailureIsTheCallersOwn(t *testing.T) {
	j := open(t, journal.Options{})
	boom := errors.New("boom")
	const n = 40
	release := hold(t, j)
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = j.Commit(func(tx *journal.Tx) error {
				switch i % 4 {
				case 1:
					return boom // before it wrote
				case 2:
					return errors.Join(tx.PutMachine(record(machineID(i), "m")), boom) // after
				default:
					return tx.PutMachine(record(machineID(i), "m"))
				}
			})
		})
	}
	queued(j, n)
	release()
	wg.Wait()
	got := all(t, j)
	for i, err := range errs {
		good := i%4 == 0 || i%4 == 3
		if good != (err == nil) || !good && !errors.Is(err, boom) {
			t.Errorf("call %d: %v", i, err)
		}
		if _, ok := got[machineID(i)]; ok != good {
			t.Errorf("call %d: stored: %t", i, ok)
		}
	}
}

func TestPanicReachesTheCaller(t *testing.T) {
	j := open(t, journal.Options{})
	release := hold(t, j)
	var wg sync.WaitGroup
	wg.Go(func() { put(t, j, record(machineID(1), "m")) })
	wg.Go(func() {
		defer func() {
			if p := recover(); p != "ouch" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = j.Commit(func(tx *journal.Tx) error {
			if err := tx.PutMachine(record(machineID(2), "m")); err != nil {
				t.Error(err)
			}
			panic("ouch")
		})
		t.Error("Commit returned")
	})
	queued(j, 2)
	release()
	wg.Wait()
	if got := all(t, j); len(got) != 1 || got[machineID(1)] == nil {
		t.Errorf("Machines = %v", got)
	}
}

func TestReadingCommitCostsNoTransaction(t *testing.T) {
	j := open(t, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	before := j.Stats()
	commit(t, j, func(tx *journal.Tx) error {
		_, err := tx.Machine(machineID(1))
		return err
	})
	if after := j.Stats(); after != before {
		t.Errorf("Stats %+v, before %+v", after, before)
	}
}

// TestCommitsAreMeasured: each commit that wrote is counted once, and no others are.
func TestCommitsAreMeasured(t *testing.T) {
	j := open(t, journal.Options{})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(j)
	measured := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			all[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		return all
	}
	before := measured()
	for i := range 3 {
		put(t, j, record(machineID(i), "m"))
	}
	commit(t, j, func(tx *journal.Tx) error {
		_, err := tx.Machine(machineID(1))
		return err
	})
	refused := errors.New("refused")
	if err := j.Commit(func(*journal.Tx) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("Commit = %v", err)
	}
	release := hold(t, j)
	var wg sync.WaitGroup
	wg.Go(func() { put(t, j, record(machineID(9), "m")) })
	queued(j, 1)
	if n := measured()["hangar_journal_waiting_commits"]; n != 1 {
		t.Errorf("%v commits wait", n)
	}
	release()
	wg.Wait()
	after := measured()
	for name, grown := range map[string]float64{
		"hangar_journal_commit_duration_seconds": 4, "hangar_journal_transactions_total": 4,
		"hangar_journal_failures_total": 0, "hangar_journal_waiting_commits": 0, "hangar_journal_broken": 0,
	} {
		if got := after[name] - before[name]; got != grown {
			t.Errorf("%s has grown by %v, want %v", name, got, grown)
		}
	}
}

func TestCloseFinishesWhatWaits(t *testing.T) {
	j := open(t, journal.Options{})
	const n = 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := 0
	release := hold(t, j)
	for i := range n {
		wg.Go(func() {
			err := j.Commit(func(tx *journal.Tx) error { return tx.PutMachine(record(machineID(i), "m")) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				acked++
			case !errors.Is(err, journal.ErrClosed):
				t.Error(err)
			}
		})
	}
	queued(j, n)
	wg.Go(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	release()
	wg.Wait()
	if acked != n {
		t.Errorf("%d of %d that waited were committed", acked, n)
	}
}

// TestMixedLoad writes, reads, fails and publishes concurrently, for the race detector.
func TestMixedLoad(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const writers, rounds = 16, 40
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for {
			select {
			case <-j.Changed():
			case <-ctx.Done():
				return
			}
			if err := j.Published(unpublished(t, j, 10)); err != nil {
				t.Error(err)
			}
		}
	})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			id := machineID(w)
			for n := range rounds {
				fail := rand.IntN(4) == 0
				err := j.Commit(func(tx *journal.Tx) error {
					if err := errors.Join(tx.PutMachine(record(id, fmt.Sprint(n))), tx.AppendEvent(id, hangar.Event{Status: fmt.Sprint(n)})); err != nil {
						return err
					}
					if fail {
						return boom
					}
					return nil
				})
				if fail != errors.Is(err, boom) {
					t.Errorf("Commit: %v, fail %t", err, fail)
				}
				if _, err := j.Events(id, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	cancel()
	publishing.Wait()
}

func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j := open(b, journal.Options{})
			work := make(chan int)
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for i := range work {
						id := machineID(i % 1000)
						err := j.Commit(func(tx *journal.Tx) error {
							return errors.Join(tx.PutMachine(record(id, "m")), tx.AppendEvent(id, hangar.Event{ID: "e", Status: "started"}))
						})
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ResetTimer()
			before := j.Stats().Transactions
			for i := range b.N {
				work <- i
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(j.Stats().Transactions-before), "commits/flush")
		})
	}
}

func BenchmarkMachines(b *testing.B) {
	j := open(b, journal.Options{NoSync: true})
	commit(b, j, func(tx *journal.Tx) error {
		for i := range 1000 {
			if err := tx.PutMachine(record(machineID(i), "m")); err != nil {
				return err
			}
		}
		return nil
	})
	b.ReportAllocs()
	for b.Loop() {
		if len(all(b, j)) != 1000 {
			b.Fatal("records are missing")
		}
	}
}

func TestFullDiskHarmsNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "before"))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	journal.LimitSize(j, int(info.Size()))
	big := strings.Repeat("x", 1<<20)
	var failure error
	for i := range 100 {
		if failure = j.Commit(func(tx *journal.Tx) error {
			return tx.SetSetting(fmt.Sprint(i), []byte(big))
		}); failure != nil {
			break
		}
	}
	if failure == nil || errors.Is(failure, journal.ErrBroken) {
		t.Fatalf("writing more than the disk holds: %v", failure)
	}
	journal.LimitSize(j, 0)
	put(t, j, record(machineID(2), "after"))
	if got := all(t, j); len(got) != 2 {
		t.Errorf("Machines = %v", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if got := all(t, reopen(t, path, journal.Options{})); len(got) != 2 {
		t.Errorf("after reopening: %v", got)
	}
}

func TestBrokenJournalRefusesUntilReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	cause := errors.New("input/output error")
	select {
	case <-j.Broken():
		t.Error("broken before anything went wrong")
	default:
	}
	for _, err := range []error{
		journal.Break(t.Context(), j, cause),
		j.Commit(func(*journal.Tx) error { t.Error("fn ran"); return nil }),
	} {
		if !errors.Is(err, journal.ErrBroken) || !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
	}
	select {
	case <-j.Broken():
	default:
		t.Error("there is no notice that the journal is broken")
	}
	if got := all(t, j); len(got) != 1 {
		t.Errorf("it cannot be read any more: %v", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, reopen(t, path, journal.Options{}), record(machineID(1), "again"))
}
