package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Directory has the attributes of a directory.
type Directory struct {
	Path    string            `json:"path"`
	Mode    uint32            `json:"mode"` // permissions with setuid, setgid and sticky
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	ModTime int64             `json:"mod_time"` // nanoseconds since 1970
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
}

// Inherit returns the attributes that the layers below (lowest first) give to the implicit
// directories of the unpacked layer own and to their parents. It returns nothing if all are as Unpack
// made them. For example, a layer with tmp/file but no entry for tmp must not change the mode of
// /tmp. Overlayfs shows a merged directory as its topmost layer has it, so Shape writes the result
// into a layer of its own above own.
func Inherit(own string, implicit, lower []string) ([]Directory, error) {
	wanted := map[string]Directory{}
	for _, name := range implicit {
		d, ok, err := visible(name, lower)
		if err != nil {
			return nil, err
		}
		if ok && !d.plain() {
			wanted[name] = d
		}
	}
	for name := range maps.Clone(wanted) {
		for p := path.Dir(name); p != "."; p = path.Dir(p) {
			if _, ok := wanted[p]; ok {
				continue
			}
			from := []string{own}
			if _, ok := slices.BinarySearch(implicit, p); ok {
				from = lower
			}
			d, ok, err := visible(p, from)
			if err != nil {
				return nil, err
			}
			if ok {
				wanted[p] = d
			}
		}
	}
	return slices.SortedFunc(maps.Values(wanted), func(a, b Directory) int { return strings.Compare(a.Path, b.Path) }), nil
}

// plain reports whether a directory has the attributes that Unpack gives an implicit one.
func (d Directory) plain() bool {
	return d.Mode == 0o755 && d.UID == 0 && d.GID == 0 && len(d.Xattrs) == 0
}

// visible looks a directory up in a stack of layers, as overlayfs would.
func visible(name string, lower []string) (Directory, bool, error) {
	for _, dir := range slices.Backward(lower) {
		root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return Directory{}, false, err
		}
		d, ok, hidden, err := lookup(root, name)
		_ = unix.Close(root)
		if err != nil || ok || hidden {
			return d, ok, err
		}
	}
	return Directory{}, false, nil
}

// lookup finds name in one layer. hidden reports that the layer hides the layers below.
func lookup(root int, name string) (d Directory, ok, hidden bool, err error) {
	fd, err := openBeneath(root, name)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		d, err = inspect(fd, name)
		return d, err == nil, false, err
	}
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		return d, false, false, err
	}
	if !errors.Is(err, unix.ENOENT) {
		return d, false, true, nil // the path leads through a file, link or whiteout
	}
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		fd, err := openBeneath(root, p)
		if err != nil {
			continue
		}
		value, err := getxattr(fd, xattrOpaque)
		_ = unix.Close(fd)
		if err == nil && string(value) == "y" {
			return d, false, true, nil
		}
	}
	return d, false, false, nil
}

func inspect(fd int, name string) (Directory, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Directory{}, err
	}
	d := Directory{
		Path: name, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()).UnixNano(),
	}
	list := make([]byte, 64<<10)
	n, err := unix.Listxattr(fdPath(fd), list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return d, err
	}
	for key := range strings.SplitSeq(string(list[:max(n, 0)]), "\x00") {
		if !keepXattr(key) {
			continue
		}
		value, err := getxattr(fd, key)
		if err != nil {
			return d, err
		}
		if d.Xattrs == nil {
			d.Xattrs = map[string][]byte{}
		}
		d.Xattrs[key] = value
	}
	return d, nil
}

func getxattr(fd int, key string) ([]byte, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Getxattr(fdPath(fd), key, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// ShapeID names the layer that Shape makes from dirs: equal shapes have equal names.
func ShapeID(dirs []Directory) string {
	raw, _ := json.Marshal(dirs) // cannot fail: the values are plain and map keys are sorted
	sum := sha256.Sum256(raw)
	return "shape:" + hex.EncodeToString(sum[:])
}

// Shape makes the directories that Inherit returned, in the empty directory dir.
func Shape(dir string, dirs []Directory) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, d := range dirs {
		if err := root.MkdirAll(filepath.FromSlash(d.Path), 0o755); err != nil {
			return err
		}
	}
	for _, d := range slices.Backward(dirs) { // children first, to keep their parents' times
		if err := shapeOne(root, d); err != nil {
			return err
		}
	}
	return nil
}

func shapeOne(root *os.Root, d Directory) error {
	f, err := root.Open(d.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fd := int(f.Fd())
	if err := unix.Fchown(fd, int(d.UID), int(d.GID)); err != nil {
		return err
	}
	for key, value := range d.Xattrs {
		if err := unix.Fsetxattr(fd, key, value, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	if err := unix.Fchmod(fd, d.Mode); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(d.ModTime)
	return unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), []unix.Timespec{ts, ts}, 0)
}
