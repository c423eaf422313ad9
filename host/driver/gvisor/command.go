package gvisor

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
)

// commandsOf returns all commands of a Machine, ordered by their process ids.
func commandsOf(spec *driver.Spec) []driver.Command {
	return append([]driver.Command{spec.Command}, spec.Others...)
}

// findCommands returns driver.ErrCommandNotFound unless the guest can execute all commands of spec:
// each one is a file in the root file system or in a mount, its user may execute it, and its
// interpreter exists.
func findCommands(root int, spec *driver.Spec) error {
	t := newTree(root, spec.Mounts)
	defer t.close()
	for _, cmd := range commandsOf(spec) {
		if err := t.findCommand(cmd); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) findCommand(cmd driver.Command) error {
	if len(cmd.Args) == 0 {
		return fmt.Errorf("%w: no command", driver.ErrCommandNotFound)
	}
	name := cmd.Args[0]
	t.steps = 0
	var why error
	for _, candidate := range candidates(name, cmd) {
		err := t.executable(candidate, cmd, maxInterpreters)
		if err == nil {
			return nil
		}
		if why == nil || !errors.Is(err, unix.ENOENT) {
			why = err // a file that cannot be executed explains more than a missing one
		}
	}
	if errors.Is(why, unix.ENOENT) || errors.Is(why, unix.ENOTDIR) {
		return fmt.Errorf("%w: %s", driver.ErrCommandNotFound, name)
	}
	return fmt.Errorf("%w: %w", driver.ErrCommandNotFound, why)
}

// maxCandidates limits the directories of PATH that are searched.
const maxCandidates = 256

// candidates are the paths at which to look for name.
func candidates(name string, cmd driver.Command) []string {
	if strings.Contains(name, "/") {
		return []string{absolute(name, cmd.Dir)}
	}
	search := defaultPath
	for _, e := range cmd.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	var out []string
	for dir := range strings.SplitSeq(search, ":") {
		if len(out) == maxCandidates {
			break
		}
		if dir == "" { // means the working directory
			dir = "."
		}
		out = append(out, absolute(dir+"/"+name, cmd.Dir))
	}
	return out
}

// absolute does not clean the path, because ".." is relative to the target of a link.
func absolute(name, dir string) string {
	if path.IsAbs(name) {
		return name
	}
	return "/" + dir + "/" + name
}

// maxInterpreters limits the chain of scripts that interpret one another, as in Linux.
const maxInterpreters = 4

// maxLinks limits the symbolic links in a path, as in Linux.
const maxLinks = 40

// maxSteps limits the parts of paths that are looked at in search of one command. The parts of each
// directory on its way are looked at again.
const maxSteps = 1 << 18

// errLongWay: a path leads through so many directories that it is not followed to its end.
var errLongWay = errors.New("its path leads through too many directories")

// tree is the file system that the guest will see. The sandbox has not made the mounts yet, so tree
// looks into their sources.
type tree struct {
	root   int
	mounts []mountPoint // in mount order
	steps  int
}

type mountPoint struct {
	target string // with all links resolved
	source int    // -1: it could not be opened
}

func newTree(root int, mounts []driver.Mount) *tree {
	t := &tree{root: root}
	for _, m := range mounts {
		target, _, _ := t.walk(m.Target)
		source, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			source = -1
		}
		t.mounts = append(t.mounts, mountPoint{target, source})
	}
	return t
}

func (t *tree) close() {
	for _, m := range t.mounts {
		if m.source >= 0 {
			_ = unix.Close(m.source)
		}
	}
}

// walk follows name through all links and mounts. It returns the resolved path and its status. For a
// missing file, the path is where the file would be.
func (t *tree) walk(name string) (string, unix.Stat_t, error) {
	where := "/"
	st, err := t.stat(where)
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		switch {
		case next == "" || next == ".":
			continue
		case err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return where, st, unix.ENOTDIR
		case err != nil && (next == ".." || errors.Is(err, errLongWay)):
			return where, st, err
		case err != nil: // continue: a mount may be below a missing path
			where = path.Join(where, next)
			st, err = t.stat(where)
			continue
		case next == "..":
			where = path.Dir(where)
			st, err = t.stat(where)
			continue
		}
		entry := path.Join(where, next)
		st, err = t.stat(entry)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			where = entry
			continue
		}
		if links++; links > maxLinks {
			return where, st, unix.ELOOP
		}
		target, linkErr := t.readlink(entry)
		if linkErr != nil {
			return where, st, linkErr
		}
		if path.IsAbs(target) {
			where = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
		st, err = t.stat(where)
	}
	return where, st, err
}

// base returns the directory or file of the host that holds name, and the path from there. name has
// no links.
func (t *tree) base(name string) (fd int, rest string) {
	for _, m := range slices.Backward(t.mounts) {
		if rest, ok := strings.CutPrefix(name, m.target); ok && (rest == "" || rest[0] == '/' || m.target == "/") {
			return m.source, strings.TrimLeft(rest, "/")
		}
	}
	return t.root, strings.TrimLeft(name, "/")
}

// open returns a descriptor of name itself, even if it is a link.
func (t *tree) open(name string) (int, error) {
	fd, rest := t.base(name)
	if fd < 0 {
		return -1, unix.ENOENT
	}
	if rest == "" {
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	return unix.Openat2(fd, rest, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
}

func (t *tree) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if t.steps += 1 + strings.Count(name, "/"); t.steps > maxSteps {
		return st, errLongWay
	}
	fd, err := t.open(name)
	if err != nil {
		return st, err
	}
	defer func() { _ = unix.Close(fd) }()
	return st, unix.Fstat(fd, &st)
}

func (t *tree) readlink(name string) (string, error) {
	fd, err := t.open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	return string(b[:max(n, 0)]), err
}

// executable returns an error unless the guest could execute name.
func (t *tree) executable(name string, cmd driver.Command, depth int) error {
	where, st, err := t.walk(name)
	if err != nil {
		return fmt.Errorf("%s: %w", path.Clean(name), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !mayExecute(&st, cmd) {
		return fmt.Errorf("%s: %w", where, unix.EACCES)
	}
	if depth == 0 {
		return fmt.Errorf("%s: %w", where, unix.ELOOP)
	}
	interpreter, err := t.interpreter(where)
	if err != nil || interpreter == "" {
		return err
	}
	if err := t.executable(absolute(interpreter, cmd.Dir), cmd, depth-1); err != nil {
		return fmt.Errorf("%s: interpreter %s: %s", where, interpreter, rootCause(err)) //nolint:errorlint // the command exists: this is not its ENOENT
	}
	return nil
}

// rootCause returns the innermost error.
func rootCause(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// mayExecute checks the permissions of the file as gVisor does, which knows no access control lists.
func mayExecute(st *unix.Stat_t, cmd driver.Command) bool {
	const own, group, others = 0o100, 0o010, 0o001
	switch {
	case cmd.UID == 0:
		return st.Mode&(own|group|others) != 0
	case st.Uid == cmd.UID:
		return st.Mode&own != 0
	case st.Gid == cmd.GID || slices.Contains(cmd.Groups, st.Gid):
		return st.Mode&group != 0
	default:
		return st.Mode&others != 0
	}
}

// interpreter returns the program that the kernel would run for the file: the one that a script
// names, or the dynamic linker of a binary; empty: none.
func (t *tree) interpreter(name string) (string, error) {
	fd, err := t.open(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd)) // the same file, whatever its name refers to now
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	head := make([]byte, 256) // as much as the kernel reads
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if script, ok := bytes.CutPrefix(head[:n], []byte("#!")); ok {
		line, _, _ := bytes.Cut(script, []byte("\n"))
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			return "", nil
		}
		return fields[0], nil
	}
	binary, err := elf.NewFile(f)
	if err != nil {
		return "", nil
	}
	for _, p := range binary.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > unix.PathMax {
			continue
		}
		linker := make([]byte, p.Filesz)
		if _, err := p.ReadAt(linker, 0); err != nil {
			return "", nil
		}
		linker, _, _ = bytes.Cut(linker, []byte{0})
		return string(linker), nil
	}
	return "", nil
}
