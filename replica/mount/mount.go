// Package mount shows the databases of a node in a FUSE directory, and sees all of SQLite's
// operations on them.
//
// The kernel reads and writes the write-ahead log and its index directly, where it supports passthrough
// (Linux 6.9, for root of the initial user namespace). Reads and writes of the database and its journal,
// and all locks, go through this process. A transaction is captured when SQLite commits it: when SQLite
// releases the write lock of the WAL, or invalidates the rollback journal. No other program can write
// before that. If this process dies, no program can read or write any more.
//
// The directory is flat. Beside the databases it has these files: .primary, the name of the primary
// while this node follows one; .lag, how many milliseconds the node is behind; NAME-pos, the position of
// a database; and on a primary NAME-synced, the transaction that enough replicas have, and the epoch.
// NAME-lock is only for locks: a program that locks its byte HaltByte may write to the database on a
// replica.
package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/superfly/ltx"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/locks"
)

// Databases are the databases to mount.
type Databases interface {
	// Database returns the database with a name. If it does not exist, Database creates an empty one if
	// create is set, and otherwise returns nil.
	Database(name string, create bool) (*database.DB, error)
	// Named reports whether a database may have a name.
	Named(name string) bool
	// Writable reports whether this node is the primary.
	Writable() bool
	// Writes reports whether programs may write to a database: this node is the primary, or has the right by Halt.
	Writes(db *database.DB) bool
	// Halt acquires the right to write to a database from the primary, until Unhalt, and waits until this node has
	// caught up with the primary. It must not be called concurrently for a database.
	Halt(ctx context.Context, db *database.DB) error
	// Unhalt returns the right to the primary. It may be repeated. It does nothing without a Halt.
	Unhalt(ctx context.Context, db *database.DB)
	// Admits reports whether a program may begin to write to a database.
	Admits(db *database.DB) bool
	// Replicated waits until enough replicas have the last transaction. It is called after the transaction was
	// captured, before the program learns that it is committed. After an error, too few replicas may have it.
	Replicated(ctx context.Context, db *database.DB) error
	// Synced returns the last transaction of a database that enough replicas have, and the epoch. ok is false on
	// a replica.
	Synced(db *database.DB) (id ltx.TXID, epoch uint64, ok bool)
	// Primary returns the name of the primary that this node follows.
	Primary() (string, bool)
	// Lag returns how far this node is behind the primary.
	Lag() time.Duration
}

// Config configures an FS.
type Config struct {
	Dir        string // mount point
	Files      string // directory with the files of the databases
	AllowOther bool   // other users than that of this process see the directory
	// NoPassthrough makes all reads and writes go through this process, as on an old kernel.
	NoPassthrough bool
	Databases     Databases
	Log           *slog.Logger
}

// FS is a mounted directory.
type FS struct {
	fuse.RawFileSystem // implements the operations that SQLite never uses with ENOSYS

	c           Config
	server      *fuse.Server
	passthrough bool
	served      chan struct{}

	mu      sync.Mutex
	names   map[string]*inode // by name
	inodes  map[uint64]*inode // by ID
	handles map[uint64]*handle
	nextID  uint64
}

// inode is one file of the directory. It outlives the file's removal while the file is open.
type inode struct {
	id   uint64
	name string
	kind kind
	db   *database.DB // nil for a file of no database
	file database.File

	locks  locks.Table
	flocks locks.Table

	mu      sync.Mutex
	f       *os.File // open while opens is not 0
	opens   int
	backing int32 // backing ID of f in the kernel; 0: none
	gone    bool  // unlinked
}

type kind int

const (
	plain   kind = iota // a file of the directory below
	primary             // .primary
	lag                 // .lag
	pos                 // NAME-pos
	synced              // NAME-synced
	halt                // NAME-lock
)

const (
	primaryName = ".primary"
	lagName     = ".lag"
	posSuffix   = "-pos"

	syncedSuffix = "-synced"
	haltSuffix   = "-lock"
)

// handle is one open file.
type handle struct {
	node    *inode
	content []byte // of a virtual file
	write   bool
}

// New returns an FS that is not mounted yet.
func New(c Config) *FS {
	return &FS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		c:             c,
		served:        make(chan struct{}),
		names:         map[string]*inode{},
		inodes:        map[uint64]*inode{},
		handles:       map[uint64]*handle{},
		nextID:        fuse.FUSE_ROOT_ID,
	}
}

// Mount mounts the directory and begins to serve it.
func (s *FS) Mount() error {
	if err := s.sweep(); err != nil {
		return err
	}
	options := &fuse.MountOptions{
		FsName:        "hangar-db",
		Name:          "hangar-db",
		AllowOther:    s.c.AllowOther,
		EnableLocks:   true,
		DirectMount:   true,
		DisableXAttrs: true,
		MaxWrite:      1 << 20,
		// Only writes through the mount change a file's data, or this process reports the change.
		ExplicitDataCacheControl: true,
		DisableReadDirPlus:       true,
		PanicHandler: func(cause any) fuse.Status {
			s.c.Log.Error("request of the mount panicked", "cause", cause)
			return fuse.EIO
		},
	}
	server, err := fuse.NewServer(s, s.c.Dir, options)
	if err != nil {
		return fmt.Errorf("mount %s: %w", s.c.Dir, err)
	}
	s.server = server
	s.passthrough = !s.c.NoPassthrough && s.probe()
	go func() {
		defer close(s.served)
		server.Serve()
	}()
	if err := server.WaitMount(); err != nil {
		return errors.Join(fmt.Errorf("mount %s: %w", s.c.Dir, err), server.Unmount())
	}
	return nil
}

// sweep removes the mount of a killed process.
func (s *FS) sweep() error {
	if _, err := os.Stat(s.c.Dir); errors.Is(err, unix.ENOTCONN) {
		if err := unix.Unmount(s.c.Dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the old mount at %s: %w", s.c.Dir, err)
		}
	}
	return os.MkdirAll(s.c.Dir, 0o755) //nolint:gosec // programs of the Machine run as other users
}

// probe reports whether the kernel supports passthrough.
func (s *FS) probe() bool {
	f, err := os.CreateTemp(s.c.Files, ".probe-*")
	if err != nil {
		return false
	}
	defer f.Close()
	defer os.Remove(f.Name())
	id, errno := s.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
	if errno != 0 || id == 0 {
		return false
	}
	_ = s.server.UnregisterBackingFd(id) // it ends with the mount
	return true
}

// Passthrough reports whether the kernel reads and writes WAL and index directly.
func (s *FS) Passthrough() bool { return s.passthrough }

// Shared reports whether this process and SQLite see the same index.
func (s *FS) Shared() bool { return s.passthrough }

// Close unmounts the directory. Programs with open files keep the detached mount alive, and get errors.
func (s *FS) Close() error {
	if s.server == nil {
		return nil
	}
	err := s.server.Unmount()
	if err != nil {
		// A program uses it. MNT_DETACH frees the directory; the end of this process ends the rest.
		if err = unix.Unmount(s.c.Dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", s.c.Dir, err)
		}
		return nil
	}
	<-s.served
	return nil
}

// Locks returns the locks of a file of a database, for this process.
func (s *FS) Locks(db string, f database.File) (locks.Ranges, error) {
	n, err := s.node(db + f.Suffix())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return n.locks.Own(), nil
}

// Written invalidates bytes of a file in the kernel's cache.
func (s *FS) Written(db string, f database.File, off, n int64) {
	s.mu.Lock()
	node := s.names[db+f.Suffix()]
	s.mu.Unlock()
	if node != nil && s.server != nil {
		// It fails if the kernel does not know the file.
		_ = s.server.InodeNotify(node.id, off, n)
	}
}

// Gone forgets a file that this process has removed.
func (s *FS) Gone(db string, f database.File) { s.forget(db + f.Suffix()) }

// forget frees the name of a file.
func (s *FS) forget(name string) {
	s.mu.Lock()
	n := s.names[name]
	delete(s.names, name)
	s.mu.Unlock()
	if n != nil {
		n.mu.Lock()
		n.gone = true
		n.mu.Unlock()
	}
}

func (s *FS) path(name string) string { return filepath.Join(s.c.Files, name) }

// scratch reports whether a name is one of SQLite's files outside of a database: a journal of
// several databases, or a temporary file.
func scratch(name string) bool {
	if strings.HasPrefix(name, "etilqs_") || strings.HasPrefix(name, ".") {
		return true
	}
	i := strings.LastIndex(name, "-mj")
	return i > 0 && strings.Trim(name[i+3:], "0123456789ABCDEF") == "" && len(name)-i >= 9
}

// node returns the inode with a name. The error is os.ErrNotExist if there is no such file.
func (s *FS) node(name string) (*inode, error) {
	s.mu.Lock()
	n := s.names[name]
	s.mu.Unlock()
	if n != nil {
		return n, nil
	}
	switch {
	case name == primaryName:
		return s.add(name, primary, nil), nil
	case name == lagName:
		return s.add(name, lag, nil), nil
	case strings.HasSuffix(name, posSuffix):
		if db, err := s.c.Databases.Database(strings.TrimSuffix(name, posSuffix), false); err == nil && db != nil {
			return s.add(name, pos, db), nil
		}
	case strings.HasSuffix(name, syncedSuffix):
		if db, err := s.c.Databases.Database(strings.TrimSuffix(name, syncedSuffix), false); err == nil && db != nil {
			return s.add(name, synced, db), nil
		}
	case strings.HasSuffix(name, haltSuffix):
		if db, err := s.c.Databases.Database(strings.TrimSuffix(name, haltSuffix), false); err == nil && db != nil {
			return s.add(name, halt, db), nil
		}
	}
	if _, err := os.Lstat(s.path(name)); err != nil {
		return nil, err
	}
	return s.adopt(name)
}

// adopt makes the inode of an existing file.
func (s *FS) adopt(name string) (*inode, error) {
	of, _ := database.Split(name)
	if scratch(name) || !s.c.Databases.Named(of) {
		return s.add(name, plain, nil), nil
	}
	db, err := s.c.Databases.Database(of, true)
	if err != nil {
		return nil, err
	}
	return s.add(name, plain, db), nil
}

// add makes an inode, unless the name has one.
func (s *FS) add(name string, k kind, db *database.DB) *inode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.names[name]; n != nil {
		return n
	}
	s.nextID++
	n := &inode{id: s.nextID, name: name, kind: k, db: db}
	_, n.file = database.Split(name)
	s.names[name] = n
	s.inodes[n.id] = n
	return n
}

func (s *FS) inode(id uint64) *inode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inodes[id]
}

func (s *FS) handle(id uint64) *handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[id]
}

// list returns the names of all files.
func (s *FS) list() ([]string, error) {
	entries, err := os.ReadDir(s.c.Files)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue
		}
		names = append(names, e.Name())
		if _, f := database.Split(e.Name()); f == database.Main && !scratch(e.Name()) {
			names = append(names, e.Name()+posSuffix)
			if s.c.Databases.Writable() {
				names = append(names, e.Name()+syncedSuffix)
			}
		}
	}
	names = append(names, lagName)
	if _, ok := s.c.Databases.Primary(); ok {
		names = append(names, primaryName)
	}
	slices.Sort(names)
	return names, nil
}

// content returns the content of a virtual file. ok is false if it does not exist now.
func (s *FS) content(n *inode) (b []byte, ok bool) {
	switch n.kind {
	case primary:
		name, ok := s.c.Databases.Primary()
		return []byte(name + "\n"), ok
	case lag:
		return fmt.Appendf(nil, "%+010d\n", min(s.c.Databases.Lag().Milliseconds(), 1<<31-1)), true
	case pos:
		return []byte(n.db.Pos().String() + "\n"), true
	case synced:
		id, epoch, ok := s.c.Databases.Synced(n.db)
		return fmt.Appendf(nil, "%s/%016x\n", id, epoch), ok
	case halt:
		return nil, true
	case plain:
	}
	return nil, false
}

// acquire opens the file of an inode, or counts another use.
func (s *FS) acquire(n *inode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.f == nil {
		f, err := os.OpenFile(s.path(n.name), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		n.f = f
		if s.passthrough && n.direct() {
			id, errno := s.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
			if errno != 0 {
				n.f = nil
				return errors.Join(fmt.Errorf("register %s with the kernel: %w", n.name, errno), f.Close())
			}
			n.backing = id
		}
	}
	n.opens++
	return nil
}

// direct reports whether the kernel may read and write a file without this process.
func (n *inode) direct() bool {
	return n.db != nil && (n.file == database.WAL || n.file == database.SHM)
}

// release ends one use of a file.
func (s *FS) release(n *inode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opens--; n.opens > 0 {
		return
	}
	if n.backing != 0 {
		_ = s.server.UnregisterBackingFd(n.backing) // it ends with the mount
		n.backing = 0
	}
	_ = n.f.Close() // nothing is buffered
	n.f = nil
}

// statusOf converts an error to a status for the kernel.
func (s *FS) statusOf(err error) fuse.Status {
	var errno syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, database.ErrFenced):
		return fuse.Status(unix.EROFS)
	case errors.Is(err, locks.ErrBusy):
		return fuse.EAGAIN
	case errors.As(err, &errno):
		return fuse.Status(errno)
	case errors.Is(err, os.ErrNotExist):
		return fuse.ENOENT
	case errors.Is(err, context.Canceled):
		return fuse.EINTR
	}
	s.c.Log.Error("request of the mount failed", "error", err)
	return fuse.EIO
}
