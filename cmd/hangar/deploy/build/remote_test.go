package build_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/build"
	"github.com/hangar-platform/hangar/test/platform"
)

// here is a Machine whose commands run on this computer, with a directory in place of its /tmp and /run.
type here struct{ dir string }

func (h here) ExecMachine(ctx context.Context, _ hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	args := slices.Clone(req.Command)
	args[2] = strings.NewReplacer("/tmp/", h.dir+"/", "/run/", h.dir+"/").Replace(args[2])
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + h.dir + ":/usr/bin:/bin", "DIR=" + h.dir}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.Stdin, streams.Stdout, streams.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return hangar.ExecResult{ExitCode: exit.ExitCode()}, nil
	}
	return hangar.ExecResult{}, err
}

// buildctl stands for BuildKit: it records its options and its input, and knows one image.
const buildctl = `#!/bin/sh
[ "$1" = debug ] && exit 0
for a; do case $a in context=*) cd "${a#context=}";; dockerfile=*) d=${a#dockerfile=};; esac; done
echo "$@" | sed "s#=/[^ ]*/#=/#g" >"$DIR/options"
find . | sort >"$DIR/context"
cat "$d/Dockerfile" >"$DIR/dockerfile"
echo building >&2
[ ! -e fail ] || exit 3
cat "$DIR/image.tar"
`

func TestIn(t *testing.T) {
	h := here{t.TempDir()}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Cmd: []string{"/server"}}})
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("web:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(h.dir+"/image.tar", tag, img); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.dir+"/buildctl", []byte(buildctl), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for path, text := range map[string]string{
		"Prod.Dockerfile": "FROM scratch\n", "main.go": "package main", "deep/a": "a", "deep/b": "b", ".git/config": "x", "node_modules/x": "x", "node_modules/kept": "x",
		".dockerignore": ".git\nnode_modules\n!node_modules/kept\n# a comment\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("main.go", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	wish := build.Spec{Dir: dir, Dockerfile: dir + "/Prod.Dockerfile", Target: "prod", Args: map[string]string{"B": "2 3", "A": "1"}, Tag: "web:1"}
	ref := hangar.MachineRef{App: "builder-acme", ID: "3d8d413b29d089"}
	var out bytes.Buffer
	image, err := build.In(t.Context(), h, ref, wish, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	defer image.Close()
	config, err := image.ConfigFile()
	if err != nil || !slices.Equal(config.Config.Cmd, []string{"/server"}) {
		t.Errorf("%+v, %v", config, err)
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(h.dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if got, want := read("context"), ".\n./.dockerignore\n./Prod.Dockerfile\n./deep\n./deep/a\n./deep/b\n./link\n./main.go\n./node_modules\n./node_modules/kept\n"; got != want {
		t.Errorf("the context is\n%swant\n%s", got, want)
	}
	if got := read("dockerfile"); got != "FROM scratch\n" {
		t.Errorf("the Dockerfile is %q", got)
	}
	if got := read("options"); !strings.Contains(got, "--frontend dockerfile.v0") ||
		!strings.HasSuffix(got, "--output type=docker --opt filename=Dockerfile --opt build-arg:A=1 --opt build-arg:B=2 3 --opt target=prod\n") {
		t.Errorf("the options are %s", got)
	}
	if !strings.Contains(out.String(), "building\n") {
		t.Errorf("what BuildKit says is not shown: %q", out.String())
	}
	if left, err := filepath.Glob(h.dir + "/build.*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	if err := os.WriteFile(dir+"/fail", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := build.In(t.Context(), h, ref, wish, &out); err == nil || !strings.Contains(err.Error(), "code 3") {
		t.Errorf("a build that fails: %v", err)
	}
	wish.Dockerfile = dir + "/none"
	if _, err := build.In(t.Context(), h, ref, wish, &out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a Dockerfile that is not there: %v", err)
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	c := p.Client()
	for _, org := range []hangar.OrgSlug{"acme", "other"} {
		if _, err := c.CreateOrg(t.Context(), hangar.OrgCreate{Slug: org}); err != nil {
			t.Fatal(err)
		}
	}
	// The images of acme must not be built by another organization's App of that name.
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: "builder-acme", Org: "other"}); err != nil {
		t.Fatal(err)
	}
	first, err := build.Machine(t.Context(), c, "acme", build.Builder{Image: "buildkit"})
	if err != nil {
		t.Fatal(err)
	}
	app, err := c.App(t.Context(), first.App)
	if err != nil || app.Org.Slug != "acme" {
		t.Errorf("the Machine is one of App %+v, %v", app, err)
	}
	if len(first.Config.Mounts) != 1 || first.Config.Mounts[0].Path != "/var/lib/buildkit" || first.Config.Image != "buildkit" {
		t.Errorf("%+v", first.Config)
	}
	same := func() {
		t.Helper()
		again, err := build.Machine(t.Context(), c, "acme", build.Builder{Image: "another"})
		if err != nil || again.ID != first.ID {
			t.Errorf("%+v, %v", again, err)
		}
		m, err := c.Machine(t.Context(), first.Ref())
		if err != nil || m.State != hangar.MachineStarted {
			t.Errorf("%+v, %v", m, err)
		}
	}
	same()
	if err := c.StopMachine(t.Context(), first.Ref(), hangar.MachineStop{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(t.Context(), first.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}); err != nil {
		t.Fatal(err)
	}
	same()
	// The next build uses its cache.
	if err := c.DestroyMachine(t.Context(), first.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(t.Context(), first.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}}); err != nil {
		t.Fatal(err)
	}
	next, err := build.Machine(t.Context(), c, "acme", build.Builder{Image: "buildkit"})
	if err != nil || next.ID == first.ID || next.Config.Mounts[0].Volume != first.Config.Mounts[0].Volume {
		t.Errorf("%+v, %v", next, err)
	}
}

// TestOneMachine: of many concurrent first builds, one creates the App, the volume and the Machine.
func TestOneMachine(t *testing.T) {
	t.Parallel()
	c := platform.Start(t, platform.Options{}).Client()
	var ids [6]hangar.MachineID
	callers, ctx := errgroup.WithContext(t.Context())
	for i := range ids {
		callers.Go(func() error {
			m, err := build.Machine(ctx, c, hangar.OrgPersonal, build.Builder{Image: "buildkit"})
			if err == nil {
				ids[i] = m.ID
			}
			return err
		})
	}
	if err := callers.Wait(); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(ids[:], func(id hangar.MachineID) bool { return id != ids[0] }) {
		t.Errorf("callers have Machines %v", ids)
	}
	apps, err := c.Apps(t.Context(), hangar.AppFilter{})
	if err != nil || len(apps) != 1 {
		t.Fatalf("Apps are %+v, %v", apps, err)
	}
	machines, err := c.Machines(t.Context(), apps[0].Name, hangar.MachineFilter{})
	if err != nil || len(machines) != 1 {
		t.Errorf("%d Machines build, %v", len(machines), err)
	}
	volumes, err := c.Volumes(t.Context(), apps[0].Name)
	usable := slices.DeleteFunc(volumes, func(v *hangar.Volume) bool { return !v.State.Usable() })
	if err != nil || len(usable) != 1 {
		t.Errorf("volumes are %+v, %v", usable, err)
	}
}

// TestNoImage: the error about an image that cannot be pulled says which flag names another, and no Machine is left.
func TestNoImage(t *testing.T) {
	t.Parallel()
	c := platform.Start(t, platform.Options{}).Client()
	for _, image := range []string{"docker.io/missing/buildkit:1", "down.test/buildkit:1"} {
		_, err := build.Machine(t.Context(), c, hangar.OrgPersonal, build.Builder{Image: image})
		if err == nil || !strings.Contains(cli.HintFor(err), image) || !strings.Contains(cli.HintFor(err), "--builder-image") {
			t.Errorf("%s: %v, next: %q", image, err, cli.HintFor(err))
		}
		machines, err := c.Machines(t.Context(), "builder-personal", hangar.MachineFilter{})
		if machines = slices.DeleteFunc(machines, func(m *hangar.Machine) bool { return m.State == hangar.MachineDestroying }); err != nil || len(machines) > 0 {
			t.Errorf("%s leaves %+v, %v", image, machines, err)
		}
	}
	volumes, err := c.Volumes(t.Context(), "builder-personal")
	if usable := slices.DeleteFunc(volumes, func(v *hangar.Volume) bool { return !v.State.Usable() }); err != nil || len(usable) > 1 {
		t.Errorf("volumes are %+v, %v", usable, err)
	}
	// The next build replaces a builder that cannot be started.
	config := hangar.MachineConfig{Image: "broken", Env: map[string]string{"HANGAR_FAKE_START_ERROR": "command not found"}, Metadata: map[string]string{"hangar_builder": "1"}}
	broken, err := c.CreateMachine(t.Context(), "builder-personal", hangar.MachineCreate{Name: "builder", Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(t.Context(), broken.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineFailed}}); err != nil {
		t.Fatal(err)
	}
	m, err := build.Machine(t.Context(), c, hangar.OrgPersonal, build.Builder{Image: "buildkit"})
	if err != nil || m.ID == broken.ID {
		t.Errorf("%+v, %v", m, err)
	}
}
