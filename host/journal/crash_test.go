package journal_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

const (
	envChild     = "JOURNAL_TEST_CHILD"
	childWriters = 8
)

// writeUntilKilled runs in the child process. Each writer increments its Machine's number, and
// prints it on stdout when the journal has acknowledged it.
func writeUntilKilled(dir string) {
	j, err := journal.Open(filepath.Join(dir, "journal"), journal.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range childWriters {
		wg.Go(func() {
			id := machineID(w)
			n := 0
			if r, err := j.Machine(id); err == nil {
				n, _ = strconv.Atoi(r.Machine.Name)
			}
			for {
				n++
				var number uint64
				r := record(id, strconv.Itoa(n))
				err := j.Commit(func(tx *journal.Tx) (err error) {
					if number, err = tx.NextNumber(); err != nil {
						return err
					}
					return errors.Join(tx.PutMachine(r), tx.AppendEvent(id, hangar.Event{Status: strconv.Itoa(n)}))
				})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Printf("%d %d %d %d\n", w, n, r.Seq, number)
				mu.Unlock()
				if items, err := j.Unpublished(4); err == nil && n%3 == 0 {
					_ = j.Published(items)
				}
			}
		})
	}
	wg.Wait()
}

// TestKill repeatedly kills a process that writes: acknowledged commits exist completely, and no
// number is used twice.
func TestKill(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	dir := t.TempDir()
	acked := make([]int, childWriters)
	numbers := make(map[uint64]bool)
	var maxSeq uint64
	for round := range rounds {
		lines := runChildAndKill(t, dir, 1+rand.IntN(60))
		newest := uint64(0)
		for _, line := range lines {
			var w, n int
			var seq, number uint64
			if _, err := fmt.Sscan(line, &w, &n, &seq, &number); err != nil {
				t.Fatalf("child said %q", line)
			}
			if numbers[number] {
				t.Fatalf("round %d: number %d was given twice", round, number)
			}
			numbers[number] = true
			if seq <= maxSeq {
				t.Fatalf("round %d: seq %d after a restart at %d", round, seq, maxSeq)
			}
			newest = max(newest, seq)
			acked[w] = max(acked[w], n)
		}
		maxSeq = max(maxSeq, newest)
		checkSurvivors(t, dir, acked, round)
	}
}

// runChildAndKill returns the commits that the child printed as acknowledged before it died.
func runChildAndKill(t *testing.T, dir string, after int) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envChild+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break // a line that was cut off was not received
		}
		lines = append(lines, strings.TrimSpace(line))
		if len(lines) == after {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || len(lines) < after {
		t.Fatalf("the child ended by itself after %d lines: %v", len(lines), err)
	}
	return lines
}

func checkSurvivors(t *testing.T, dir string, acked []int, round int) {
	t.Helper()
	j, err := journal.Open(filepath.Join(dir, "journal"), journal.Options{LockTimeout: 5 * time.Second})
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	pending := make(map[hangar.MachineID]uint64)
	for _, p := range unpublished(t, j, 0) {
		pending[p.ID] = p.Seq
	}
	for w, n := range acked {
		r, err := j.Machine(machineID(w))
		if errors.Is(err, journal.ErrNotFound) && n == 0 {
			continue
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if seq, ok := pending[r.Machine.ID]; ok && seq != r.Seq {
			t.Errorf("round %d: machine %d is at seq %d, the outbox names %d", round, w, r.Seq, seq)
		}
		have, _ := strconv.Atoi(r.Machine.Name)
		if have < n {
			t.Errorf("round %d: machine %d is at %d, %d was acknowledged", round, w, have, n)
		}
		events, err := j.Events(machineID(w), 0)
		if err != nil || len(events) == 0 || events[0].Status != r.Machine.Name {
			t.Errorf("round %d: machine %d is at %d, its events say %v, %v", round, w, have, events[:min(1, len(events))], err)
		}
		for i := 1; i < len(events); i++ {
			a, _ := strconv.Atoi(events[i-1].Status)
			b, _ := strconv.Atoi(events[i].Status)
			if a != b+1 {
				t.Fatalf("round %d: machine %d: event %d follows %d", round, w, a, b)
			}
		}
		acked[w] = have // not acknowledged, but there: it must stay
	}
}
