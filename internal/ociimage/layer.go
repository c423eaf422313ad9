package ociimage

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

// fileLayer is a compressed layer in a file. It was written in one pass, so its digests match its
// content even if the tree has changed meanwhile.
type fileLayer struct {
	name   string
	digest v1.Hash
	diffID v1.Hash
	size   int64
}

func (l *fileLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *fileLayer) DiffID() (v1.Hash, error)             { return l.diffID, nil }
func (l *fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l *fileLayer) MediaType() (types.MediaType, error)  { return types.OCILayer, nil }
func (l *fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.name) }
func (l *fileLayer) Uncompressed() (io.ReadCloser, error) { return openGzip(l.name) }

func openGzip(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// writeLayer makes a layer with the entries that fill writes.
func writeLayer(name string, fill func(*layerWriter) error) (_ *fileLayer, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := sha256.New(), sha256.New()
	counted := &counter{w: io.MultiWriter(f, packed)}
	z, err := gzip.NewWriterLevel(counted, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := &layerWriter{tar: tar.NewWriter(io.MultiWriter(z, plain)), links: map[inode]string{}, buf: make([]byte, 256<<10)}
	if err := errors.Join(fill(w), w.tar.Close(), z.Close()); err != nil {
		return nil, err
	}
	return &fileLayer{name: name, digest: sum(packed), diffID: sum(plain), size: counted.n}, nil
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// inode identifies a file with several names.
type inode struct{ dev, ino uint64 }

// layerWriter writes the entries of a layer.
type layerWriter struct {
	tar   *tar.Writer
	links map[inode]string // first names of files with several names
	buf   []byte
}

// program writes an executable file and a /tmp.
func (w *layerWriter) program(name, target string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if target != "tmp" {
		err = w.tar.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
		if err != nil {
			return err
		}
	}
	h := &tar.Header{Name: target, Typeflag: tar.TypeReg, Mode: 0o755, Size: fi.Size(), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	return w.content(h, f)
}

// tree writes everything below a directory, in lexical order.
func (w *layerWriter) tree(name string) error {
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return filepath.WalkDir(name, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(name, p)
		if err != nil || rel == "." {
			return err
		}
		if err := w.node(root, p, filepath.ToSlash(rel)); err != nil {
			return fmt.Errorf("pack %s: %w", rel, err)
		}
		return nil
	})
}

func (w *layerWriter) node(root *os.Root, full, rel string) error {
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return err
	}
	h := &tar.Header{
		Name: rel, Mode: int64(st.Mode & 0o7777), Uid: owner(st.Uid, os.Geteuid()), Gid: owner(st.Gid, os.Getegid()),
		ModTime: time.Unix(st.Mtim.Sec, 0), Format: tar.FormatPAX,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
	case unix.S_IFLNK:
		target, err := os.Readlink(full)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return w.tar.WriteHeader(h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFREG:
		return w.regular(root, full, h, &st)
	default:
		return nil // devices and sockets only have a meaning on this machine
	}
	if err := attributes(full, h); err != nil {
		return err
	}
	return w.tar.WriteHeader(h)
}

func (w *layerWriter) regular(root *os.Root, full string, h *tar.Header, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := w.links[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return w.tar.WriteHeader(h)
		}
		w.links[id] = h.Name
	}
	if err := attributes(full, h); err != nil {
		return err
	}
	f, err := root.Open(filepath.FromSlash(h.Name))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	return w.content(h, f)
}

// content writes a file of exactly the size that its header says.
func (w *layerWriter) content(h *tar.Header, f *os.File) error {
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, struct{ io.Reader }{io.LimitReader(f, h.Size)}, w.buf)
	if err == nil && n < h.Size {
		err = errors.New("the file became shorter while it was read")
	}
	return err
}

// owner maps the user who packs to root, because a developer's files become the image's.
func owner(id uint32, self int) int {
	if int(id) == self {
		return 0
	}
	return int(id)
}

// attributes adds the extended attributes that belong to a file.
func attributes(full string, h *tar.Header) error {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(full, list)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	for key := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if key != "security.capability" && !strings.HasPrefix(key, "user.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(full, key, value)
		if err != nil {
			return err
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+key] = string(value[:n])
	}
	return nil
}
