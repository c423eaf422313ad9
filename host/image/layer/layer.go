// Package layer turns the layers of an image, which are tar streams, into
// directories that overlayfs takes as lower directories.
//
// A directory holds exactly what its layer says: owners, modes with setuid and
// setgid, modification times, hard links, extended attributes. A deleted path is a
// character device 0/0 and a directory that hides what is below it carries
// trusted.overlay.opaque, as the kernel wants them. What a layer says that would
// be more than files of the image is refused with an error of
// hangar.ReasonBadImage: paths and links that lead out of the layer, devices
// outside /dev, more bytes or files than the limits allow. Nothing outside of the
// target directory is touched whatever the stream holds: paths are resolved by the
// kernel beneath the directory and symbolic links are never followed by it.
//
// Devices beneath /dev are left out silently, because many old base images carry
// /dev/null and /dev/console and every sandbox mounts its own /dev.
//
// Functions share no state and may run at the same time for different targets.
// The package neither fetches nor keeps layers, and does not make a directory
// durable: whoever publishes it syncs it first.
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

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/hangar-platform/hangar"
)

// Limits bound what one layer may become. Zero means nothing is allowed.
type Limits struct {
	Bytes int64 // sum of the sizes of all files
	Files int   // entries of the archive
}

// Result says what Unpack made.
type Result struct {
	DiffID string // "sha256:…" of the uncompressed stream
	Bytes  int64  // sum of the sizes of all files
	Files  int    // entries of the archive
	// Implicit are directories that the archive has files in but no entry for,
	// sorted. They must look like the directory below them; see Inherit.
	Implicit []string
}

// maxWindow bounds the memory that a zstd stream can ask for.
const maxWindow = 128 << 20

// Decompress returns the content of a gzip, zstd or plain stream, told apart by
// its first bytes, because registries are known to mislabel layers.
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

// Unpack writes the tar stream r, compressed or not, into the empty directory dir.
// On an error the content of dir is undefined. It answers hangar.ReasonBadImage
// for a stream that is damaged or refused; other errors are those of r, of the
// disk or of ctx. The whole of r is read.
func Unpack(ctx context.Context, dir string, r io.Reader, limits Limits) (Result, error) {
	plain, err := Decompress(r)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = plain.Close() }()
	s := &stream{ctx: ctx, r: plain, hash: sha256.New(), left: limits.Bytes + entryOverhead*int64(limits.Files)}
	u, err := newUnpacker(dir, limits)
	if err != nil {
		return Result{}, err
	}
	defer u.close()
	if err := u.run(bufio.NewReaderSize(s, 64<<10)); err != nil {
		return Result{}, classify(err)
	}
	return Result{
		DiffID: "sha256:" + hex.EncodeToString(s.hash.Sum(nil)),
		Bytes:  u.bytes, Files: u.files, Implicit: u.implicitPaths(),
	}, nil
}

// entryOverhead is what an archive may spend on an entry beyond its content.
const entryOverhead = 4 << 10

// stream hashes and bounds what is read, and ends with its context.
type stream struct {
	ctx  context.Context
	r    io.Reader
	hash hash.Hash
	left int64
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p)
	s.hash.Write(p[:n])
	if s.left -= int64(n); s.left < 0 {
		return n, bad("layer is too large when decompressed")
	}
	return n, err
}

func bad(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadImage, format, args...)
}

// bounded shortens what a hostile archive can put into an error text.
func bounded(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return fmt.Sprintf("%q", name)
}
