package files_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/machine/files"
)

// machine is a Machine in which a program serves SFTP.
type machine func(ctx context.Context, conn io.ReadWriteCloser) error

type standard struct {
	io.Reader
	io.Writer
}

func (standard) Close() error { return nil }

func (m machine) ExecMachine(ctx context.Context, _ hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	if !slices.Equal(req.Command, []string{hangar.SSHProgram, "sftp"}) {
		return hangar.ExecResult{}, errors.New("another program")
	}
	if err := m(ctx, standard{streams.Stdin, streams.Stdout}); err != nil && !errors.Is(err, io.EOF) {
		return hangar.ExecResult{}, err
	}
	return hangar.ExecResult{}, nil
}

// on returns a Machine with the files of a directory.
func on(dir string) machine {
	return func(_ context.Context, conn io.ReadWriteCloser) error {
		server, err := sftp.NewServer(conn, sftp.WithServerWorkingDirectory(dir))
		if err != nil {
			return err
		}
		return server.Serve()
	}
}

func open(t *testing.T, m machine) *files.Session {
	t.Helper()
	s, err := files.Open(t.Context(), m, hangar.MachineRef{App: "web", ID: "3d8d413b29d089"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // some tests break it
	return s
}

func write(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

// expect compares the content and the mode of a file.
func expect(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
		return
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != content || info.Mode().Perm() != mode {
		t.Errorf("%s has %d bytes and mode %o, want %d and %o", name, len(b), info.Mode().Perm(), len(content), mode)
	}
}

// random is a text without repeated blocks.
func random(size int) string {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

func options(t *testing.T, skipped *[]string) files.Options {
	t.Helper()
	return files.Options{Skip: func(name string) { *skipped = append(*skipped, filepath.Base(name)) }}
}

func TestCopy(t *testing.T) {
	remote, local := t.TempDir(), t.TempDir()
	s := open(t, on(remote))
	var skipped []string
	o := options(t, &skipped)
	large := random(3<<20 + 17)
	var done, total int64
	o.Progress = func(_ string, n, of int64) { done, total = n, of }
	write(t, local+"/large", large, 0o640)
	if err := s.Put(t.Context(), local+"/large", "copy", o); err != nil {
		t.Fatal(err)
	}
	expect(t, remote+"/copy", large, 0o640)
	if done != total || total != int64(len(large)) {
		t.Errorf("progress of %d of %d bytes", done, total)
	}
	if err := s.Get(t.Context(), "copy", local, o); err != nil {
		t.Fatal(err)
	}
	expect(t, local+"/copy", large, 0o640)

	t.Run("modes", func(t *testing.T) {
		o := o
		o.Mode = 0o600
		if err := s.Put(t.Context(), local+"/large", remote, o); err != nil {
			t.Fatal(err)
		}
		expect(t, remote+"/large", large, 0o600)
	})
	t.Run("what is there", func(t *testing.T) {
		write(t, local+"/small", "new", 0o644)
		write(t, remote+"/small", "a longer one", 0o644)
		for what, err := range map[string]error{
			"put": s.Put(t.Context(), local+"/small", "small", o),
			"get": s.Get(t.Context(), "small", local, o),
		} {
			if !errors.Is(err, fs.ErrExist) || !strings.Contains(cli.HintFor(err), "--force") {
				t.Errorf("%s: %v, %q", what, err, cli.HintFor(err))
			}
		}
		expect(t, local+"/small", "new", 0o644)
		expect(t, remote+"/small", "a longer one", 0o644)
		o := o
		o.Force = true
		if err := s.Put(t.Context(), local+"/small", "small", o); err != nil {
			t.Fatal(err)
		}
		expect(t, remote+"/small", "new", 0o644)
		write(t, remote+"/small", "x", 0o644)
		if err := s.Get(t.Context(), "small", local, o); err != nil {
			t.Fatal(err)
		}
		expect(t, local+"/small", "x", 0o644)
	})
	t.Run("a missing file", func(t *testing.T) {
		if err := s.Get(t.Context(), "none", local, o); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "none in the Machine") {
			t.Errorf("%v", err)
		}
		if err := s.Put(t.Context(), local+"/none", "x", o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
		if err := s.Put(t.Context(), local+"/small", "none/x", o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := o
		o.Progress = func(string, int64, int64) { cancel() }
		if err := s.Put(ctx, local+"/large", "part", o); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := s.Get(ctx, "copy", local+"/part", o); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		for _, name := range []string{remote + "/part", local + "/part"} {
			if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a part is left: %s, %v", name, err)
			}
		}
	})
	if len(skipped) > 0 {
		t.Errorf("skipped: %v", skipped)
	}
}

func TestCopyDirectories(t *testing.T) {
	remote, local := t.TempDir(), t.TempDir()
	s := open(t, on(remote))
	var skipped []string
	o := options(t, &skipped)
	write(t, local+"/site/a", "a", 0o644)
	write(t, local+"/site/deep/er/b", "b", 0o755)
	if err := os.Symlink("/etc/passwd", local+"/site/link"); err != nil {
		t.Fatal(err)
	}
	var usage cli.UsageError
	if err := s.Put(t.Context(), local+"/site", ".", o); !errors.As(err, &usage) {
		t.Errorf("a directory without --recursive: %v", err)
	}
	o.Recursive = true
	for _, to := range []string{".", "as"} {
		if err := s.Put(t.Context(), local+"/site", to, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{"/site", "/as"} {
		expect(t, remote+at+"/a", "a", 0o644)
		expect(t, remote+at+"/deep/er/b", "b", 0o755)
	}
	if !slices.Equal(skipped, []string{"link", "link"}) {
		t.Errorf("skipped: %v", skipped)
	}
	if err := os.Symlink("/etc", remote+"/as/outside"); err != nil {
		t.Fatal(err)
	}
	back := t.TempDir()
	for _, to := range []string{back, back + "/other"} {
		if err := s.Get(t.Context(), "as", to, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []string{"/as", "/other"} {
		expect(t, back+at+"/deep/er/b", "b", 0o755)
		if _, err := os.Lstat(back + at + "/outside"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a link is copied: %v", err)
		}
	}
	if list, err := s.List(t.Context(), "as"); err != nil || len(list) != 3 || list[0].Name() != "a" {
		t.Errorf("%v, %v", list, err)
	}
	var found []string
	if err := s.Find(t.Context(), "as", func(name string, _ fs.FileInfo) error {
		found = append(found, name)
		return nil
	}, func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	if want := []string{"as", "as/a", "as/deep", "as/deep/er", "as/deep/er/b", "as/outside"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// liar lists a file under any name, and serves it.
type liar struct{ name string }

func (l liar) Name() string       { return l.name }
func (l liar) Size() int64        { return 3 }
func (l liar) Mode() fs.FileMode  { return 0o644 }
func (l liar) ModTime() time.Time { return time.Time{} }
func (l liar) IsDir() bool        { return false }
func (l liar) Sys() any           { return nil }

// top describes the directory itself.
type top struct{ liar }

func (top) Mode() fs.FileMode { return fs.ModeDir | 0o755 }
func (top) IsDir() bool       { return true }

type infos []fs.FileInfo

func (l infos) ListAt(to []fs.FileInfo, at int64) (int, error) {
	if n := copy(to, l[min(int(at), len(l)):]); n > 0 {
		return n, nil
	}
	return 0, io.EOF
}

func (l liar) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch {
	case r.Method == "List":
		return infos{l}, nil
	case r.Filepath == "/home":
		return infos{top{l}}, nil
	}
	return infos{l}, nil
}

func (l liar) Fileread(*sftp.Request) (io.ReaderAt, error) {
	return bytes.NewReader([]byte("bad")), nil
}
func (l liar) Filewrite(*sftp.Request) (io.WriterAt, error) { return nil, fs.ErrPermission }
func (l liar) Filecmd(*sftp.Request) error                  { return fs.ErrPermission }

// TestHostileMachine copies files whose names lead out of the directory, or have control characters.
func TestHostileMachine(t *testing.T) {
	for _, name := range []string{"../escaped", "/escaped", "..", ".", "", "a/b", "../../in/escaped"} {
		s := open(t, func(_ context.Context, conn io.ReadWriteCloser) error {
			l := liar{name}
			return sftp.NewRequestServer(conn, sftp.Handlers{FileGet: l, FilePut: l, FileCmd: l, FileList: l}).Serve()
		})
		dir := t.TempDir()
		if err := os.MkdirAll(dir+"/in", 0o700); err != nil {
			t.Fatal(err)
		}
		// Whether it fails or not, it writes below the destination only.
		_ = s.Get(t.Context(), "/home", dir+"/in/here", files.Options{Recursive: true, Force: true})
		if err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && filepath.Dir(at) != dir+"/in/here" {
				t.Errorf("%q: %s is written", name, at)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := files.Printable("a\x1b]0;b"); got != `"a\x1b]0;b"` {
		t.Errorf("a name is shown as %q", got)
	}
}

func TestEnds(t *testing.T) {
	ref := hangar.MachineRef{App: "web", ID: "3d8d413b29d089"}
	t.Run("an old Machine", func(t *testing.T) {
		_, err := files.Open(t.Context(), machine(func(context.Context, io.ReadWriteCloser) error {
			return hangar.Errorf(hangar.CodeInvalid, "", "invalid command")
		}), ref)
		if hangar.CodeOf(err) != hangar.CodeFailedPrecondition || !strings.Contains(cli.HintFor(err), "hangar machine restart web") {
			t.Errorf("%v, %q", err, cli.HintFor(err))
		}
	})
	t.Run("a connection that ends", func(t *testing.T) {
		lost := hangar.Errorf(hangar.CodeUnavailable, "", "the connection is lost")
		end := make(chan struct{})
		dir := t.TempDir()
		s := open(t, func(ctx context.Context, conn io.ReadWriteCloser) error {
			served := make(chan error, 1)
			go func() { served <- on(dir)(ctx, conn) }()
			select {
			case err := <-served:
				return err
			case <-end:
				return lost
			}
		})
		close(end)
		for {
			if _, err := s.List(t.Context(), "."); err != nil {
				if !errors.Is(err, lost) {
					t.Errorf("%v", err)
				}
				return
			}
		}
	})
}
