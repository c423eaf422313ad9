// Package build makes images from a Dockerfile, with a program of this computer or in a Machine of the platform.
//
// The program is docker, podman or buildah, the first of these on PATH. The Machine runs BuildKit. An organization has
// one such Machine, which stops when nothing is built, and keeps its cache on a volume. Both return the image as an
// archive, so that their configuration needs no registry, token or certificate.
package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

// Dockerfile is the default name of the Dockerfile.
const Dockerfile = "Dockerfile"

// Spec describes what to build.
type Spec struct {
	Dir        string // the context: files that the Dockerfile may copy
	Dockerfile string // path; empty: the one in Dir
	Target     string // stage; empty: the last
	Args       map[string]string
	Tag        string // name and tag of the image on this computer
}

// File returns the path of the Dockerfile.
func (w *Spec) File() string {
	if w.Dockerfile == "" {
		return filepath.Join(w.Dir, Dockerfile)
	}
	return w.Dockerfile
}

// builder is a program that builds images.
type builder struct {
	name string
	path string
}

// save has the arguments with which each program writes an image to an archive in the format of docker save.
var save = map[string]func(tag, archive string) []string{ //nolint:gochecknoglobals // a constant
	"docker": func(tag, archive string) []string { return []string{"save", "--output", archive, tag} },
	"podman": func(tag, archive string) []string {
		return []string{"save", "--format", "docker-archive", "--output", archive, tag}
	},
	"buildah": func(tag, archive string) []string {
		return []string{"push", tag, "docker-archive:" + archive + ":" + tag}
	},
}

// Here reports whether this computer has a program that builds images.
func Here() bool {
	_, err := find()
	return err == nil
}

// find returns the first program on PATH that builds images.
func find() (builder, error) {
	for _, name := range []string{"docker", "podman", "buildah"} {
		if path, err := exec.LookPath(name); err == nil {
			return builder{name, path}, nil
		}
	}
	return builder{}, cli.WithHint(errors.New("there is a Dockerfile, and no program on PATH that builds images: neither docker nor podman nor buildah"),
		"install one, for example with `apt-get install buildah`; build it in a Machine, without --local-only; or build it elsewhere, and name the image with --image")
}

// Image builds an image and opens it. It writes the program's output to out. The caller closes the image.
func Image(ctx context.Context, w Spec, out io.Writer) (*ociimage.Image, error) {
	if _, err := os.Stat(w.File()); err != nil {
		return nil, err
	}
	b, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hangar-build-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	args := []string{"build", "--file", w.File(), "--tag", w.Tag}
	for _, name := range slices.Sorted(maps.Keys(w.Args)) {
		args = append(args, "--build-arg", name+"="+w.Args[name])
	}
	if w.Target != "" {
		args = append(args, "--target", w.Target)
	}
	fmt.Fprintf(out, "Building %s with %s\n", w.File(), b.name)
	if err := b.run(ctx, out, append(args, w.Dir)...); err != nil {
		return nil, err
	}
	archive := filepath.Join(dir, "image.tar")
	if err := b.run(ctx, out, save[b.name](w.Tag, archive)...); err != nil {
		return nil, err
	}
	return ociimage.Open(archive, ociimage.Config{})
}

// run runs the program.
func (b builder) run(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return cli.WithHint(fmt.Errorf("%s %s: %w", b.name, args[0], err), "its output is above; try it by itself: "+b.name+" build .")
	}
	return nil
}
