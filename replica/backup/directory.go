package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/internal/durable"
)

// abandoned is the age at which a temporary file of a crash is removed.
const abandoned = 24 * time.Hour

// directory is a Store on a file system.
type directory struct{ root string }

// String implements Store.
func (d directory) String() string { return "file://" + d.root }

func (d directory) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

// List implements Store.
func (d directory) List(ctx context.Context, prefix string, each func(name string, size int64) error) error {
	err := filepath.WalkDir(filepath.Join(d.root, filepath.FromSlash(prefix)), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was just removed
		}
		if err = errors.Join(err, ctx.Err()); err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.Contains(e.Name(), durable.Unfinished) {
			if time.Since(info.ModTime()) > abandoned {
				return os.Remove(path) //nolint:gosec // no other process writes in the directory
			}
			return nil
		}
		name, err := filepath.Rel(d.root, path)
		if err != nil {
			return err
		}
		return each(filepath.ToSlash(name), info.Size())
	})
	return err
}

// Put implements Store.
func (d directory) Put(_ context.Context, name string, r io.Reader, size int64) error {
	path := d.path(name)
	if err := durable.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.WriteTo(path, func(w io.Writer) error {
		n, err := io.Copy(w, r)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes instead of %d: %w", n, size, io.ErrUnexpectedEOF)
		}
		return err
	}, 0o600)
}

// Get implements Store.
func (d directory) Get(_ context.Context, name string) (io.ReadCloser, error) {
	f, err := os.Open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return f, err
}

// Remove implements Store.
func (d directory) Remove(_ context.Context, name string) error {
	err := os.Remove(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
