// Package layer turns the layers of an image, which are tar streams, into
// directories that overlayfs takes as lower directories.
//
// A directory has exactly what its layer says: owners, modes with setuid and setgid, modification
// times, hard links, extended attributes. As the kernel wants it, a deleted path is a character
// device 0/0, and a directory that hides what is below it has trusted.overlay.opaque. A layer with
// anything but files of the image is refused with hangar.ReasonBadImage: paths and links that lead
// out of the layer, devices outside /dev, more bytes or files than the limits allow. No stream can
// touch anything outside the target directory: the kernel resolves paths beneath it and never follows
// symbolic links.
//
// Devices below /dev are silently omitted, because many old base images contain /dev/null and
// /dev/console, and every sandbox mounts its own /dev.
//
// Functions share no state and may run at the same time for different targets. The package neither
// fetches nor keeps layers, and does not make a directory durable: the caller syncs it before
// publishing it.
package layer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// Limits bound the content of one layer. Zero means nothing is allowed.
type Limits struct {
	Bytes int64 // sum of the sizes of all files
	Files int   // entries of the archive
	// Space is the disk of the layer; nil: its free space is not checked.
	Space *diskspace.Space
	// Ratio bounds the unpacked bytes to that many times the bytes read, plus Slack: a few megabytes
	// that become gigabytes are an attack.
	Ratio int
	Slack int64
	// Budget is shared by the layers of an image; optional.
	Budget *Budget
}

// ErrTooLarge is in the errors of layers that exceed Limits.
var ErrTooLarge = errors.New("too large")

// Budget bounds several layers together. It may be used by many goroutines.
type Budget struct {
	mu    sync.Mutex
	size  int64 // bytes
	files int
}

// NewBudget returns a Budget of that many bytes of files, and entries of archives.
func NewBudget(size int64, files int) *Budget { return &Budget{size: size, files: files} }

// Take takes an amount from the budget. It reports false if not enough is left.
func (b *Budget) Take(size int64, files int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size < size || b.files < files {
		return false
	}
	b.size, b.files = b.size-size, b.files-files
	return true
}

// give returns the amount that a failed layer has taken.
func (b *Budget) give(size int64, files int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size, b.files = b.size+size, b.files+files
}

// Result describes the content that Unpack made.
type Result struct {
	DiffID string // "sha256:…" of the uncompressed stream
	Bytes  int64  // sum of the sizes of all files
	Files  int    // entries of the archive
	// Implicit are directories that the archive has files in but no entry for,
	// sorted. They must look like the directory below them; see Inherit.
	Implicit []string
}

// maxWindow bounds the memory that a zstd stream can request. Readers must support 8 MB (RFC 8878,
// section 3.1.1.1.2); levels up to 20 of the reference implementation request up to this much.
const maxWindow = 32 << 20

// Decompress returns the content of a gzip, zstd or plain stream. Its first bytes decide, because
// registries are known to mislabel layers.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 128<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, bad("layer is not valid gzip: %w", err)
		}
		return z, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, bad("layer is not valid zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	default:
		return io.NopCloser(b), nil
	}
}

// Unpack writes the tar stream r, compressed or not, into the empty directory dir. It reads all of r.
// It returns hangar.ReasonBadImage for a stream that is damaged or refused; other errors come from r,
// the disk or ctx. On an error the content of dir is undefined, and the Budget is as before.
func Unpack(ctx context.Context, dir string, r io.Reader, limits Limits) (Result, error) {
	s, err := newStream(ctx, r, limits)
	if err != nil {
		return Result{}, err
	}
	defer s.close()
	u, err := newUnpacker(dir, limits, s)
	if err != nil {
		return Result{}, err
	}
	defer u.close()
	if err := u.run(bufio.NewReaderSize(s, 64<<10)); err != nil {
		limits.Budget.give(u.bytes, u.files)
		return Result{}, classify(err)
	}
	return Result{DiffID: s.digest(), Bytes: u.bytes, Files: u.files, Implicit: u.implicitPaths()}, nil
}

// Digest returns the DiffID of a stream without unpacking it. Errors are those of Unpack.
func Digest(ctx context.Context, r io.Reader, limits Limits) (string, error) {
	s, err := newStream(ctx, r, limits)
	if err != nil {
		return "", err
	}
	defer s.close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, s, make([]byte, 256<<10)); err != nil {
		return "", classify(err)
	}
	return s.digest(), nil
}

// entryOverhead bounds the bytes of an archive entry beyond its content.
const entryOverhead = 4 << 10

// stream hashes and bounds the bytes that are read, and fails when its context ends.
type stream struct {
	ctx   context.Context
	in    *counter
	r     io.ReadCloser // in, decompressed
	hash  hash.Hash
	left  int64
	ratio int64
	slack int64
	read  int64
}

func newStream(ctx context.Context, r io.Reader, limits Limits) (*stream, error) {
	in := &counter{r: r}
	plain, err := Decompress(in)
	if err != nil {
		return nil, err
	}
	return &stream{
		ctx: ctx, in: in, r: plain, hash: sha256.New(), ratio: int64(limits.Ratio), slack: limits.Slack,
		left: limits.Bytes + entryOverhead*int64(limits.Files),
	}, nil
}

func (s *stream) close() { _ = s.r.Close() }

func (s *stream) digest() string { return "sha256:" + hex.EncodeToString(s.hash.Sum(nil)) }

// allow returns an error for more output than the ratio allows for the input so far.
func (s *stream) allow(size int64) error {
	if size-s.slack > s.ratio*s.in.n {
		return bad("layer unpacks to more than %d times its size: %w", s.ratio, ErrTooLarge)
	}
	return nil
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p)
	s.hash.Write(p[:n])
	s.read += int64(n)
	if s.left -= int64(n); s.left < 0 {
		return n, bad("layer is larger when it is decompressed than is allowed: %w", ErrTooLarge)
	}
	if err := s.allow(s.read); err != nil {
		return n, err
	}
	return n, err
}

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func bad(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadImage, format, args...)
}

// bounded shortens a name of a hostile archive for an error text.
func bounded(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("%q", name)
}
