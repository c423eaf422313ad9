package power

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
)

// views are how many are taken of each volume.
const views = 2

// TestViewsAreOfOneMoment freezes a volume while a program writes to it, and copies the view slowly
// while the writes continue. The copy must have all that was acknowledged before, and nothing of
// what came later in the wrong place.
func TestViewsAreOfOneMoment(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: file systems are mounted")
	}
	if testing.Short() {
		t.Skip("it writes much")
	}
	for name, key := range map[string][]byte{"plain": nil, "encrypted": []byte("this key of the test is 32 bytes")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takeViews(t, key)
		})
	}
}

func takeViews(t *testing.T, key []byte) {
	t.Helper()
	s := newServer(t)
	spec := volume.Spec{ID: hangar.NewVolumeID(), Size: volumeMB << 20, Key: key}
	s.format(t, spec)
	device := s.attach(t, spec)
	mounted, err := device.Mount(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, _ := blockstest.Start(t, s.binary, filepath.Join(mounted.Dir, "ledger"))
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() { written <- w.Write(ctx) }()
	for n := range views {
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		acked := w.Acked()
		frozen, err := device.Freeze(t.Context(), "view")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("view %d: of batch %v or later, writers waited %s", n, acked, frozen.Took())
		other := s.copyView(t, spec, frozen)
		t.Logf("copied while batches up to %v were written", w.Acked())
		if err := frozen.Close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		s.verify(t, other, acked)
		if err := s.volumes.Remove(finishtest.Context(t), other.ID); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// copyView makes a volume of a view, with pauses, in which the program writes.
func (s *server) copyView(t *testing.T, spec volume.Spec, frozen *volume.Frozen) volume.Spec {
	t.Helper()
	data, err := frozen.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec.ID = hangar.NewVolumeID()
	if err := s.volumes.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	device := s.attach(t, spec)
	target, err := device.Fill(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, pieces := make([]byte, 1<<20), data.Length()>>20+1
	for _, e := range data {
		for at := e.Offset; at < e.End(); at += int64(len(b)) {
			piece := b[:min(int64(len(b)), e.End()-at)]
			if _, err := io.ReadFull(io.NewSectionReader(frozen, at, int64(len(piece))), piece); err != nil {
				t.Fatal(err)
			}
			if _, err := target.WriteAt(piece, at); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second / time.Duration(pieces))
		}
	}
	if err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if err := device.Close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return spec
}
