package archive_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// Environment of a child process: the URL of an archive, and the directory for its cache.
const (
	envChild = "ARCHIVE_TEST_CHILD"
	envCache = "ARCHIVE_TEST_CACHE"
)

// child writes, removes and collects until it is killed, and reports each step. Its volumes have
// few different contents, so that snapshots share much.
func child(url string) {
	ctx := context.Background()
	a := archive.New(archive.Options{URL: url, Cache: os.Getenv(envCache), Password: password})
	if err := a.Open(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	volume := hangar.NewVolumeID()
	d := &device{b: make([]byte, 3*mib+100)}
	data := extent.Of(extent.Extent{Length: d.Size()})
	kept, err := a.Entries(ctx, "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var base *archive.Base
	fmt.Println("ready")
	for {
		at := rand.IntN(3) * mib
		fill(d.b[at:at+mib], rand.Uint64N(20))
		if base != nil {
			base.Changed = extent.Of(extent.Extent{Offset: int64(at), Length: mib})
		}
		e, err := a.Write(ctx, newMeta(volume), d, data, base, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if e.Digest != plainDigest(d.b) {
			fmt.Fprintln(os.Stderr, "wrong digest")
			os.Exit(1)
		}
		fmt.Println("wrote", e.ID, e.Digest)
		kept = append(kept, e)
		if base = nil; rand.IntN(3) > 0 {
			base = &archive.Base{ID: e.ID}
		}
		for len(kept) > 4 {
			gone := rand.IntN(len(kept))
			fmt.Println("removing", kept[gone].ID)
			if err := a.Remove(ctx, kept[gone].ID); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println("removed", kept[gone].ID)
			kept = slices.Delete(kept, gone, gone+1)
		}
		if rand.IntN(3) == 0 {
			if _, err := a.Collect(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

// TestKill repeatedly kills a process that writes, removes and collects. Everything that it has
// reported exists, bit for bit; nothing that it has removed exists, and no part of an unfinished
// write. In the end all room is freed. ARCHIVE_KILL_ROUNDS sets how often.
func TestKill(t *testing.T) {
	racetest.Skip(t)
	rounds := 15
	if testing.Short() {
		rounds = 5
	}
	if n, err := strconv.Atoi(os.Getenv("ARCHIVE_KILL_ROUNDS")); err == nil {
		rounds = n
	}
	p := inDirectory(t)
	known := map[hangar.SnapshotID]string{} // digests
	for round := range rounds {
		unsure, extra := runAndKill(t, p, known)
		a := archive.New(p.options())
		if err := a.Open(t.Context()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for id, digest := range known {
			to := &device{b: make([]byte, 3*mib+100)}
			_, err := a.Read(t.Context(), id, to, nil)
			switch {
			case errors.Is(err, archive.ErrNotFound) && id == unsure:
				delete(known, id)
			case err != nil:
				t.Fatalf("round %d: %v", round, err)
			case plainDigest(to.b) != digest:
				t.Fatalf("round %d: %s came back otherwise", round, id)
			}
		}
		entries, err := a.Entries(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, ok := known[e.ID]; ok {
				continue
			}
			// The child died before it could report it.
			if extra--; extra < 0 {
				t.Fatalf("round %d: there is %s, which no child wrote", round, e.ID)
			}
			if got := restore(t, a, e); plainDigest(got) != e.Digest {
				t.Fatalf("round %d: %s came back otherwise", round, e.ID)
			}
			known[e.ID] = e.Digest
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a := p.open(t)
	if err := a.Remove(t.Context(), slices.Collect(maps.Keys(known))...); err != nil {
		t.Fatal(err)
	}
	shrinks(t, p, a, 2*mib)
}

// runAndKill runs a child for a random time. It keeps known up to date, and returns what the child
// was removing when it died, and how many unreported snapshots it may have written.
func runAndKill(t *testing.T, p place, known map[hangar.SnapshotID]string) (unsure hangar.SnapshotID, extra int) {
	t.Helper()
	opts := p.options()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), envChild+"="+p.url, envCache+"="+opts.Cache)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for in := bufio.NewReader(out); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			break // a truncated line was not received
		}
		switch words := strings.Fields(line); words[0] {
		case "ready":
			killed = true
			timer := time.AfterFunc(time.Duration(rand.Int64N(int64(700*time.Millisecond))), func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
		case "wrote":
			known[hangar.SnapshotID(words[1])] = words[2]
		case "removing":
			unsure = hangar.SnapshotID(words[1])
		case "removed":
			delete(known, hangar.SnapshotID(words[1]))
			unsure = ""
		}
	}
	if err := cmd.Wait(); err == nil || !killed {
		t.Fatalf("the child ended by itself: %v", err)
	}
	if status := cmd.ProcessState.String(); !strings.Contains(status, "killed") {
		t.Fatalf("the child: %s", status)
	}
	return unsure, 1
}
