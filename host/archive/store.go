package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/format"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
)

// store is the library's storage for blobs, with additions.
type store struct {
	blob.Storage
	remote   bool
	dir      *directory    // nil: remote
	patience time.Duration // for how long an operation may fail to list files
}

// GetBlob marks errors that say nothing about the blob, so that a failure of the network, of the disk
// or of the process, such as too many open files, does not make a snapshot look damaged.
func (s *store) GetBlob(ctx context.Context, id blob.ID, offset, length int64, to blob.OutputBuffer) error {
	err := s.Storage.GetBlob(ctx, id, offset, length, to)
	_, system := errors.AsType[unix.Errno](err)
	if err == nil || !s.remote && !system || errors.Is(err, blob.ErrBlobNotFound) || errors.Is(err, blob.ErrInvalidRange) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// PutBlob stores a blob that survives a power cut once PutBlob has returned.
func (s *store) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, opts blob.PutOptions) error {
	if s.dir == nil {
		return s.Storage.PutBlob(ctx, id, data, opts)
	}
	switch {
	case opts.HasRetentionOptions() || opts.DoNotRecreate:
		return blob.ErrUnsupportedPutBlobOption
	case !opts.SetModTime.IsZero():
		return blob.ErrSetTimeUnsupported
	}
	dir, file, err := s.dir.path(ctx, id)
	if err != nil {
		return err
	}
	if err := s.dir.put(dir, file, data); err != nil {
		return err
	}
	if opts.GetModTime == nil {
		return nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	*opts.GetModTime = info.ModTime()
	return nil
}

// Close closes the storage and releases its lock.
func (s *store) Close(ctx context.Context) error {
	err := s.Storage.Close(ctx)
	if s.dir != nil {
		_ = s.dir.lock.Close()
	}
	return err
}

// occupied reports whether the store has an archive, and answers ErrForeign if it has anything
// else.
func (s *store) occupied(ctx context.Context) (made bool, err error) {
	if s.dir != nil {
		if err := s.dir.vacant(); err != nil {
			return false, err
		}
	}
	var foreign blob.ID
	err = s.ListBlobs(ctx, "", func(found blob.Metadata) error {
		switch found.BlobID {
		case format.KopiaRepositoryBlobID: // another daemon was faster
			made = true
		case format.KopiaBlobCfgBlobID: // written first, by a process that is creating the archive or has died
		default:
			foreign = found.BlobID
		}
		return nil
	})
	if err == nil && !made && foreign != "" {
		err = fmt.Errorf("%w: it holds %s", ErrForeign, foreign)
	}
	return made, err
}

// blank hides the blobs that the library writes when it creates an archive: it takes one of its two
// blobs without the other for damage.
type blank struct{ blob.Storage }

// GetBlob implements blob.Storage.
func (blank) GetBlob(context.Context, blob.ID, int64, int64, blob.OutputBuffer) error {
	return blob.ErrBlobNotFound
}

// synced flushes what the library wrote beside its blobs.
func (s *store) synced() error {
	f, err := os.Open(filepath.Join(s.dir.root, shardsFile))
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Sync(), durable.SyncDir(s.dir.root), durable.SyncDir(filepath.Dir(s.dir.root)))
}

const (
	lockFile   = "hangar.lock"
	shardsFile = ".shards" // the library's file that says how blobs are spread over directories
)

// directory stores blobs as files in the library's layout, and makes them durable, which the
// library does not.
type directory struct {
	root string
	path func(context.Context, blob.ID) (dir, file string, err error)
	lock *os.File

	mu   sync.Mutex
	made map[string]bool // directories that are known to be durable
}

func openDirectory(ctx context.Context, root string) (_ *store, err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(root, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	}
	if err := sweep(root); err != nil {
		return nil, err
	}
	// In a directory that has the shards file, the library does not need to be asked how to spread
	// blobs.
	st, err := filesystem.New(ctx, &filesystem.Options{Path: root}, true)
	if err != nil {
		return nil, err
	}
	sharded, ok := st.(interface {
		GetShardedPathAndFilePath(ctx context.Context, id blob.ID) (dir, file string, err error)
	})
	if !ok {
		return nil, fmt.Errorf("%T does not tell where its files are", st)
	}
	return &store{Storage: st, dir: &directory{
		root: root, path: sharded.GetShardedPathAndFilePath, lock: lock, made: map[string]bool{root: true},
	}}, nil
}

// sweep removes temporary files of a process that died while writing.
func sweep(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(d.Name(), durable.Unfinished) {
			return err
		}
		return root.Remove(name)
	})
}

func (d *directory) vacant() error {
	entries, err := os.ReadDir(d.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != lockFile && name != shardsFile && !strings.HasPrefix(name, format.KopiaBlobCfgBlobID) {
			return fmt.Errorf("%w: it holds %s", ErrForeign, name)
		}
	}
	return nil
}

// put writes a file atomically.
func (d *directory) put(dir, file string, data blob.Bytes) error {
	if err := d.mkdir(dir); err != nil {
		return err
	}
	return durable.WriteTo(file, func(w io.Writer) error {
		_, err := data.WriteTo(w)
		return err
	}, 0o600)
}

// mkdir makes a directory below the root, durably.
func (d *directory) mkdir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mkdirLocked(filepath.Clean(dir))
}

func (d *directory) mkdirLocked(dir string) error {
	if d.made[dir] {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.mkdirLocked(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := durable.SyncDir(parent); err != nil {
		return err
	}
	d.made[dir] = true
	return nil
}

// storageType names the store in the library's settings.
const storageType = "hangar"

type storeKey struct{}

// withStore passes a store to the library through a context.
func withStore(ctx context.Context, s *store) context.Context {
	return context.WithValue(ctx, storeKey{}, s)
}

// registerStorage registers the storage type in the library's global registry.
var registerStorage = sync.OnceFunc(func() {
	blob.AddSupportedStorage(storageType, struct{}{}, func(ctx context.Context, _ *struct{}, _ bool) (blob.Storage, error) {
		s, ok := ctx.Value(storeKey{}).(*store)
		if !ok {
			return nil, errors.New("only an Archive opens a store")
		}
		return s, nil
	})
})

// output is a buffer for blobs.
type output struct{ bytes.Buffer }

// Length is how many bytes are in it.
func (o *output) Length() int { return o.Len() }
