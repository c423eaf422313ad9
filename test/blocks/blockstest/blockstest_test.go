package blockstest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKilledWriterLosesNothing kills the program while it writes, and finds what was
// acknowledged; and finds that something is lost where it is.
func TestKilledWriterLosesNothing(t *testing.T) {
	binary, dirs := Build(t), []string{filepath.Join(t.TempDir(), "a"), t.TempDir()}
	var acked []uint64
	for range 4 {
		w, kill := Start(t, binary, dirs...)
		found, err := w.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if lost := found.Lost(acked); lost != "" {
			t.Fatal(lost)
		}
		ended := make(chan error)
		go func() { ended <- w.Write(t.Context()) }()
		for len(w.Acked()) == 0 || w.Acked()[0] < found.Batches[0]+20 {
			time.Sleep(time.Millisecond)
		}
		kill()
		if err := <-ended; err == nil {
			t.Fatal("it was killed and went on writing")
		}
		acked = w.Acked()
	}
	if len(acked) != 2 || acked[0] < 80 {
		t.Fatalf("acknowledged %v", acked)
	}
	if err := os.Truncate(filepath.Join(dirs[1], "slots"), 10); err != nil {
		t.Fatal(err)
	}
	w, _ := Start(t, binary, dirs...)
	found, err := w.State(t.Context())
	if err != nil || found.Lost(acked) == "" {
		t.Fatalf("slots that were cut off was not noticed: %+v, %v", found, err)
	}
	if _, err := w.Run(t.Context(), 1); err == nil {
		t.Fatal("it went on writing")
	}
}

func TestWriteEndsWithItsContext(t *testing.T) {
	w, _ := Start(t, Build(t), t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.Write(ctx) }()
	for len(w.Acked()) == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	acked := w.Acked()
	if now, err := w.Run(t.Context(), 1); err != nil || now.Lost(acked) != "" || now.Batches[0] < acked[0]+1 {
		t.Fatalf("after %v it is at %+v, %v", acked, now, err)
	}
}
