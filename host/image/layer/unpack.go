package layer

import (
	"archive/tar"
	"compress/flate"
	"errors"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	kflate "github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."     // internal names of the storage driver of old builders
	whiteoutOpaque = ".wh..wh..opq" // hides the content that lower layers have in its directory
	xattrOpaque    = "trusted.overlay.opaque"
	paxXattr       = "SCHILY.xattr."
)

// unpacker writes one layer. One goroutine uses it, and nothing else writes beneath root.
type unpacker struct {
	root   int // O_PATH
	limits Limits
	stream *stream
	bytes  int64
	files  int
	buf    []byte

	parent    directory // of the previous entry; archives list the files of a directory together
	implicit  map[string]struct{}
	opaque    map[string]struct{}
	whiteouts []string
	times     map[string]time.Time // of directories; set last, because writing into a directory changes its time
	kept      int                  // memory of these paths, see keep
}

// maxKept bounds the memory of the paths that one unpacker keeps, in bytes; pathOverhead is that of a
// path beyond its text. A layer of 300,000 directories needs half of it.
const (
	maxKept      = 64 << 20
	pathOverhead = 32
)

// keep counts a path that is kept until the end of the layer.
func (u *unpacker) keep(name string) error {
	if u.kept += len(name) + pathOverhead; u.kept > maxKept {
		return bad("layer has too many or too long paths of directories and deleted files: %w", ErrTooLarge)
	}
	return nil
}

// directory is an open directory and its path without symbolic links.
type directory struct {
	asked string // the path that it was opened by
	path  string
	fd    int // O_PATH
}

func newUnpacker(dir string, limits Limits, s *stream) (*unpacker, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &unpacker{
		root: fd, limits: limits, stream: s, buf: make([]byte, 256<<10), parent: directory{fd: -1},
		implicit: map[string]struct{}{}, opaque: map[string]struct{}{}, times: map[string]time.Time{},
	}, nil
}

func (u *unpacker) close() {
	u.forgetParent()
	_ = unix.Close(u.root)
}

func (u *unpacker) implicitPaths() []string { return slices.Sorted(maps.Keys(u.implicit)) }

func (u *unpacker) run(r io.Reader) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, t); err != nil {
			return err
		}
	}
	// The digest includes bytes after the end of the archive.
	if _, err := io.CopyBuffer(io.Discard, r, u.buf); err != nil {
		return err
	}
	return u.finish()
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if u.files >= u.limits.Files || !u.limits.Budget.Take(0, 1) {
		return bad("layer has more than %d files, or its image: %w", u.limits.Files, ErrTooLarge)
	}
	u.files++
	if err := u.limits.Space.Admit(diskspace.UnpackImage, max(0, h.Size)); err != nil {
		return err
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return bad("layer gives %s an owner out of range", bounded(name))
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return bad("layer makes the root something else than a directory")
		}
		return u.attributes(u.root, ".", "", h)
	}
	parent, err := u.openParent(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	real := path.Join(parent.path, base)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return u.whiteout(parent, base)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(parent, base, real, h)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return u.file(parent, base, h, content)
	case tar.TypeLink:
		return u.link(parent, base, real, h)
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return bad("layer has a symbolic link %s to nowhere", bounded(name))
		}
		if err := u.replace(parent, base, func() error { return unix.Symlinkat(h.Linkname, parent.fd, base) }); err != nil {
			return err
		}
		return u.nodeAttributes(parent, base, h)
	case tar.TypeFifo:
		if err := u.replace(parent, base, func() error { return unix.Mknodat(parent.fd, base, unix.S_IFIFO|0o600, 0) }); err != nil {
			return err
		}
		if err := u.nodeAttributes(parent, base, h); err != nil {
			return err
		}
		return unix.Fchmodat(parent.fd, base, permissions(h), 0)
	case tar.TypeChar, tar.TypeBlock:
		if strings.HasPrefix(real, "dev/") {
			return nil
		}
		return bad("layer has a device node %s", bounded(name))
	default:
		return bad("layer has an entry %s of unknown type %q", bounded(name), h.Typeflag)
	}
}

func (u *unpacker) file(parent directory, base string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.limits.Bytes-u.bytes || !u.limits.Budget.Take(h.Size, 0) {
		return bad("layer is larger than %d bytes, or its image: %w", u.limits.Bytes, ErrTooLarge)
	}
	before := u.bytes
	u.bytes += h.Size
	var fd int
	err := u.replace(parent, base, func() (err error) {
		fd, err = unix.Openat(parent.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	// Holes of sparse files are written, but are not in the stream.
	n, err := io.CopyBuffer(&fileWriter{fd: fd, stream: u.stream, written: before}, content, u.buf)
	if err != nil {
		return err
	}
	if n != h.Size {
		return io.ErrUnexpectedEOF
	}
	if err := u.fdAttributes(fd, h); err != nil {
		return err
	}
	ts := timespec(h.ModTime)
	return unix.UtimesNanoAt(parent.fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpacker) directory(parent directory, base, real string, h *tar.Header) error {
	err := unix.Mkdirat(parent.fd, base, 0o700)
	if errors.Is(err, unix.EEXIST) {
		err = u.redirectory(parent, base, real)
	}
	if err != nil {
		return err
	}
	delete(u.implicit, real)
	return u.attributes(parent.fd, base, real, h)
}

// redirectory turns an existing whiteout or file into a directory. If the layer had deleted the path,
// the new directory hides the one below.
func (u *unpacker) redirectory(parent directory, base, real string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err := unix.Unlinkat(parent.fd, base, 0); err != nil {
		return err
	}
	if err := unix.Mkdirat(parent.fd, base, 0o755); err != nil {
		return err
	}
	if isWhiteout(&st) {
		return u.markOpaque(parent.fd, base, real)
	}
	return nil
}

func (u *unpacker) link(parent directory, base, real string, h *tar.Header) error {
	name, err := cleanName(h.Linkname)
	if err != nil {
		return err
	}
	if name == "" {
		return bad("layer has a hard link %s to the root", bounded(real))
	}
	target, err := u.resolve(path.Dir(name), false)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(target.fd) }()
	var st unix.Stat_t
	if err := unix.Fstatat(target.fd, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return bad("layer has a hard link %s to %s, which it does not hold", bounded(real), bounded(name))
		}
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFDIR || kind == unix.S_IFCHR {
		return bad("layer has a hard link %s to %s, which is not a file", bounded(real), bounded(name))
	}
	if path.Join(target.path, path.Base(name)) == real {
		return bad("layer has a hard link %s to itself", bounded(real))
	}
	return u.replace(parent, base, func() error {
		return unix.Linkat(target.fd, path.Base(name), parent.fd, base, 0)
	})
}

// whiteout deletes a file of the lower layers, or the whole content of a directory. It keeps the
// files that this layer adds.
func (u *unpacker) whiteout(parent directory, base string) error {
	if base == whiteoutOpaque {
		return u.markOpaque(parent.fd, ".", parent.path)
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil
	}
	name := strings.TrimPrefix(base, whiteoutPrefix)
	if name == "" || name == "." || name == ".." {
		return bad("layer deletes a file without a name")
	}
	real := path.Join(parent.path, name)
	err := unix.Mknodat(parent.fd, name, unix.S_IFCHR, 0)
	if err == nil {
		u.whiteouts = append(u.whiteouts, real)
		return u.keep(real)
	}
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(parent.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return u.markOpaque(parent.fd, name, real)
	}
	return nil
}

func (u *unpacker) markOpaque(dirfd int, name, real string) error {
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, known := u.opaque[real]; !known {
		if err := u.keep(real); err != nil {
			return err
		}
	}
	u.opaque[real] = struct{}{}
	return unix.Fsetxattr(fd, xattrOpaque, []byte("y"), 0)
}

// replace runs create, after removing an existing entry if necessary.
func (u *unpacker) replace(parent directory, base string, create func() error) error {
	err := create()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	err = unix.Unlinkat(parent.fd, base, 0)
	if errors.Is(err, unix.EISDIR) {
		real := path.Join(parent.path, base)
		if err = removeTree(parent.fd, base); err == nil {
			u.forget(real)
		}
	}
	if err != nil {
		return err
	}
	return create()
}

// forget drops the cached state of a removed tree. The parent of the current entry is above the tree
// and stays open.
func (u *unpacker) forget(real string) {
	gone := func(p string) bool { return p == real || strings.HasPrefix(p, real+"/") }
	maps.DeleteFunc(u.implicit, func(p string, _ struct{}) bool { return gone(p) })
	maps.DeleteFunc(u.opaque, func(p string, _ struct{}) bool { return gone(p) })
	maps.DeleteFunc(u.times, func(p string, _ time.Time) bool { return gone(p) })
}

// finish sets the attributes that later entries would have changed.
func (u *unpacker) finish() error {
	u.forgetParent()
	for _, w := range u.whiteouts {
		if err := u.dropHiddenWhiteout(w); err != nil {
			return err
		}
	}
	// Directories without an entry get a fixed time, independent of the clock.
	for p := range u.implicit {
		u.times[p] = time.Unix(0, 0)
	}
	for p, t := range u.times {
		ts := timespec(t)
		dir, err := u.openStrict(p)
		if err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				continue // replaced by a later entry
			}
			return err
		}
		err = unix.UtimesNanoAt(dir, ".", []unix.Timespec{ts, ts}, 0)
		_ = unix.Close(dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// dropHiddenWhiteout removes a whiteout in an opaque directory. It has nothing to delete there, and
// the kernel would list it, because the directory is not merged.
func (u *unpacker) dropHiddenWhiteout(real string) error {
	hidden := false
	for p := path.Dir(real); ; p = path.Dir(p) {
		if p == "." {
			p = ""
		}
		if _, hidden = u.opaque[p]; hidden || p == "" {
			break
		}
	}
	if !hidden {
		return nil
	}
	dir, err := u.openStrict(strings.TrimPrefix(path.Dir(real), "."))
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // replaced by a later entry
		}
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(real), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || !isWhiteout(&st) {
		return nil // gone or replaced already
	}
	return unix.Unlinkat(dir, path.Base(real), 0)
}

// cleanName makes the name of an entry relative to the root, without dots.
func cleanName(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", bad("layer has a name with a zero byte")
	}
	for c := range strings.SplitSeq(name, "/") {
		if c == ".." {
			return "", bad("layer has a path %s that leads out of it", bounded(name))
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// classify turns errors that only a bad stream causes into bad_image.
func classify(err error) error {
	if hangar.ReasonOf(err) != "" {
		return err
	}
	var corrupt kflate.CorruptInputError
	var corruptStd flate.CorruptInputError
	for _, e := range []error{
		tar.ErrHeader, tar.ErrFieldTooLong, io.ErrUnexpectedEOF, gzip.ErrHeader, gzip.ErrChecksum,
		zstd.ErrMagicMismatch, zstd.ErrCRCMismatch, zstd.ErrWindowSizeExceeded, zstd.ErrDecoderSizeExceeded,
		unix.ENAMETOOLONG, unix.ENOTDIR, unix.ELOOP, unix.EINVAL, unix.EMLINK, unix.ERANGE,
	} {
		if errors.Is(err, e) {
			return bad("layer is damaged: %w", err)
		}
	}
	if errors.As(err, &corrupt) || errors.As(err, &corruptStd) {
		return bad("layer is damaged: %w", err)
	}
	return diskspace.Explain(err)
}

// fileWriter writes a file of a layer. written is the size of the layer so far, in bytes.
type fileWriter struct {
	fd      int
	stream  *stream
	written int64
}

func (w *fileWriter) Write(p []byte) (int, error) {
	w.written += int64(len(p))
	if err := w.stream.allow(w.written); err != nil {
		return 0, err
	}
	done := 0
	for done < len(p) {
		n, err := unix.Write(w.fd, p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
