package splice_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"
)

// Bytes in flight on a failed connection never reach another one.
func TestPipesAreEmpty(t *testing.T) {
	broken := errors.New("broken")
	for range 20 {
		ctx, fail := context.WithCancelCause(t.Context())
		left, right, ended := joined(ctx, t)
		written := make(chan struct{})
		go func() {
			defer close(written)
			old := bytes.Repeat([]byte("old"), 1<<20)
			for {
				if _, err := left.Write(old); err != nil {
					return
				}
			}
		}()
		if _, err := io.ReadFull(right, make([]byte, 1<<20)); err != nil { // then there is no reader, so that pipes are full
			t.Fatal(err)
		}
		fail(broken)
		if err := <-ended; !errors.Is(err, broken) {
			t.Fatal(err)
		}
		<-written

		left, right, ended = joined(t.Context(), t)
		sent := make([]byte, 3<<20)
		_, _ = rand.Read(sent)
		go func() {
			_, _ = left.Write(sent)
			_ = left.CloseWrite()
			_, _ = io.Copy(io.Discard, left)
		}()
		got, err := io.ReadAll(right)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("got %d bytes that are others than the %d that were sent, %v", len(got), len(sent), err)
		}
		if err := right.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// A join without data to pass on has no pipe.
func TestIdleJoinsHaveNoPipes(t *testing.T) {
	before := files(t)
	const joins = 50
	for range joins {
		left, right, _ := joined(t.Context(), t)
		for range 3 {
			if _, err := left.Write([]byte("text")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(right, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var beside int
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		runtime.GC() // which closes what the pool has forgotten
		if beside = files(t) - before - 4*joins; beside <= joins {
			return
		}
	}
	t.Errorf("%d files beside the connections", beside)
}

func files(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(names)
}
