package layer

import (
	"archive/tar"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links in the resolution of one path.
const maxLinks = 40

// openParent returns the directory of an entry, which it makes if the archive has no entry for it.
// The directory stays open until the next call for another one. Nothing replaces it meanwhile,
// because only an entry in a directory above could do that.
func (u *unpacker) openParent(name string) (directory, error) {
	if name == "." {
		name = ""
	}
	if u.parent.fd >= 0 && u.parent.asked == name {
		return u.parent, nil
	}
	u.forgetParent()
	d, err := u.resolve(name, true)
	if err != nil {
		return directory{}, err
	}
	u.parent = d
	return d, nil
}

func (u *unpacker) forgetParent() {
	if u.parent.fd >= 0 {
		_ = unix.Close(u.parent.fd)
		u.parent.fd = -1
	}
}

// openStrict opens a directory beneath root by a path without symbolic links.
func (u *unpacker) openStrict(name string) (int, error) {
	return openBeneath(u.root, name)
}

func openBeneath(root int, name string) (int, error) {
	if name == "" {
		name = "."
	}
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(root, name, how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

// resolve opens a directory. It follows symbolic links of the layer inside the image, as in a chroot,
// and refuses a link that leads above the root or to a missing target. With create it makes missing
// directories.
func (u *unpacker) resolve(name string, create bool) (directory, error) {
	if name == "." {
		name = ""
	}
	fd, err := u.openStrict(name)
	if err == nil {
		return directory{asked: name, path: name, fd: fd}, nil
	}
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		return directory{}, err
	}
	real, err := u.walk(name, create)
	if err != nil {
		return directory{}, err
	}
	fd, err = u.openStrict(real)
	return directory{asked: name, path: real, fd: fd}, err
}

// walk resolves the path of a directory to one without symbolic links.
func (u *unpacker) walk(name string, create bool) (string, error) {
	todo := strings.Split(name, "/")
	real := ""
	links, fromLink := 0, 0 // fromLink: how many components of todo come from a symbolic link
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		ofLink := fromLink > 0
		if ofLink {
			fromLink--
		}
		switch c {
		case "", ".":
			continue
		case "..":
			if real == "" {
				return "", bad("layer has a path %s through a link that leads out of it", bounded(name))
			}
			real = strings.TrimPrefix(path.Dir(real), ".")
			continue
		}
		target, err := u.step(real, c, create && !ofLink)
		if err != nil {
			if errors.Is(err, unix.ENOENT) {
				return "", bad("layer has a path %s through a directory that it does not hold", bounded(name))
			}
			return "", err
		}
		if target == "" {
			real = path.Join(real, c)
			continue
		}
		if links++; links > maxLinks {
			return "", bad("layer has a path %s through too many links", bounded(name))
		}
		if strings.HasPrefix(target, "/") {
			real = ""
		}
		parts := strings.Split(target, "/")
		fromLink += len(parts)
		todo = append(parts, todo...)
	}
	return real, nil
}

// step resolves one component: it returns "" for a directory, and the target of a symbolic link.
func (u *unpacker) step(dir, name string, create bool) (string, error) {
	fd, err := u.openStrict(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	real := path.Join(dir, name)
	var st unix.Stat_t
	err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT) && create:
		u.implicit[real] = struct{}{}
		if err := u.keep(real); err != nil {
			return "", err
		}
		return "", u.makeImplicit(fd, name)
	case err != nil:
		return "", err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return "", nil
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, name, buf)
		return string(buf[:max(n, 0)]), err
	case isWhiteout(&st) && create:
		if err := unix.Unlinkat(fd, name, 0); err != nil {
			return "", err
		}
		if err := u.makeImplicit(fd, name); err != nil {
			return "", err
		}
		return "", u.markOpaque(fd, name, real)
	default:
		return "", bad("layer has a file %s where it also has a directory", bounded(real))
	}
}

func (u *unpacker) makeImplicit(fd int, name string) error {
	if err := unix.Mkdirat(fd, name, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(fd, name, 0o755, 0) // despite the umask
}

func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// attributes sets the attributes of a directory.
func (u *unpacker) attributes(dirfd int, base, real string, h *tar.Header) error {
	fd, err := unix.Openat(dirfd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, known := u.times[real]; !known {
		if err := u.keep(real); err != nil {
			return err
		}
	}
	u.times[real] = h.ModTime
	return u.fdAttributes(fd, h)
}

// fdAttributes sets owner, extended attributes and mode, in this order, because a change of owner
// clears the setuid bit and the capabilities.
func (u *unpacker) fdAttributes(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if !ok || !keepXattr(name) {
			continue
		}
		switch err := unix.Fsetxattr(fd, name, []byte(value), 0); {
		case err == nil, errors.Is(err, unix.ENOTSUP):
		case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EINVAL):
			return bad("layer has an extended attribute that cannot be kept: %w", err)
		default:
			return err
		}
	}
	return unix.Fchmod(fd, permissions(h))
}

// nodeAttributes sets the owner and time of a file that cannot be opened.
func (u *unpacker) nodeAttributes(parent directory, base string, h *tar.Header) error {
	if err := unix.Fchownat(parent.fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	ts := timespec(h.ModTime)
	return unix.UtimesNanoAt(parent.fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// keepXattr reports whether an extended attribute is kept. It drops attributes of overlayfs, with
// which an image could redirect a directory, and of the host's security modules.
func keepXattr(name string) bool {
	switch {
	case strings.HasPrefix(name, "user.overlay."):
		return false
	case strings.HasPrefix(name, "user."):
		return true
	default:
		return name == "security.capability" || name == "system.posix_acl_access" || name == "system.posix_acl_default"
	}
}

func permissions(h *tar.Header) uint32 { return uint32(h.Mode & 0o7777) }

// timespec converts a time. A time that some file systems cannot store becomes 0.
func timespec(t time.Time) unix.Timespec {
	if sec := t.Unix(); sec < 0 || sec > 1<<33 {
		return unix.Timespec{}
	}
	return unix.NsecToTimespec(t.UnixNano())
}

// removeTree removes a directory and everything in it without following links.
func removeTree(dirfd int, name string) error {
	dir, err := os.OpenRoot(fdPath(dirfd))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.RemoveAll(name)
}

// fdPath names an open file for calls that do not accept O_PATH descriptors.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
