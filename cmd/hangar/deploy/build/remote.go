package build

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

// buildScript builds the archive on standard input, with its arguments as options of buildctl, and writes the image in
// the format of docker save. Its Machine does not stop while it runs.
const buildScript = `set -e
dir=$(mktemp -d /tmp/build.XXXXXX)
trap 'rm -rf "$dir"' EXIT
touch ` + busyFile + `
[ ! -e ` + endingDir + ` ] || exit 75
(while kill -0 $$ 2>/dev/null; do touch ` + busyFile + `; sleep 1; done) </dev/null >/dev/null 2>&1 &
tar -x -C "$dir" -f - >&2
n=0
until buildctl debug workers >/dev/null 2>&1; do
	n=$((n+1))
	[ $n -lt 300 ] || { echo 'buildkitd does not answer' >&2; exit 1; }
	sleep 0.2
done
buildctl build --progress plain --frontend dockerfile.v0 --local context="$dir/context" --local dockerfile="$dir/dockerfile" --output type=docker "$@"`

// ErrEnding is returned by In for a Machine that has just stopped. Machine starts it again.
var ErrEnding = errors.New("the Machine that builds images has stopped")

// exitEnding is the exit code of buildScript in a Machine that is about to stop.
const exitEnding = 75

// Directories of the archive on standard input.
const (
	contextDir    = "context"
	dockerfileDir = "dockerfile"
)

// Remote builds an image with In, in the Machine that Machine returns.
func Remote(ctx context.Context, p *client.Client, org hangar.OrgSlug, b Builder, w Spec, out io.Writer) (*ociimage.Image, error) {
	for again := true; ; again = false {
		m, err := Machine(ctx, p, org, b)
		if err != nil {
			return nil, err
		}
		// Only one retry, because a build that stops its Machine would stop it again.
		image, err := In(ctx, p, m.Ref(), w, out)
		if !again || !errors.Is(err, ErrEnding) {
			return image, err
		}
		// Its state may still be started.
		_, err = p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
		if reason := hangar.ReasonOf(err); err != nil && reason != hangar.ReasonWaitTimeout && reason != hangar.ReasonOutOfReach {
			return nil, err
		}
	}
}

// In builds an image in a Machine that Machine has returned, and opens it. It writes the output of BuildKit to out. The
// caller closes the image.
func In(ctx context.Context, machines hangar.MachineExecer, m hangar.MachineRef, w Spec, out io.Writer) (*ociimage.Image, error) {
	if _, err := os.Stat(w.File()); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hangar-build-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	archive, err := os.Create(filepath.Join(dir, "image.tar"))
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	command := []string{"/bin/sh", "-c", buildScript, "build", "--opt", "filename=" + Dockerfile}
	for _, name := range slices.Sorted(maps.Keys(w.Args)) {
		command = append(command, "--opt", "build-arg:"+name+"="+w.Args[name])
	}
	if w.Target != "" {
		command = append(command, "--opt", "target="+w.Target)
	}
	from, to := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := w.send(to)
		sent <- err
		_ = to.CloseWithError(err) // a pipe in memory closes without an error
	}()
	fmt.Fprintf(out, "Building %s in Machine %s of App %s\n", w.File(), m.ID, m.App)
	written := bufio.NewWriter(archive)
	result, err := machines.ExecMachine(ctx, m, hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdin: from, Stdout: written, Stderr: out})
	_ = from.Close() // ends send
	if wrong := <-sent; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) {
		return nil, wrong
	}
	switch {
	case hangar.ReasonOf(err) == hangar.ReasonWrongState:
		return nil, fmt.Errorf("%w: %w", ErrEnding, err)
	case err == nil && result.ExitCode == exitEnding:
		return nil, ErrEnding
	case err != nil:
		return nil, err
	case result.ExitCode != 0:
		return nil, cli.WithHint(fmt.Errorf("the build ended with exit code %d", result.ExitCode), "its output is above")
	}
	if err := errors.Join(written.Flush(), archive.Close()); err != nil {
		return nil, err
	}
	return ociimage.Open(archive.Name(), ociimage.Config{})
}

// send writes the archive for a build: the Dockerfile, and its context without ignored files.
func (w *Spec) send(to io.Writer) error {
	t := tar.NewWriter(to)
	dockerfile, err := filepath.EvalSymlinks(w.File())
	if err != nil {
		return err
	}
	if err := addFile(t, dockerfile, dockerfileDir+"/"+Dockerfile); err != nil {
		return err
	}
	ignored, err := w.ignored()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: contextDir + "/", Mode: 0o755}); err != nil {
		return err
	}
	err = filepath.WalkDir(w.Dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(w.Dir, name)
		if err != nil || below == "." {
			return err
		}
		skip, err := ignored.MatchesOrParentMatches(below)
		if err != nil {
			return err
		}
		switch {
		case skip && entry.IsDir() && !ignored.Exclusions():
			return fs.SkipDir
		case skip:
			return nil
		}
		return addFile(t, name, contextDir+"/"+filepath.ToSlash(below))
	})
	return errors.Join(err, t.Close())
}

// ignored returns the patterns of .dockerignore.
func (w *Spec) ignored() (*patternmatcher.PatternMatcher, error) {
	var patterns []string
	for _, name := range []string{w.File() + ".dockerignore", filepath.Join(w.Dir, ".dockerignore")} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		patterns, err = ignorefile.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		break
	}
	return patternmatcher.New(patterns)
}

// addFile adds a file, a directory or a symbolic link, and ignores anything else.
func addFile(t *tar.Writer, name, as string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if link, err = os.Readlink(name); err != nil {
			return err
		}
	case mode.IsDir():
		as += "/"
	case !mode.IsRegular():
		return nil
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name, header.Uid, header.Gid, header.Uname, header.Gname = as, 0, 0, "", ""
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(t, f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
