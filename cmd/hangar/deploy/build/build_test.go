package build_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/build"
)

// programs replaces PATH by a directory of programs that record their arguments and know one image.
func programs(t *testing.T, names ...string) (said func() string) {
	t.Helper()
	dir := t.TempDir()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Cmd: []string{"/server"}}})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("web:1")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "archive.tar")
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	notes := filepath.Join(dir, "notes")
	for _, n := range names {
		script := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\necho built\nfor a; do case $a in docker-archive:*) f=${a#docker-archive:}; cp %s ${f%%%%:*};; */image.tar) cp %s $a;; esac; done\n[ -z \"$FAIL\" ]\n", n, notes, archive, archive)
		script = strings.Replace(script, "#!/bin/sh\n", "#!/bin/sh\nPATH=/usr/bin:/bin\n", 1)
		if err := os.WriteFile(filepath.Join(dir, n), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return func() string {
		b, _ := os.ReadFile(notes)
		return string(b)
	}
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, build.Dockerfile), []byte("FROM scratch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wish := build.Spec{Dir: dir, Target: "prod", Args: map[string]string{"B": "2", "A": "1"}, Tag: "web:1"}
	for _, test := range []struct {
		has  []string
		used string
		save string
	}{
		{[]string{"docker", "podman", "buildah"}, "docker", "docker save --output "},
		{[]string{"podman", "buildah"}, "podman", "podman save --format docker-archive --output "},
		{[]string{"buildah"}, "buildah", "buildah push web:1 docker-archive:"},
	} {
		t.Run(test.used, func(t *testing.T) {
			said := programs(t, test.has...)
			var out bytes.Buffer
			image, err := build.Image(t.Context(), wish, &out)
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			defer image.Close()
			config, err := image.ConfigFile()
			if err != nil || !slices.Equal(config.Config.Cmd, []string{"/server"}) {
				t.Errorf("%+v, %v", config, err)
			}
			want := fmt.Sprintf("%s build --file %s/Dockerfile --tag web:1 --build-arg A=1 --build-arg B=2 --target prod %s\n%s", test.used, dir, dir, test.save)
			if got := said(); !strings.HasPrefix(got, want) {
				t.Errorf("called:\n%swant:\n%s", got, want)
			}
			if !strings.Contains(out.String(), "built\n") {
				t.Errorf("what the program says is not shown: %q", out.String())
			}
			t.Setenv("FAIL", "1")
			if _, err := build.Image(t.Context(), wish, &out); err == nil || !strings.Contains(err.Error(), test.used+" build: exit status 1") {
				t.Errorf("a build that fails: %v", err)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		programs(t)
		_, err := build.Image(t.Context(), wish, &bytes.Buffer{})
		if err == nil || !strings.Contains(cli.HintFor(err), "apt-get install buildah") {
			t.Errorf("%v, %q", err, cli.HintFor(err))
		}
	})
}
