package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
)

// maxOpenFiles bounds the open files of a Machine.
const maxOpenFiles = 256

// openFiles are the files of a Machine that the edge reads. They are closed when the Machine ends,
// because open files would block unmounting.
type openFiles struct {
	mu   sync.Mutex
	open map[*machineFile]struct{}
}

// machineFile is a file of a Machine. It hides the *os.File, because sendfile to a slow client
// would keep that in use when it is to be closed.
type machineFile struct {
	info os.FileInfo
	from *openFiles

	mu sync.Mutex // held while the file is read
	f  *os.File   // nil: closed
	at int64
}

// OpenMachineFile implements hangar.MachineGate. The path is resolved below the root of the
// Machine's file system, or of the volume that is mounted there, and never through a link, so that
// the Machine cannot lead it outside. Only regular files are opened.
func (mg *machineGate) OpenMachineFile(ctx context.Context, ref hangar.MachineRef, name string) (hangar.MachineFile, error) {
	m, err := mg.index.machine(ref)
	if err != nil {
		return nil, err
	}
	rec, err := mg.index.running(ref)
	if err != nil {
		return nil, err
	}
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return nil, noFile(name, nil)
	}
	m.files.mu.Lock()
	full := len(m.files.open) >= maxOpenFiles
	m.files.mu.Unlock()
	if full {
		return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonAtLimit, "machine %s has %d files open", m.id, maxOpenFiles)
	}
	if mountedByPlatform(path.Clean(name)) {
		return nil, noFile(name, nil)
	}
	root, rest, err := m.rootOf(ctx, rec, path.Clean(name))
	if err != nil {
		return nil, err
	}
	f, err := openRegular(root, rest)
	_ = unix.Close(root)
	if err != nil {
		return nil, noFile(name, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file := &machineFile{info: info, from: &m.files, f: f}
	if !m.files.add(file, func() bool { return m.rec.Load().Since.Equal(rec.Since) }) {
		return nil, errors.Join(refusal(hangar.VerbExec, m.rec.Load().Machine.State), file.Close())
	}
	return file, nil
}

// mountedByPlatform reports whether a path is covered by a mount of the platform. The root file
// system has only an empty mount point there.
func mountedByPlatform(name string) bool {
	for _, dir := range []string{hangar.GuestDir.Neutral, hangar.GuestDir.Original, "/dev", "/proc", "/sys"} {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	return slices.Contains(etcFiles(), name)
}

func noFile(name string, err error) error {
	return &hangar.Error{Code: hangar.CodeNotFound, Message: fmt.Sprintf("file not found: %q", name), Err: err}
}

// rootOf opens the host's directory for a path of a Machine: the root of the volume that is mounted
// above it, or of the root file system.
func (m *machine) rootOf(ctx context.Context, rec *journal.Record, name string) (root int, rest string, err error) {
	var volume hangar.VolumeID
	at := "/"
	for _, mount := range rec.Machine.Config.Mounts {
		target := path.Clean("/" + mount.Path)
		if (name == target || strings.HasPrefix(name, target+"/")) && len(target) >= len(at) {
			volume, at = hangar.VolumeID(mount.Volume), target
		}
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(name, at), "/")
	if at == "/" {
		rest = strings.TrimPrefix(name, "/")
	}
	if rest == "" {
		return -1, "", noFile(name, nil)
	}
	if volume != "" {
		root, err = m.store.o.Volumes.OpenRoot(volume)
		return root, rest, err
	}
	holder, ok := m.store.o.Driver.(driver.RootHolder)
	if !ok {
		return -1, "", hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "the files of machines of this driver are not on the server")
	}
	dir, err := holder.Root(ctx, rec.Handle)
	if err != nil {
		return -1, "", gone(err)
	}
	root, err = openDir(dir)
	return root, rest, err
}

func openDir(dir string) (int, error) {
	return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// openRegular opens a regular file below a directory. It resolves the path, checks the file, and
// only then opens that same file for reading. It never opens a FIFO or a device, because opening
// may have side effects.
func openRegular(root int, name string) (*os.File, error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), name), nil
}

// add registers a file for close, unless its Machine has ended since.
func (o *openFiles) add(f *machineFile, runs func() bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = make(map[*machineFile]struct{})
	}
	o.open[f] = struct{}{}
	return runs() // registered first, so that a later end of the Machine closes it
}

// close closes all files. Reads in progress fail.
func (o *openFiles) close() {
	o.mu.Lock()
	files := o.open
	o.open = nil
	o.mu.Unlock()
	for f := range files {
		_ = f.end() // read only
	}
}

// Size implements hangar.MachineFile. It is the size at the time of opening.
func (f *machineFile) Size() int64 { return f.info.Size() }

// ModTime implements hangar.MachineFile.
func (f *machineFile) ModTime() time.Time { return f.info.ModTime() }

// Read implements io.Reader.
func (f *machineFile) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return 0, os.ErrClosed
	}
	n, err := f.f.ReadAt(p, f.at)
	f.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (f *machineFile) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.info.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of a file")
	}
	f.at = offset
	return offset, nil
}

// Close implements io.Closer. It may be repeated.
func (f *machineFile) Close() error {
	f.from.mu.Lock()
	delete(f.from.open, f)
	f.from.mu.Unlock()
	return f.end()
}

func (f *machineFile) end() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f = nil
	return err
}
