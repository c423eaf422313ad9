package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// MetaFile describes the other files of a snapshot.
const MetaFile = "meta.json"

// metaFormat is the version of Meta and of the algorithm of Sum.
const metaFormat = 1

// chunkSize is the part of a file that one goroutine checksums at a time.
const chunkSize = 256 << 10

// clockTick, in nanoseconds, is more than one step of the clock that stamps files. A file that
// changed within one step before it was sealed may have changed again afterwards with the same stamp.
const clockTick = 20_000_000

// ErrDamaged is Verify's answer for a snapshot that differs from what was sealed.
var ErrDamaged = errors.New("snapshot damaged")

// Origin is what must be equal on the host that resumes the snapshot.
type Origin struct {
	Engine string `json:"engine"` // gVisor version
	CPU    string `json:"cpu"`    // digest of the features of the processor
	Spec   string `json:"spec"`   // digest of the parts of the spec that must not change
}

// Meta is the content of MetaFile.
type Meta struct {
	Format int    `json:"format"`
	Origin Origin `json:"origin"`
	Boot   string `json:"boot,omitempty"`   // id of the host's boot in which it was sealed
	Sealed int64  `json:"sealed,omitempty"` // when, in Unix nanoseconds
	Files  []File `json:"files"`
}

// File is one file of a snapshot as it was sealed.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  uint64 `json:"sum,string"`
	// Inode and Changed show whether the file has changed since.
	Inode   uint64 `json:"inode,omitempty"`
	Changed int64  `json:"changed,omitempty"` // ctime in nanoseconds
}

// Seal completes the snapshot in the directory tmp and renames it to dir, which
// must not exist.
func Seal(tmp, dir string, origin Origin) error {
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	meta := Meta{Format: metaFormat, Origin: origin, Boot: hostBoot()}
	for _, e := range entries {
		f, err := sum(filepath.Join(tmp, e.Name()))
		if err != nil {
			return fmt.Errorf("checksum snapshot: %w", err)
		}
		meta.Files = append(meta.Files, f)
	}
	meta.Sealed = time.Now().UnixNano()
	raw, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, MetaFile), raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// ReadMeta returns the description of the snapshot in dir. The error is ErrDamaged, wrapped, if that is
// missing or damaged.
func ReadMeta(dir string) (Meta, error) {
	raw, err := os.ReadFile(filepath.Join(dir, MetaFile))
	if err != nil {
		return Meta{}, unreadable(err)
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

// unreadable turns an error of reading a snapshot into ErrDamaged if it is one of the snapshot, and
// not of this process, which for instance may have no descriptors left.
func unreadable(err error) error {
	for _, damage := range []error{fs.ErrNotExist, unix.EIO, unix.EUCLEAN, unix.EBADMSG, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, damage) {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return err
}

// Verify compares the files in dir with meta. The error is ErrDamaged, wrapped, if they differ or
// are missing. It does not read a file that is unchanged since it was sealed and still in memory.
func Verify(dir string, meta Meta) error {
	sameBoot := meta.Boot != "" && meta.Boot == hostBoot()
	conclusive := meta.Sealed - clockTick
	for _, want := range meta.Files {
		if want.Name != filepath.Base(want.Name) {
			return fmt.Errorf("%w: file name %q", ErrDamaged, want.Name)
		}
		path := filepath.Join(dir, want.Name)
		info, err := os.Stat(path)
		if err != nil {
			return unreadable(err)
		}
		if info.Size() != want.Size {
			return fmt.Errorf("%w: %s has %d bytes, not %d", ErrDamaged, want.Name, info.Size(), want.Size)
		}
		if sameBoot && want.Changed < conclusive && untouched(path, want) {
			continue
		}
		got, err := sum(path)
		if err != nil {
			return unreadable(err)
		}
		if got.Sum != want.Sum {
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

// hostBoot returns the id of the host's boot, or "" if it has none.
func hostBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// untouched reports whether a file is the one that was sealed, has not been written to since, and has
// never left the page cache, as far as the kernel knows. Kernels before 6.5 cannot tell.
func untouched(path string, sealed File) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	now, err := describe(f)
	if err != nil || now.Inode != sealed.Inode || now.Changed != sealed.Changed {
		return false
	}
	var all unix.CachestatRange // length 0: to the end of the file
	var cached unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &all, &cached, 0); err != nil {
		return false
	}
	page := int64(os.Getpagesize())
	return cached.Cache == uint64((sealed.Size+page-1)/page) && cached.Evicted == 0
}

// describe returns everything about a file except its sum.
func describe(f *os.File) (File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return File{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return File{Name: filepath.Base(f.Name()), Size: st.Size, Inode: st.Ino, Changed: st.Ctim.Nano()}, nil
}

// sum returns a file's description with its checksum, which covers the checksums of its chunks. All
// cores read the chunks.
func sum(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	file, err := describe(f)
	if err != nil {
		return File{}, err
	}
	size := file.Size
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
	file.Sum = xxhash.Sum64(all)
	return file, nil
}
