package guest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// maxSteps is how many parts of paths are looked at in search of one file. The parts of
// each directory on its way are looked at again, in each layer.
const maxSteps = 1 << 16

// search looks for one file in the layers of an image.
type search struct {
	layers []string
	name   string
	steps  int
}

// openInLayers opens a regular file as the Machine will see it, before its layers are
// mounted: of several layers the topmost counts, what a layer removes is gone, and
// links lead through all of them but never out. It answers fs.ErrNotExist, and
// CodeInvalid when the way to the file is too long.
func openInLayers(layers []string, name string) (*os.File, error) {
	s := &search{layers: layers, name: name}
	where, todo := "", strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			where = strings.TrimPrefix(path.Dir("/"+where), "/")
			continue
		}
		where = path.Join(where, next)
		fd, st, err := s.topmost(where)
		if err != nil {
			return nil, err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(fd, "", target)
			_ = unix.Close(fd)
			if links++; err != nil || links > maxLinks {
				return nil, fs.ErrNotExist
			}
			where = strings.TrimPrefix(path.Dir("/"+where), "/")
			if path.IsAbs(string(target[:n])) {
				where = ""
			}
			todo = append(strings.Split(string(target[:n]), "/"), todo...)
			continue
		}
		if len(todo) > 0 {
			_ = unix.Close(fd)
			continue
		}
		defer func() { _ = unix.Close(fd) }()
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, fs.ErrNotExist
		}
		// Reopening through /proc opens exactly the file that was just looked at.
		return os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	}
	return nil, fs.ErrNotExist
}

// topmost returns a descriptor of name, whose directories are no links, in the
// highest layer that has it.
func (s *search) topmost(name string) (fd int, st unix.Stat_t, err error) {
	for _, layer := range slices.Backward(s.layers) {
		fd, st, last, err := s.inLayer(layer, name)
		if err == nil || last {
			return fd, st, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return -1, st, err
		}
	}
	return -1, st, fs.ErrNotExist
}

// inLayer looks into one layer. With an error, last says that the layers below do not
// count either: this one removes or replaces what they have.
func (s *search) inLayer(layer, name string) (fd int, st unix.Stat_t, last bool, err error) {
	dir, err := unix.Open(layer, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, true, &fs.PathError{Op: "open", Path: layer, Err: err}
	}
	for part := range strings.SplitSeq(name, "/") {
		if s.steps++; s.steps > maxSteps {
			_ = unix.Close(dir)
			return -1, st, true, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
				"the image's /%s leads through too many directories", s.name)
		}
		last = last || opaque(dir)
		next, err := unix.Openat2(dir, part, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH,
		})
		_ = unix.Close(dir)
		if err != nil {
			// What is no directory here hides the directories below.
			hidden := last || errors.Is(err, unix.ENOTDIR)
			if hidden || errors.Is(err, unix.ENOENT) {
				return -1, st, hidden, fs.ErrNotExist
			}
			return -1, st, true, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		dir = next
	}
	if err := unix.Fstat(dir, &st); err != nil {
		_ = unix.Close(dir)
		return -1, st, true, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 { // a whiteout
		_ = unix.Close(dir)
		return -1, st, true, fs.ErrNotExist
	}
	return dir, st, last, nil
}

// opaque reports whether the directory hides the ones below it.
func opaque(dir int) bool {
	var value [1]byte
	n, err := unix.Getxattr("/proc/self/fd/"+strconv.Itoa(dir), "trusted.overlay.opaque", value[:])
	return err == nil && n == 1 && value[0] == 'y'
}
