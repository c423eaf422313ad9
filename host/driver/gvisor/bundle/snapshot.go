package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
)

// MetaFile describes the other files of a snapshot.
const MetaFile = "meta.json"

// metaFormat is the version of Meta and of how Sum is computed.
const metaFormat = 1

// chunkSize is the part of a file that is checksummed at once; chunks are read by
// all cores.
const chunkSize = 256 << 10

// ErrDamaged is what Verify answers for a snapshot that is not as it was sealed.
var ErrDamaged = errors.New("snapshot damaged")

// Origin is what must be the same where a snapshot is taken back.
type Origin struct {
	Engine string `json:"engine"` // gVisor version
	CPU    string `json:"cpu"`    // digest of the features of the processor
	Spec   string `json:"spec"`   // digest of what of the spec must not change
}

// Meta is the content of MetaFile.
type Meta struct {
	Format int    `json:"format"`
	Origin Origin `json:"origin"`
	Files  []File `json:"files"`
}

// File is one file of a snapshot as it was sealed.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  uint64 `json:"sum,string"`
}

// Seal completes the snapshot in the directory tmp and renames it to dir, which
// must not exist.
func Seal(tmp, dir string, origin Origin) error {
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	meta := Meta{Format: metaFormat, Origin: origin}
	for _, e := range entries {
		f, err := sum(filepath.Join(tmp, e.Name()))
		if err != nil {
			return fmt.Errorf("checksum snapshot: %w", err)
		}
		meta.Files = append(meta.Files, f)
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, MetaFile), raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// ReadMeta returns the description of the snapshot in dir. The error is ErrDamaged,
// wrapped, if there is none that can be read.
func ReadMeta(dir string) (Meta, error) {
	raw, err := os.ReadFile(filepath.Join(dir, MetaFile))
	if err != nil {
		return Meta{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	var meta Meta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return Meta{}, fmt.Errorf("%w: parse %s: %w", ErrDamaged, MetaFile, err)
	}
	if meta.Format != metaFormat {
		return Meta{}, fmt.Errorf("%w: format %d, not %d", ErrDamaged, meta.Format, metaFormat)
	}
	if len(meta.Files) == 0 {
		return Meta{}, fmt.Errorf("%w: %s names no files", ErrDamaged, MetaFile)
	}
	return meta, nil
}

// Verify compares the files in dir with meta. The error is ErrDamaged, wrapped.
func Verify(dir string, meta Meta) error {
	for _, want := range meta.Files {
		if want.Name != filepath.Base(want.Name) {
			return fmt.Errorf("%w: file name %q", ErrDamaged, want.Name)
		}
		path := filepath.Join(dir, want.Name)
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if info.Size() != want.Size {
			return fmt.Errorf("%w: %s has %d bytes, not %d", ErrDamaged, want.Name, info.Size(), want.Size)
		}
		got, err := sum(path)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if got != want {
			return fmt.Errorf("%w: the content of %s changed", ErrDamaged, want.Name)
		}
	}
	return nil
}

// Size returns the length in bytes of all files that meta names.
func (m Meta) Size() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// sum reads a file with all cores and returns the checksum over the checksums of
// its chunks.
func sum(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	size := info.Size()
	sums := make([]uint64, (size+chunkSize-1)/chunkSize)
	workers := min(runtime.GOMAXPROCS(0), len(sums))
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			buf := make([]byte, chunkSize)
			for i := w; i < len(sums); i += workers {
				off := int64(i) * chunkSize
				part := buf[:min(chunkSize, size-off)]
				if _, err := io.ReadFull(io.NewSectionReader(f, off, int64(len(part))), part); err != nil {
					return fmt.Errorf("read %s: %w", path, err)
				}
				sums[i] = xxhash.Sum64(part)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return File{}, err
	}
	all := make([]byte, 0, 8*len(sums))
	for s := range slices.Values(sums) {
		all = append(all, byte(s), byte(s>>8), byte(s>>16), byte(s>>24), byte(s>>32), byte(s>>40), byte(s>>48), byte(s>>56))
	}
	return File{Name: filepath.Base(path), Size: size, Sum: xxhash.Sum64(all)}, nil
}
