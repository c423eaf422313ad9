package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
)

// initPath is the path of the guest's init. It is in a layer of its own above those of the image,
// which needs neither a mount in the sandbox nor a copy per Machine.
const initPath = "/.hangar/init"

// layerFile is a program of the layer that the driver adds to every root file system.
type layerFile struct {
	path    string
	content []byte
}

// layerFiles returns the files of the layer, and a digest of them all.
func (d *Driver) layerFiles() (files []layerFile, digest string, err error) {
	files = []layerFile{{initPath, guestinit.Binary()}}
	if d.opts.Guest != "" {
		content, err := os.ReadFile(d.opts.Guest)
		if err != nil {
			return nil, "", err
		}
		files = append(files, layerFile{hangar.SSHProgram, content})
	}
	h := sha256.New()
	for _, f := range files {
		_, _ = h.Write(f.content)
	}
	return files, hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// defaultPath is the search path of commands without a PATH in the environment.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// openLayer makes the layer that the driver adds, unless it exists. Its name contains a hash of its
// content, because running Machines keep using an older one.
func (d *Driver) openLayer() error {
	files, digest, err := d.layerFiles()
	if err != nil {
		return err
	}
	d.layer = filepath.Join(d.opts.Root, "init-"+digest)
	return writeLayer(d.layer, files)
}

func writeLayer(dir string, files []layerFile) error {
	if _, err := os.Stat(dir); err == nil {
		return nil // the name exists only once the layer is complete
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".init-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, f := range files {
		name := filepath.Join(tmp, f.path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // in the guest, world-readable
			return err
		}
		if err := os.WriteFile(name, f.content, 0o555); err != nil { //nolint:gosec // in the guest, world-readable
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil { //nolint:gosec // in the guest, world-readable
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

func rootfsDir(dir string) string { return filepath.Join(dir, "rootfs") }

// mountRoot mounts the root file system of spec at rootfsDir. It names the layers by descriptors,
// because mount(2) limits the options to one page, which a few dozen long paths exceed.
func (d *Driver) mountRoot(spec *driver.Spec) (err error) {
	if len(spec.Root.Layers) == 0 {
		return errors.New("root file system without layers")
	}
	upper, work := filepath.Join(spec.Root.Writable, "upper"), filepath.Join(spec.Root.Writable, "work")
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	for _, dir := range []string{upper, work, rootfsDir(spec.Dir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // "/" of the guest is world-readable
			return err
		}
	}
	if err := copyMode(spec.Root.Layers[len(spec.Root.Layers)-1], upper); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	fdPath := func(dir string) (string, error) {
		f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return "", err
		}
		files = append(files, f)
		return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), nil
	}
	lower := make([]string, 0, 1+len(spec.Root.Layers))
	for i := range 1 + len(spec.Root.Layers) { // the kernel wants the highest first
		dir := d.layer
		if i > 0 {
			dir = spec.Root.Layers[len(spec.Root.Layers)-i]
		}
		p, err := fdPath(dir)
		if err != nil {
			return err
		}
		lower = append(lower, p)
	}
	u, err := fdPath(upper)
	if err != nil {
		return err
	}
	w, err := fdPath(work)
	if err != nil {
		return err
	}
	options := "lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + u + ",workdir=" + w
	target := rootfsDir(spec.Dir)
	unmountAll(target) // left by an interrupted start
	// Executable, because the sandbox maps the guest's programs from here.
	if err := unix.Mount(d.mountMark(string(spec.ID)), target, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return fmt.Errorf("mount root file system of %d layers: %w", len(spec.Root.Layers), err)
	}
	return nil
}

// mountMark is the source of a Machine's mounts. It shows which Machine a mount belongs to.
func (d *Driver) mountMark(id string) string { return d.opts.CgroupParent + "/" + id }

// copyMode copies the owner and the mode of the directory from to the directory to.
func copyMode(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: from, Err: err}
	}
	if err := os.Chown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(to, st.Mode&0o7777)
}

// takeRoot reports whether Suspend has left the root file system of the Machine in dir mounted. It
// does so once: the caller then owns the mount.
func (d *Driver) takeRoot(id hangar.MachineID, dir string) bool {
	d.mu.Lock()
	kept := d.kept[id]
	delete(d.kept, id)
	d.mu.Unlock()
	var st unix.Statfs_t
	return kept && unix.Statfs(rootfsDir(dir), &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// unmountAll removes all mounts from target.
func unmountAll(target string) {
	for unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
}

// inRoot opens name as the guest would see it. Links, even absolute ones, are resolved within root. A
// file that it makes has the mode 0600. The kernel gives up at a ".." while something is renamed or
// mounted anywhere on the server: inRoot tries again.
func inRoot(root int, name string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for {
		fd, err := unix.Openat2(root, strings.TrimLeft(name, "/"), how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// prepareRoot makes the directories that programs rely on and an image may lack: /root, /tmp, /run
// and /run/lock. /run is not a file system in memory, because images put directories there for their
// services.
func prepareRoot(root int) error {
	if err := checkMountPoints(root); err != nil {
		return err
	}
	if err := makeDirectory(root, "root", 0o700); err != nil {
		return err
	}
	if err := makeDirectory(root, "tmp", 0o1777); err != nil {
		return err
	}
	if err := makeDirectory(root, "run", 0o755); err != nil {
		return err
	}
	if err := makeDirectory(root, "run/lock", 0o1777); err != nil {
		return err
	}
	return keepTmp(root)
}

// checkMountPoints returns an error if the image has something other than a directory where the
// sandbox mounts a file system. The engine would end without an explanation.
func checkMountPoints(root int) error {
	for _, name := range []string{"proc", "sys", "dev", "tmp"} {
		var st unix.Stat_t
		if err := unix.Fstatat(root, name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return &fs.PathError{Op: "stat", Path: "/" + name, Err: err}
		}
		fd, err := inRoot(root, name, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
				"the image has something at /%s that is no directory and leads to none, where a file system is mounted", name)
		}
		_ = unix.Close(fd)
	}
	return nil
}

// makeDirectory makes the directory name in root unless the image has something there.
func makeDirectory(root int, name string, mode uint32) error {
	if fd, err := inRoot(root, name, unix.O_PATH); !errors.Is(err, unix.ENOENT) {
		if err == nil {
			_ = unix.Close(fd)
		}
		return nil
	}
	parent, err := inRoot(root, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil // the image has something else in its place
	}
	defer func() { _ = unix.Close(parent) }()
	base := path.Base(name)
	if err := unix.Mkdirat(parent, base, mode); errors.Is(err, unix.EEXIST) {
		return nil // a dangling link of the image
	} else if err != nil {
		return fmt.Errorf("make /%s: %w", name, err)
	}
	if err := unix.Fchmodat(parent, base, mode, 0); err != nil { // regardless of the umask
		return fmt.Errorf("make /%s: %w", name, err)
	}
	return nil
}

// keepTmp makes sure that /tmp is not empty: gVisor mounts a file system in memory over an empty one.
// The guest's init removes the file again.
func keepTmp(root int) error {
	tmp, err := inRoot(root, "tmp", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) {
		return nil // the image has no directory there
	}
	if err != nil {
		return fmt.Errorf("open /tmp: %w", err)
	}
	dir := os.NewFile(uintptr(tmp), "/tmp")
	defer dir.Close()
	if names, err := dir.Readdirnames(1); err == nil && len(names) > 0 {
		return nil
	}
	fd, err := unix.Openat(tmp, guestinit.KeepTmp, unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("keep /tmp: %w", err)
	}
	return unix.Close(fd)
}
