package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func open(t *testing.T, dir string) *ledger {
	t.Helper()
	l, err := openLedger(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func do(t *testing.T, l *ledger, batches int) {
	t.Helper()
	for range batches {
		if err := l.next(); err != nil {
			t.Fatal(err)
		}
	}
}

func right(t *testing.T, l *ledger) {
	t.Helper()
	if _, problems := l.check(); len(problems) > 0 {
		t.Fatalf("batch %d: %s", l.batch, strings.Join(problems, "\n"))
	}
}

func TestWhatWasWrittenIsThere(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	right(t, l)
	for range 3 * cutEvery {
		do(t, l, 1)
		right(t, l)
		again := open(t, dir)
		if again.batch != l.batch {
			t.Fatalf("opened again it is at %d, not %d", again.batch, l.batch)
		}
		right(t, again)
	}
}

// TestDamageIsFound damages one byte, or the length, of anything, at any batch.
func TestDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	for _, batches := range []int{1, 6, 24, 3, 30} {
		do(t, l, batches)
		names := []string{currentFile, slotsFile, logFile, filepath.Join(filesDir, strconv.FormatUint(l.batch, 10))}
		if l.batch >= shortEvery {
			names = append(names, shortFile)
		}
		for _, name := range names {
			whole, err := os.ReadFile(l.path(name))
			if err != nil {
				t.Fatal(err)
			}
			at := len(whole) - 1
			if name == slotsFile {
				at = int(l.plan(l.batch).slots[0]) * slotBytes
			}
			flipped := append([]byte(nil), whole...)
			flipped[at] ^= 1
			for what, content := range map[string][]byte{"flipped": flipped, "shorter": whole[:at], "empty": nil} {
				if err := os.WriteFile(l.path(name), content, 0o600); err != nil {
					t.Fatal(err)
				}
				if _, problems := l.check(); len(problems) == 0 {
					t.Errorf("batch %d: %s is %s, and nothing was found", l.batch, name, what)
				}
			}
			if err := os.WriteFile(l.path(name), whole, 0o600); err != nil {
				t.Fatal(err)
			}
			right(t, l)
		}
	}
}

// TestTornBatchIsDoneAgain: of a batch that was interrupted anything may be there, and
// nothing else may differ.
func TestTornBatchIsDoneAgain(t *testing.T) {
	for _, complete := range []int{0, 3, cutEvery - 2, cutEvery - 1, cutEvery} {
		for _, torn := range []string{"nothing", "log", "slot"} {
			t.Run(fmt.Sprintf("%s after %d", torn, complete), func(t *testing.T) { interrupt(t, complete, torn) })
		}
	}
}

func interrupt(t *testing.T, complete int, torn string) {
	t.Helper()
	l := open(t, t.TempDir())
	do(t, l, complete)
	before, err := os.ReadFile(l.path(currentFile))
	if err != nil && complete > 0 {
		t.Fatal(err)
	}
	do(t, l, 1)
	if complete == 0 {
		err = os.Remove(l.path(currentFile))
	} else {
		err = os.WriteFile(l.path(currentFile), before, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	switch torn {
	case "log":
		err = os.Truncate(l.path(logFile), l.logLength(l.batch)-1)
	case "slot":
		err = write(l.path(slotsFile), []byte("torn"), int64(l.plan(l.batch).slots[0])*slotBytes+100, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, l.dir)
	if again.batch != uint64(complete) {
		t.Fatalf("it is at %d, not %d", again.batch, complete)
	}
	right(t, again)
	do(t, again, 1)
	right(t, again)
	// But a slot that the next batch does not write must be as it was.
	next := again.plan(again.batch + 1).slots
	for b := again.batch; b > 0; b-- {
		s := again.plan(b).slots[0]
		if slices.Contains(next, s) {
			continue
		}
		if err := write(again.path(slotsFile), []byte("torn"), int64(s)*slotBytes+100, false); err != nil {
			t.Fatal(err)
		}
		if _, problems := open(t, l.dir).check(); len(problems) == 0 {
			t.Fatalf("slot %d is torn, and nothing was found", s)
		}
		return
	}
}
