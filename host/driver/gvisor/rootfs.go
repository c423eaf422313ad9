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

	"github.com/hangar-platform/hangar/host/driver"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
)

// initPath is where the guest finds its init: in a layer of its own, above those
// of the image, which costs neither a mount in the sandbox nor a copy per Machine.
const initPath = "/.hangar/init"

// defaultPath is where commands are looked up without a PATH in the environment.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (d *Driver) initLayer() string {
	digest := sha256.Sum256(guestinit.Binary())
	return filepath.Join(d.opts.Root, "init-"+hex.EncodeToString(digest[:6]))
}

func writeInitLayer(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, initPath)); err == nil {
		return nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".init-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(tmp, initPath)
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // in the guest, for everybody
		return err
	}
	if err := os.WriteFile(file, guestinit.Binary(), 0o555); err != nil { //nolint:gosec // in the guest, for everybody
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil { //nolint:gosec // in the guest, for everybody
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

func rootfsDir(dir string) string { return filepath.Join(dir, "rootfs") }

// mountRoot mounts the root file system of spec at rootfsDir. The layers are named
// by descriptors: mount(2) takes one page of options, which a few dozen long paths
// would not fit in.
func (d *Driver) mountRoot(spec *driver.Spec) (err error) {
	if len(spec.Root.Layers) == 0 {
		return errors.New("root file system without layers")
	}
	upper, work := filepath.Join(spec.Root.Writable, "upper"), filepath.Join(spec.Root.Writable, "work")
	if spec.Root.Reset {
		if err := os.RemoveAll(upper); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	for _, dir := range []string{upper, work, rootfsDir(spec.Dir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // "/" of the guest is for everybody
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
		dir := d.initLayer()
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
	unmountAll(target) // left by a start that was interrupted
	if err := unix.Mount(d.mountMark(string(spec.ID)), target, "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount root file system of %d layers: %w", len(spec.Root.Layers), err)
	}
	return nil
}

// mountMark is the source of the mounts of a Machine: it tells whose they are.
func (d *Driver) mountMark(id string) string { return d.opts.CgroupParent + "/" + id }

// copyMode gives the directory to the owner and the mode of from.
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

// unmountAll unmounts everything from target.
func unmountAll(target string) {
	for unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
}

// inRoot opens name as the guest would see it: links, even absolute ones, end
// within root.
func inRoot(root int, name string, flags uint64) (int, error) {
	return unix.Openat2(root, strings.TrimLeft(name, "/"), &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// prepareTmp makes sure that the root file system has a /tmp with something in it:
// gVisor mounts a file system in memory over an empty one. The guest's init removes
// the file again.
func prepareTmp(root int) error {
	tmp, err := inRoot(root, "tmp", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(root, "tmp", 0o1777); err != nil {
			return fmt.Errorf("make /tmp: %w", err)
		}
		if err := unix.Fchmodat(root, "tmp", 0o1777, 0); err != nil {
			return fmt.Errorf("make /tmp: %w", err)
		}
		tmp, err = inRoot(root, "tmp", unix.O_RDONLY|unix.O_DIRECTORY)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) {
		return nil // the image wants it so
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

// findCommand answers driver.ErrCommandNotFound unless the command of spec is a
// file that can be executed, in the root file system or in a mount.
func findCommand(root int, spec *driver.Spec) error {
	if len(spec.Command.Args) == 0 {
		return fmt.Errorf("%w: no command", driver.ErrCommandNotFound)
	}
	name := spec.Command.Args[0]
	for _, candidate := range candidates(name, spec.Command) {
		if executable(root, candidate, spec.Mounts) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", driver.ErrCommandNotFound, name)
}

// candidates are the paths at which name may be.
func candidates(name string, cmd driver.Command) []string {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join("/", cmd.Dir, name)
		}
		return []string{name}
	}
	search := defaultPath
	for _, e := range cmd.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(search, ":") {
		if !path.IsAbs(dir) {
			dir = path.Join("/", cmd.Dir, dir)
		}
		out = append(out, path.Join(dir, name))
	}
	return out
}

// executable reports whether the guest could execute name. Under a mount, which is
// made by the sandbox and not there yet, it looks at the source instead.
func executable(root int, name string, mounts []driver.Mount) bool {
	for _, m := range mounts {
		target := path.Clean(m.Target)
		if name != target && !strings.HasPrefix(name, strings.TrimRight(target, "/")+"/") {
			continue
		}
		src, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		defer func() { _ = unix.Close(src) }()
		if name == target {
			return executableFile(src)
		}
		return executable(src, strings.TrimPrefix(name, target), nil)
	}
	fd, err := inRoot(root, name, unix.O_PATH)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return executableFile(fd)
}

func executableFile(fd int) bool {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
