package image_test

import (
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar/host/image"
)

// TestChildThatPulls is not a test of its own: TestKilledPulls runs it as a process
// and kills it.
func TestChildThatPulls(t *testing.T) {
	if flag.NArg() != 2 {
		t.Skip("runs as a child of TestKilledPulls")
	}
	pull(t, open(t, image.Options{Dir: flag.Arg(0)}), flag.Arg(1))
}

// TestKilledPulls kills a process at any moment of a pull. Afterwards an image is
// held whole or not at all, nothing half-made is left, and the next pull succeeds.
func TestKilledPulls(t *testing.T) {
	u := serve(t)
	var layers []v1.Layer
	for _, n := range []string{"a", "b", "c", "d"} {
		layers = append(layers, files(t, map[string]string{n: strings.Repeat(n, 1<<20), "w" + n + "/.wh.x": "", "dir" + n + "/f": n}))
	}
	ref := u.push(t, "app:v1", imageOf(t, layers[0], layers[1], layers[2], layers[3]))
	dir := t.TempDir()
	held := 0
	for round := range 24 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildThatPulls$", "--", dir, ref)
		var requests atomic.Int64
		started := make(chan struct{})
		u.on(func(http.ResponseWriter, *http.Request) bool {
			if requests.Add(1) == int64(round/2) && round%2 == 0 {
				<-started
				_ = cmd.Process.Kill() // it may have ended
			}
			return false
		})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		close(started)
		var kill *time.Timer
		if round%2 == 1 {
			kill = time.AfterFunc(time.Duration(round)*4*time.Millisecond, func() { _ = cmd.Process.Kill() })
		}
		_ = cmd.Wait() // killed or not: what counts is what it left
		if kill != nil {
			kill.Stop()
		}
		u.on(func(http.ResponseWriter, *http.Request) bool { return false })
		s := open(t, image.Options{Dir: dir})
		if _, tmp := left(t, dir); tmp != 0 {
			t.Errorf("round %d: %d half-made things are left", round, tmp)
		}
		list, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 {
			held++
		}
		img := pull(t, s, ref)
		for i, n := range []string{"a", "b", "c", "d"} {
			if raw, err := os.ReadFile(filepath.Join(img.Layers[i], "dir"+n, "f")); err != nil || string(raw) != n {
				t.Errorf("round %d: layer %d: %q, %v", round, i, raw, err)
			}
		}
		if err := s.Remove(t.Context(), img.Ref.Digest); err != nil {
			t.Fatal(err)
		}
		if n, _ := left(t, dir); n != 0 {
			t.Errorf("round %d: %d layers of no image", round, n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 24 pulls were complete when they were killed", held)
}
