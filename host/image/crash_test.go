package image_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// TestChildThatPulls is not a test of its own: TestKilledPulls runs it as a process
// and kills it.
func TestChildThatPulls(t *testing.T) {
	if flag.NArg() != 2 {
		t.Skip("runs as a child of TestKilledPulls")
	}
	pull(t, open(t, image.Options{Dir: flag.Arg(0)}), flag.Arg(1))
}

// TestKilledPulls kills a process at any moment of a pull. Afterwards the image is either complete
// or absent, no partial files are left, and the next pull succeeds.
func TestKilledPulls(t *testing.T) {
	racetest.Skip(t)
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
		_ = cmd.Wait() // killed or not, only the remaining files matter
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

// TestChildThatRemovesAnOrganization is not a test of its own: TestKilledRemovals runs it as a
// process and kills it.
func TestChildThatRemovesAnOrganization(t *testing.T) {
	if flag.NArg() != 1 {
		t.Skip("runs as a child of TestKilledRemovals")
	}
	s := open(t, image.Options{Dir: flag.Arg(0)})
	fmt.Println(childBegins)
	if err := s.RemoveOrg(t.Context(), victim.Org); err != nil {
		t.Fatal(err)
	}
}

// childBegins is printed by a child before the work during which it may be killed.
const childBegins = "begins"

// TestKilledRemovals kills a process at any moment of the removal of an organization. Afterwards
// the next organization with its slug can read none of its content. After the removal is repeated,
// as the next daemon does, the files are the same as after an uninterrupted removal, and other
// organizations have lost nothing.
func TestKilledRemovals(t *testing.T) {
	racetest.Skip(t)
	const registryName = "registry.hangar.localhost"
	made := t.TempDir()
	opts := func(dir string) image.Options { return image.Options{Dir: dir, Local: []string{registryName}} }
	s := open(t, opts(made))
	server := httptest.NewServer(s.Registry(access{"acme": victim.Org, "evil": attacker.Org}))
	defer server.Close()
	at := strings.TrimPrefix(server.URL, "http://")
	shared := files(t, map[string]string{"base": strings.Repeat("of both ", 1<<12)})
	mine := imageOf(t, shared, files(t, map[string]string{"mine": "1"}))
	push(t, at+"/evil/app:v1", mine, token)
	if _, err := s.Pull(t.Context(), attacker, registryName+"/evil/app:v1", nil); err != nil {
		t.Fatal(err)
	}
	var refs []string
	for i := range 12 {
		name := fmt.Sprintf("/acme/app%d:v1", i)
		push(t, at+name, imageOf(t, shared, files(t, map[string]string{"secret": fmt.Sprint(i)})), token)
		if refs = append(refs, registryName+name); i%2 == 0 {
			if _, err := s.Pull(t.Context(), victim, refs[i], nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if status := post(t, server.URL+"/v2/acme/unfinished/blobs/uploads/"); status != http.StatusAccepted {
		t.Fatalf("an upload answers %d", status)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	var want []string // files after an uninterrupted removal
	var took time.Duration
	cut := 0
	for round := range 16 {
		dir := filepath.Join(t.TempDir(), "images")
		if err := os.CopyFS(dir, os.DirFS(made)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildThatRemovesAnOrganization$", "--", dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out := bufio.NewReader(stdout)
		if line, err := out.ReadString('\n'); err != nil || strings.TrimSpace(line) != childBegins {
			t.Fatalf("the child says %q, %v", line, err)
		}
		var kill *time.Timer
		began := time.Now()
		if round > 0 {
			kill = time.AfterFunc(took*time.Duration(round)/16, func() { _ = cmd.Process.Kill() })
		}
		_, _ = io.Copy(io.Discard, out)
		err = cmd.Wait()
		switch {
		case round == 0 && err != nil:
			t.Fatal(err)
		case round == 0:
			took = time.Since(began)
		case err != nil:
			cut++
			kill.Stop()
		}
		s := open(t, opts(dir))
		successor := image.Puller{Org: "orgsuccessor", Slug: victim.Slug}
		gone := func(who image.Puller) {
			t.Helper()
			for _, ref := range refs {
				_, err := s.Pull(t.Context(), who, ref, nil)
				wantError(t, err, hangar.CodeInvalid, hangar.ReasonImageNotFound, "not found")
			}
		}
		gone(successor)
		if err := s.RemoveOrg(t.Context(), victim.Org); err != nil {
			t.Fatal(err)
		}
		gone(successor)
		gone(victim)
		if usage, err := s.Usage(t.Context(), victim.Org); err != nil || usage != (hangar.ImageUsage{}) {
			t.Errorf("round %d: it still takes %+v, %v", round, usage, err)
		}
		got := filesBelow(t, dir)
		if round == 0 {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("round %d: there is\n%s\nwant\n%s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if img, err := s.Pull(t.Context(), attacker, registryName+"/evil/app:v1", nil); err != nil || img.Ref.Digest != digest(t, mine) {
			t.Errorf("round %d: another organization pulls %v, %v", round, img, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 15 removals were killed before they had ended", cut)
}

// filesBelow lists the files below a directory.
func filesBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
