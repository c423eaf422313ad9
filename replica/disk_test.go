package replica_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica/database"
)

// sector is the unit that a disk writes atomically.
const sector = 512

// diskOp is one change of a disk, or a sync, which makes changes durable: of the content of a file,
// or of the names in a directory.
type diskOp struct {
	kind diskOpKind
	file int    // file whose content it changes
	name string // path, from the root of the disk
	to   string // new path of a rename
	off  int64
	data []byte // of a write; the operations own it
	size int64  // of a truncation
}

type diskOpKind int

const (
	diskWrite diskOpKind = iota
	diskTruncate
	diskSync
	diskCreate
	diskMkdir
	diskUnlink
	diskRename
	diskSyncDir
)

// disk is a file system in memory that records its operations, in order.
type disk struct {
	dir string // where it is mounted

	mu     sync.Mutex
	ops    []diskOp
	files  int
	before func(op int)     // called before each change, with the number of changes so far
	broken string           // suffix of files that cannot be synced, if any
	full   string           // suffix of a file of which one write fails, if any
	spared int              // how many writes of that file succeed before
	small  string           // suffix of a file that may not grow beyond its size, if any
	rigid  bool             // it allocates nothing ahead, like the disks of Machines
	free   uint64           // bytes that it says are free
	last   string           // suffix of a file that takes the last room when it is allocated, if any
	beyond map[string]int64 // end of the room of files that may have more than their size
}

// newDisk mounts a disk that is empty.
func newDisk(t *testing.T) *disk {
	t.Helper()
	needsMount(t)
	d := &disk{dir: filepath.Join(t.TempDir(), "disk"), free: 1 << 30, beyond: map[string]int64{}}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := fs.Mount(d.dir, &diskDir{d: d}, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "disk", MaxWrite: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Files that a program had open when its node ended are still open, and would keep the
		// server running.
		if err := unix.Unmount(d.dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("the disk stays mounted: %v", err)
		}
		server.Wait()
	})
	return d
}

// record notes an operation. d.mu is held.
func (d *disk) record(op diskOp) {
	if d.before != nil {
		d.before(len(d.ops))
	}
	d.ops = append(d.ops, op)
}

// diskDir is a directory of a disk.
type diskDir struct {
	fs.Inode
	d *disk
}

// diskFile is a file of a disk.
type diskFile struct {
	fs.Inode
	d    *disk
	id   int
	data []byte
}

func (n *diskDir) child(name string) string { return path.Join(n.Path(nil), name) }

func (n *diskDir) Mkdir(ctx context.Context, name string, _ uint32, _ *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.d.record(diskOp{kind: diskMkdir, name: n.child(name)})
	return n.NewInode(ctx, &diskDir{d: n.d}, fs.StableAttr{Mode: fuse.S_IFDIR}), 0
}

func (n *diskDir) Create(ctx context.Context, name string, _, _ uint32, _ *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.d.files++
	f := &diskFile{d: n.d, id: n.d.files}
	n.d.record(diskOp{kind: diskCreate, name: n.child(name), file: f.id})
	return n.NewInode(ctx, f, fs.StableAttr{Mode: fuse.S_IFREG}), nil, diskOpenFlags(name), 0
}

// diskOpenFlags makes each operation reach the disk at once, except for the index of a log, which
// programs map.
func diskOpenFlags(name string) uint32 {
	if strings.HasSuffix(name, database.SHM.Suffix()) {
		return fuse.FOPEN_KEEP_CACHE
	}
	return fuse.FOPEN_DIRECT_IO
}

func (n *diskDir) Unlink(_ context.Context, name string) syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.d.record(diskOp{kind: diskUnlink, name: n.child(name)})
	return 0
}

func (n *diskDir) Rmdir(ctx context.Context, name string) syscall.Errno { return n.Unlink(ctx, name) }

func (n *diskDir) Rename(_ context.Context, name string, parent fs.InodeEmbedder, newName string, _ uint32) syscall.Errno {
	to, ok := parent.(*diskDir)
	if !ok {
		return syscall.ENOTDIR
	}
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.d.record(diskOp{kind: diskRename, name: n.child(name), to: to.child(newName)})
	return 0
}

func (n *diskDir) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	n.d.mu.Lock()
	defer n.d.mu.Unlock()
	n.d.record(diskOp{kind: diskSyncDir, name: n.Path(nil)})
	return 0
}

func (n *diskDir) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = fuse.S_IFDIR | 0o755
	return 0
}

func (n *diskDir) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return n.Getattr(ctx, f, out)
}

func (f *diskFile) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		f.truncate(0)
	}
	return nil, diskOpenFlags(f.Path(nil)), 0
}

func (f *diskFile) Read(_ context.Context, _ fs.FileHandle, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return fuse.ReadResultData(slices.Clone(f.data[min(off, int64(len(f.data))):min(off+int64(len(b)), int64(len(f.data)))])), 0
}

func (f *diskFile) Write(_ context.Context, _ fs.FileHandle, b []byte, off int64) (uint32, syscall.Errno) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op := diskOp{kind: diskWrite, file: f.id, name: f.Path(nil), off: off, data: slices.Clone(b)}
	if f.d.full != "" && strings.HasSuffix(op.name, f.d.full) {
		if f.d.spared--; f.d.spared < 0 {
			f.d.full = ""
			return 0, syscall.EIO
		}
	}
	if !f.fits(off + int64(len(b))) {
		return 0, syscall.ENOSPC
	}
	f.d.record(op)
	f.data = op.apply(f.data)
	return uint32(len(b)), 0
}

// fits reports whether the file may have so many bytes. f.d.mu is held.
func (f *diskFile) fits(size int64) bool {
	name := f.Path(nil)
	return size <= max(int64(len(f.data)), f.d.beyond[name]) || f.d.small == "" || !strings.HasSuffix(name, f.d.small)
}

// Allocate keeps what it got when it fails, as ext4 does.
func (f *diskFile) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, _ uint32) syscall.Errno {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.rigid {
		return syscall.ENOTSUP
	}
	name, end := f.Path(nil), int64(off+size)
	if !f.fits(end) {
		f.d.beyond[name] = end - 1
		return syscall.ENOSPC
	}
	f.d.beyond[name] = end
	if f.d.last != "" && strings.HasSuffix(name, f.d.last) {
		f.d.small = f.d.last
	}
	return 0
}

func (f *diskFile) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	out.Bsize, out.Blocks, out.Bavail = sector, 1<<30, f.d.free/sector
	return 0
}

func (f *diskFile) truncate(size int64) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	op := diskOp{kind: diskTruncate, file: f.id, name: f.Path(nil), size: size}
	f.d.record(op)
	f.data = op.apply(f.data)
	delete(f.d.beyond, op.name)
}

// Flush tells the kernel not to send a request when a file is closed: otherwise this process, which
// answers, would not end when a test is killed.
func (f *diskFile) Flush(context.Context, fs.FileHandle) syscall.Errno { return syscall.ENOSYS }

func (f *diskFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	name := f.Path(nil)
	if f.d.broken != "" && strings.HasSuffix(name, f.d.broken) {
		return syscall.EIO
	}
	f.d.record(diskOp{kind: diskSync, file: f.id, name: name})
	return 0
}

func (f *diskFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	out.Mode, out.Size = fuse.S_IFREG|0o644, uint64(len(f.data))
	return 0
}

func (f *diskFile) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		f.truncate(int64(size))
	}
	return f.Getattr(ctx, h, out)
}

// apply does a write or a truncation to the content of a file, and returns it.
func (op *diskOp) apply(content []byte) []byte {
	end := op.size
	if op.kind == diskWrite {
		end = max(int64(len(content)), op.off+int64(len(op.data)))
	}
	if more := end - int64(len(content)); more > 0 {
		content = append(content, make([]byte, more)...)
	}
	content = content[:end]
	copy(content[min(op.off, end):], op.data)
	return content
}

// sectors returns the parts of a write that are in one sector each.
func (op *diskOp) sectors() []diskOp {
	var all []diskOp
	for at := op.off; at < op.off+int64(len(op.data)); {
		end := min((at/sector+1)*sector, op.off+int64(len(op.data)))
		all = append(all, diskOp{kind: diskWrite, off: at, data: op.data[at-op.off : end-op.off]})
		at = end
	}
	return all
}

// platter is the state of a disk after some operations: its durable part, and the rest.
type platter struct {
	content map[int][]byte   // of files
	pending map[int][]diskOp // of the content of files
	names   map[string]int   // of files, and of directories, which are file 0
	naming  map[string][]diskOp
}

func newPlatter() *platter {
	return &platter{content: map[int][]byte{}, pending: map[int][]diskOp{}, names: map[string]int{}, naming: map[string][]diskOp{}}
}

// do applies an operation.
func (p *platter) do(op diskOp) {
	switch op.kind {
	case diskWrite, diskTruncate:
		p.pending[op.file] = append(p.pending[op.file], op)
	case diskSync:
		for _, op := range p.pending[op.file] {
			p.content[op.file] = op.apply(p.content[op.file])
		}
		delete(p.pending, op.file)
	case diskSyncDir:
		for _, op := range p.naming[op.name] {
			rename(p.names, op)
		}
		delete(p.naming, op.name)
	default:
		dir := path.Dir(op.name)
		if dir == "." {
			dir = ""
		}
		p.naming[dir] = append(p.naming[dir], op)
	}
}

// rename does an operation that changes names.
func rename(names map[string]int, op diskOp) {
	switch op.kind {
	case diskUnlink:
		delete(names, op.name)
	case diskRename:
		if file, ok := names[op.name]; ok {
			delete(names, op.name)
			names[op.to] = file
		}
	default:
		names[op.name] = op.file
	}
}

// losses are what happens to changes that were not durable in a power failure.
type losses int

const (
	loseAll losses = iota
	loseNone
	loseSome // names in their order up to any, of writes any, of which any sectors
	lossesCount
)

// after writes a possible content of the disk after a power failure to a directory.
func (p *platter) after(l losses, rng *rand.Rand, dir string) error {
	names, content := maps.Clone(p.names), map[int][]byte{}
	for _, in := range slices.Sorted(maps.Keys(p.naming)) {
		kept := len(p.naming[in])
		if l != loseNone {
			kept = 0
		}
		if l == loseSome {
			kept = rng.IntN(len(p.naming[in]) + 1)
		}
		for _, op := range p.naming[in][:kept] {
			rename(names, op)
		}
	}
	for file, b := range p.content {
		content[file] = slices.Clone(b)
	}
	for _, file := range slices.Sorted(maps.Keys(p.pending)) {
		likely := rng.IntN(4)
		for _, op := range p.pending[file] {
			switch {
			case l == loseNone || l == loseSome && rng.IntN(4) < likely:
				content[file] = op.apply(content[file])
			case l == loseSome && rng.IntN(2) == 0:
				for _, part := range op.sectors() {
					if rng.IntN(2) == 0 {
						content[file] = part.apply(content[file])
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		full := filepath.Join(dir, name)
		if names[name] == 0 {
			if err := os.MkdirAll(full, 0o700); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(full, content[names[name]], 0o600); err != nil {
			return err
		}
	}
	return nil
}
