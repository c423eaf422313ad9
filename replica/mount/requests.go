package mount

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// String implements fuse.RawFileSystem.
func (s *FS) String() string { return "hangar-db" }

// attr fills in the attributes of a file.
func (s *FS) attr(n *inode, out *fuse.Attr) error {
	if n.kind != plain {
		b, ok := s.content(n)
		if !ok {
			return os.ErrNotExist
		}
		*out = fuse.Attr{Ino: n.id, Mode: syscall.S_IFREG | 0o444, Nlink: 1, Size: uint64(len(b))}
		if n.kind == halt {
			out.Mode |= 0o222 // an exclusive lock needs a file that is open for writing
		}
		return nil
	}
	var st unix.Stat_t
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if n.f != nil {
		err = unix.Fstat(int(n.f.Fd()), &st)
	} else {
		err = unix.Lstat(s.path(n.name), &st)
	}
	if err != nil {
		return err
	}
	fill(out, &st)
	out.Ino = n.id
	return nil
}

func fill(out *fuse.Attr, st *unix.Stat_t) {
	*out = fuse.Attr{
		Size: uint64(st.Size), Blocks: uint64(st.Blocks), Mode: st.Mode, Nlink: uint32(st.Nlink),
		Atime: uint64(st.Atim.Sec), Atimensec: uint32(st.Atim.Nsec),
		Mtime: uint64(st.Mtim.Sec), Mtimensec: uint32(st.Mtim.Nsec),
		Ctime: uint64(st.Ctim.Sec), Ctimensec: uint32(st.Ctim.Nsec),
		Owner: fuse.Owner{Uid: st.Uid, Gid: st.Gid},
	}
}

// root fills in the attributes of the directory.
func (s *FS) root(out *fuse.Attr) error {
	var st unix.Stat_t
	if err := unix.Stat(s.c.Files, &st); err != nil {
		return err
	}
	fill(out, &st)
	out.Ino = fuse.FUSE_ROOT_ID
	out.Mode = syscall.S_IFDIR | 0o555
	if s.c.Databases.Writable() {
		out.Mode = syscall.S_IFDIR | 0o777
	}
	return nil
}

// Lookup implements fuse.RawFileSystem.
func (s *FS) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	n, err := s.node(name)
	if err == nil {
		err = s.attr(n, &out.Attr)
	}
	if err != nil {
		return s.statusOf(err)
	}
	out.NodeId = n.id
	return fuse.OK
}

// Forget implements fuse.RawFileSystem.
func (s *FS) Forget(id, _ uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.inodes[id]
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone && n.opens == 0 {
		delete(s.inodes, id)
	}
}

// GetAttr implements fuse.RawFileSystem.
func (s *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		return s.statusOf(s.root(&out.Attr))
	}
	n := s.inode(in.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	return s.statusOf(s.attr(n, &out.Attr))
}

// SetAttr implements fuse.RawFileSystem.
func (s *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		return fuse.EPERM
	}
	n := s.inode(in.NodeId)
	if n == nil || n.kind != plain {
		return fuse.EPERM
	}
	if err := s.setAttr(n, in); err != nil {
		return s.statusOf(err)
	}
	return s.statusOf(s.attr(n, &out.Attr))
}

func (s *FS) setAttr(n *inode, in *fuse.SetAttrIn) error {
	if err := s.acquire(n); err != nil {
		return err
	}
	defer s.release(n)
	if size, ok := in.GetSize(); ok {
		if err := s.truncate(n, int64(size)); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if err := unix.Fchmod(int(n.f.Fd()), mode&0o7777); err != nil {
			return err
		}
	}
	uid, hasUID := in.GetUID()
	gid, hasGID := in.GetGID()
	if hasUID || hasGID {
		u, g := -1, -1
		if hasUID {
			u = int(uid)
		}
		if hasGID {
			g = int(gid)
		}
		if err := unix.Fchown(int(n.f.Fd()), u, g); err != nil {
			return err
		}
	}
	return setTimes(n.f, in)
}

func setTimes(f *os.File, in *fuse.SetAttrIn) error {
	atime, hasA := in.GetATime()
	mtime, hasM := in.GetMTime()
	if !hasA && !hasM {
		return nil
	}
	spec := func(t time.Time, has bool) unix.Timespec {
		if !has {
			return unix.Timespec{Nsec: unix.UTIME_OMIT}
		}
		return unix.NsecToTimespec(t.UnixNano())
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+itoa(int(f.Fd())), []unix.Timespec{spec(atime, hasA), spec(mtime, hasM)}, 0)
}

// truncate changes the size of a file. For a rollback journal, size 0 is a commit.
func (s *FS) truncate(n *inode, size int64) error {
	if n.db == nil {
		return n.f.Truncate(size)
	}
	switch n.file {
	case database.Journal:
		if size < sqlite.JournalHeaderSize {
			if err := s.captureJournal(n.db); err != nil {
				return err
			}
		}
	case database.Main:
		if err := s.beforeWrite(n); err != nil {
			return err
		}
	case database.WAL, database.SHM:
	}
	if err := n.f.Truncate(size); err != nil {
		return err
	}
	if n.file == database.WAL && size == 0 {
		n.db.Removed(database.WAL)
	}
	return nil
}

// mayWrite reports whether programs may create and write a file of a database on this node. db is nil for
// a file of no database.
func (s *FS) mayWrite(db *database.DB, f database.File) bool {
	// Readers need the index, and create an empty WAL if there is none.
	return f == database.WAL || f == database.SHM || s.c.Databases.Writable() || db != nil && s.c.Databases.Writes(db)
}

// Create implements fuse.RawFileSystem.
func (s *FS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	of, f := database.Split(name)
	if name == primaryName || name == lagName || !filepath.IsLocal(name) {
		return fuse.EACCES
	}
	db, err := s.c.Databases.Database(of, false)
	if err != nil {
		return s.statusOf(err)
	}
	if !s.mayWrite(db, f) {
		return fuse.EACCES
	}
	made, err := os.OpenFile(s.path(name), os.O_RDWR|os.O_CREATE, os.FileMode(in.Mode&0o777))
	if err != nil {
		return s.statusOf(err)
	}
	err = made.Chown(int(in.Uid), int(in.Gid))
	if errors.Is(err, os.ErrPermission) {
		err = nil // without root, all files belong to this process
	}
	if err = errors.Join(err, made.Close()); err != nil {
		return s.statusOf(err)
	}
	n, err := s.node(name)
	if err != nil {
		return s.statusOf(err)
	}
	if status := s.openNode(n, in.Flags, &out.OpenOut); status != fuse.OK {
		return status
	}
	out.NodeId = n.id
	return s.statusOf(s.attr(n, &out.Attr))
}

// Open implements fuse.RawFileSystem.
func (s *FS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := s.inode(in.NodeId)
	if n == nil {
		return fuse.ENOENT
	}
	return s.openNode(n, in.Flags, out)
}

func (s *FS) openNode(n *inode, flags uint32, out *fuse.OpenOut) fuse.Status {
	h := &handle{node: n, write: flags&syscall.O_ACCMODE != syscall.O_RDONLY}
	if n.kind != plain {
		if h.write && n.kind != halt {
			return fuse.EACCES
		}
		var ok bool
		if h.content, ok = s.content(n); !ok {
			return fuse.ENOENT
		}
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	} else {
		if h.write && !s.mayWrite(n.db, n.file) {
			return fuse.EACCES // SQLite then opens the file read-only
		}
		if err := s.acquire(n); err != nil {
			return s.statusOf(err)
		}
		switch {
		case n.backing != 0:
			out.OpenFlags, out.BackingID = fuse.FOPEN_PASSTHROUGH, n.backing
		case n.file != database.Journal && n.db != nil:
			out.OpenFlags = fuse.FOPEN_KEEP_CACHE
		case n.file == database.Journal:
			out.OpenFlags = fuse.FOPEN_DIRECT_IO
		}
	}
	s.mu.Lock()
	s.nextID++
	out.Fh = s.nextID
	s.handles[out.Fh] = h
	s.mu.Unlock()
	return fuse.OK
}

// Read implements fuse.RawFileSystem.
func (s *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h := s.handle(in.Fh)
	if h == nil {
		return nil, fuse.EBADF
	}
	if h.node.kind != plain {
		if in.Offset >= uint64(len(h.content)) {
			return fuse.ReadResultData(nil), fuse.OK
		}
		return fuse.ReadResultData(buf[:copy(buf, h.content[in.Offset:])]), fuse.OK
	}
	n, err := h.node.f.ReadAt(buf[:min(len(buf), int(in.Size))], int64(in.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, s.statusOf(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write implements fuse.RawFileSystem.
func (s *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h := s.handle(in.Fh)
	if h == nil || !h.write || h.node.kind != plain {
		return 0, fuse.EBADF
	}
	n := h.node
	off := int64(in.Offset)
	if n.db != nil {
		switch n.file {
		case database.Main:
			if err := s.beforeWrite(n); err != nil {
				return 0, s.statusOf(err)
			}
			n.db.Dirty(off, int64(len(data)))
		case database.Journal:
			// Zeros over a valid header are a commit.
			if off == 0 && !sqlite.JournalValid(data) && journalValid(n.f) {
				if err := s.captureJournal(n.db); err != nil {
					return 0, s.statusOf(err)
				}
			}
		case database.WAL, database.SHM:
		}
	}
	written, err := n.f.WriteAt(data, off)
	if err != nil {
		return uint32(written), s.statusOf(err)
	}
	return uint32(written), fuse.OK
}

func journalValid(f io.ReaderAt) bool {
	var b [sqlite.JournalHeaderSize]byte
	_, err := f.ReadAt(b[:], 0)
	return err == nil && sqlite.JournalValid(b[:])
}

// Release implements fuse.RawFileSystem.
func (s *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	s.mu.Lock()
	h := s.handles[in.Fh]
	delete(s.handles, in.Fh)
	s.mu.Unlock()
	if h == nil {
		return
	}
	if h.node.kind == halt {
		h.node.locks.ReleaseHandle(in.Fh)
		guard{s}.unhalt(h.node)
	}
	if h.node.kind != plain {
		return
	}
	h.node.locks.ReleaseHandle(in.Fh)
	h.node.flocks.ReleaseHandle(in.Fh)
	s.release(h.node)
}

// Fsync implements fuse.RawFileSystem.
func (s *FS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := s.handle(in.Fh)
	if h == nil || h.node.kind != plain {
		return fuse.OK
	}
	if in.FsyncFlags&1 != 0 {
		return s.statusOf(unix.Fdatasync(int(h.node.f.Fd())))
	}
	return s.statusOf(h.node.f.Sync())
}

// FsyncDir implements fuse.RawFileSystem.
func (s *FS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	d, err := os.Open(s.c.Files)
	if err != nil {
		return s.statusOf(err)
	}
	defer d.Close()
	return s.statusOf(d.Sync())
}

// Unlink implements fuse.RawFileSystem.
func (s *FS) Unlink(_ <-chan struct{}, _ *fuse.InHeader, name string) fuse.Status {
	n, err := s.node(name)
	if err != nil {
		return s.statusOf(err)
	}
	// A program that was writing when the node stopped being the primary rolls back, and then removes its
	// journal.
	if n.kind != plain || !s.mayWrite(n.db, n.file) && n.file != database.Journal {
		return fuse.EACCES
	}
	if n.db != nil {
		switch n.file {
		case database.Journal:
			err = s.captureJournal(n.db)
		case database.Main:
			err = n.db.Drop()
		case database.WAL, database.SHM:
		}
		if err != nil {
			return s.statusOf(err)
		}
	}
	if err := os.Remove(s.path(name)); err != nil {
		return s.statusOf(err)
	}
	s.forget(name)
	if n.db != nil {
		n.db.Removed(n.file)
	}
	return fuse.OK
}

// Access implements fuse.RawFileSystem.
func (s *FS) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.OK }

// StatFs implements fuse.RawFileSystem.
func (s *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.c.Files, &st); err != nil {
		return s.statusOf(err)
	}
	out.FromStatfsT(&st)
	return fuse.OK
}

// OpenDir implements fuse.RawFileSystem.
func (s *FS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

// ReadDir implements fuse.RawFileSystem.
func (s *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	names, err := s.list()
	if err != nil {
		return s.statusOf(err)
	}
	for i := int(in.Offset); i < len(names); i++ {
		if !out.AddDirEntry(fuse.DirEntry{Name: names[i], Mode: syscall.S_IFREG, Off: uint64(i + 1)}) {
			break
		}
	}
	return fuse.OK
}

// Flush implements fuse.RawFileSystem. The kernel calls it when a program closes a file or ends.
func (s *FS) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	n := s.inode(in.NodeId)
	if n != nil && n.kind == halt {
		n.locks.ReleaseOwner(in.LockOwner)
		guard{s}.unhalt(n)
	}
	if n == nil || n.kind != plain {
		return fuse.OK
	}
	s.cutOff(n, in.LockOwner)
	n.locks.ReleaseOwner(in.LockOwner)
	return fuse.OK
}
