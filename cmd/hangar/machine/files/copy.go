package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// Options are the settings of a copy.
type Options struct {
	Recursive bool        // copy directories with their content
	Force     bool        // overwrite existing files
	Mode      fs.FileMode // of files on the Machine; 0: as on this computer
	// Progress is called with the name of a file and the bytes copied so far; nil: never.
	Progress func(name string, done, total int64)
	// Skip is called for everything that is not copied, because it is neither a file nor a directory. It is
	// required.
	Skip func(name string)
}

// concurrency bounds the requests in flight for a file.
const concurrency = 64

// Printable quotes a name that has unprintable characters, because the Machine is not trusted.
func Printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(name)
	}
	return name
}

// flags returns the flags with which a file is opened for writing.
func (o *Options) flags() int {
	if o.Force {
		return os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	return os.O_WRONLY | os.O_CREATE | os.O_EXCL
}

// there adds advice about a file that exists.
func there(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return cli.WithHint(err, "name another file, or overwrite it with --force")
	}
	return err
}

// progress counts copied bytes, and ends the copy with its context.
type progress struct {
	ctx   context.Context
	o     *Options
	name  string
	done  int64
	total int64
	here  error // on this computer, not in the Machine
}

func (p *progress) count(n int) error {
	p.done += int64(n)
	if p.o.Progress != nil {
		p.o.Progress(Printable(p.name), p.done, p.total)
	}
	return p.ctx.Err()
}

type countedReader struct {
	io.Reader
	*progress
}

func (r countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if wrong := r.count(n); wrong != nil {
		err = wrong
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.here = err
	}
	return n, err
}

type countedWriter struct {
	io.Writer
	*progress
}

func (w countedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err == nil {
		err = w.count(n)
	}
	w.here = err
	return n, err
}

// Get copies from the Machine to this computer. If local is a directory, the copy is in it, with its own name.
func (s *Session) Get(ctx context.Context, remote, local string, o Options) error {
	info, err := s.Stat(remote)
	if err != nil {
		return s.Why(remote, err)
	}
	if info.IsDir() && !o.Recursive {
		return cli.UsageErrorf("%s is a directory: copy it with --recursive", Printable(remote))
	}
	if here, err := os.Stat(local); err == nil && here.IsDir() {
		absolute, err := s.RealPath(remote)
		if err != nil {
			return s.Why(remote, err)
		}
		local = filepath.Join(local, path.Base(absolute))
	}
	root, err := os.OpenRoot(filepath.Dir(local))
	if err != nil {
		return err
	}
	defer root.Close()
	return s.get(ctx, remote, root, filepath.Base(local), info, &o)
}

// get copies one file or directory to a name in root. No name from the Machine leads out of root.
func (s *Session) get(ctx context.Context, remote string, root *os.Root, local string, info fs.FileInfo, o *Options) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case info.IsDir():
		if err := root.Mkdir(local, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		below, err := root.OpenRoot(local)
		if err != nil {
			return err
		}
		defer below.Close()
		list, err := s.ReadDirContext(ctx, remote)
		if err != nil {
			return s.Why(remote, err)
		}
		for _, one := range list {
			if name := one.Name(); name != filepath.Base(name) || name == ".." || name == "." {
				return fmt.Errorf("the Machine returned an invalid name of a file in %s: %q", Printable(remote), name)
			}
			if err := s.get(ctx, path.Join(remote, one.Name()), below, one.Name(), one, o); err != nil {
				return err
			}
		}
		return nil
	case !info.Mode().IsRegular():
		o.Skip(Printable(remote))
		return nil
	}
	from, err := s.Client.Open(remote)
	if err != nil {
		return s.Why(remote, err)
	}
	defer from.Close()
	to, err := root.OpenFile(local, o.flags(), info.Mode().Perm())
	if err != nil {
		return there(err)
	}
	at := &progress{ctx: ctx, o: o, name: remote, total: info.Size()}
	if _, err = from.WriteTo(countedWriter{to, at}); err != nil && at.here == nil {
		err = s.Why(remote, err)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		err = errors.Join(err, root.Remove(local)) // an incomplete file must not look complete
	}
	return err
}

// Put copies from this computer to the Machine. If remote is a directory, the copy is in it, with its own name.
func (s *Session) Put(ctx context.Context, local, remote string, o Options) error {
	info, err := os.Stat(local)
	if err != nil {
		return err
	}
	if info.IsDir() && !o.Recursive {
		return cli.UsageErrorf("%s is a directory: copy it with --recursive", local)
	}
	if there, err := s.Stat(remote); err == nil && there.IsDir() {
		absolute, err := filepath.Abs(local)
		if err != nil {
			return err
		}
		remote = path.Join(remote, filepath.Base(absolute))
	}
	if !info.IsDir() {
		return s.put(ctx, local, remote, info, &o)
	}
	if local, err = filepath.EvalSymlinks(local); err != nil {
		return err
	}
	return filepath.WalkDir(local, func(name string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(local, name)
		if err != nil {
			return err
		}
		to := path.Join(remote, filepath.ToSlash(below))
		if entry.IsDir() {
			if err := s.Mkdir(to); err != nil {
				if there, wrong := s.Stat(to); wrong != nil || !there.IsDir() {
					return s.Why(to, err)
				}
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return s.put(ctx, name, to, info, &o)
	})
}

// put copies one file.
func (s *Session) put(ctx context.Context, local, remote string, info fs.FileInfo, o *Options) error {
	if !info.Mode().IsRegular() {
		o.Skip(local)
		return nil
	}
	from, err := os.Open(local)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := s.OpenFile(remote, o.flags())
	if err != nil {
		if _, wrong := s.Lstat(remote); wrong == nil && !o.Force { // SFTP has no code for an existing file
			err = fs.ErrExist
		}
		return there(s.Why(remote, err))
	}
	at := &progress{ctx: ctx, o: o, name: local, total: info.Size()}
	if _, err = to.ReadFromWithConcurrency(countedReader{from, at}, concurrency); err == nil {
		mode := info.Mode().Perm()
		if o.Mode != 0 {
			mode = o.Mode
		}
		err = to.Chmod(mode)
	}
	err = errors.Join(err, to.Close())
	if err != nil {
		_ = s.Remove(remote) // an incomplete file must not look complete; the connection may be lost
	}
	if err == nil || at.here != nil {
		return at.here
	}
	return s.Why(remote, err)
}
