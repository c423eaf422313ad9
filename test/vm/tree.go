package vm

import (
	"bufio"
	"context"
	"debug/elf"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed init.sh
var initScript string

// writeTree writes the file system that a machine boots from, as an archive of the form
// that the kernel unpacks ("newc", see cpio(5)).
func writeTree(ctx context.Context, name string, k *image, g Guest, test Test) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	a := &archive{w: bufio.NewWriterSize(f, 1<<20), dirs: map[string]bool{}, files: map[string]bool{}}
	modules, err := k.load(ctx, g.Modules)
	if err != nil {
		return err
	}
	var order strings.Builder
	for _, m := range modules {
		a.add("/modules/"+m.name+".ko", fs.FileMode(0o644), m.content)
		fmt.Fprintln(&order, m.name)
	}
	a.add("/modules/order", 0o644, []byte(order.String()))
	a.add("/init", 0o755, []byte(initScript))
	var command strings.Builder
	for _, arg := range slices.Concat([]string{"env"}, test.Env, []string{testPath}, test.Args) {
		fmt.Fprintf(&command, "'%s' ", strings.ReplaceAll(arg, "'", `'\''`))
	}
	a.add("/command", 0o644, []byte(command.String()+"\n"))
	a.copy(test.Binary, testPath)
	for program, pkg := range g.Programs {
		if err := a.program(program, pkg); err != nil {
			return err
		}
	}
	if err := a.program("busybox", Tools["busybox"]); err != nil {
		return err
	}
	for _, file := range g.Files {
		a.copy(file, file)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/disk", "/bin", "/sbin"} {
		a.dir(dir)
	}
	// The kernel alone opens a console for the first process, before devtmpfs.
	a.entry("/dev/console", modeChar|0o600, 5, 1, nil)
	if err := a.end(); err != nil {
		return err
	}
	return f.Close()
}

// program adds a program of this server, where it is, with the libraries that it needs.
func (a *archive) program(name, pkg string) error {
	found, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%w: apt-get install %s", err, pkg)
	}
	a.copy(found, path.Join("/bin", name))
	return a.libraries(found)
}

// libraryDirs are where the loader looks.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// libraries adds the libraries and the loader that a program or library needs.
func (a *archive) libraries(name string) error {
	f, err := elf.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			loader := make([]byte, p.Filesz)
			if _, err := p.ReadAt(loader, 0); err != nil {
				return err
			}
			at := strings.TrimRight(string(loader), "\x00")
			a.copy(at, at)
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, library := range needed {
		found := ""
		for _, dir := range libraryDirs {
			if _, err := os.Stat(filepath.Join(dir, library)); err == nil {
				found = filepath.Join(dir, library)
				break
			}
		}
		if found == "" {
			return fmt.Errorf("%s needs %s, which is in none of %s", name, library, strings.Join(libraryDirs, " "))
		}
		if a.files[found] {
			continue
		}
		a.copy(found, found)
		if err := a.libraries(found); err != nil {
			return err
		}
	}
	return nil
}

// Types of files in an archive.
const (
	modeDir  = 0o040000
	modeChar = 0o020000
	modeFile = 0o100000
)

// archive writes files, each once, and the directories that they are in. The first error
// ends it and is returned by end.
type archive struct {
	w           *bufio.Writer
	written     int64
	inode       int
	dirs, files map[string]bool
	err         error
}

// copy adds a file of this server.
func (a *archive) copy(from, to string) {
	content, err := os.ReadFile(from)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	a.add(to, 0o755, content)
}

func (a *archive) add(name string, mode fs.FileMode, content []byte) {
	if a.files[name] {
		return
	}
	a.files[name] = true
	a.dir(path.Dir(name))
	a.entry(name, modeFile|uint32(mode.Perm()), 0, 0, content)
}

func (a *archive) dir(name string) {
	if name == "/" || a.dirs[name] {
		return
	}
	a.dir(path.Dir(name))
	a.dirs[name] = true
	a.entry(name, modeDir|0o755, 0, 0, nil)
}

func (a *archive) entry(name string, mode uint32, major, minor int, content []byte) {
	name = strings.TrimPrefix(name, "/")
	a.inode++
	a.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0, name)
	a.pad()
	a.write(content)
	a.pad()
}

func (a *archive) end() error {
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return errors.Join(a.err, a.w.Flush())
}

func (a *archive) pad() { a.write(make([]byte, (4-a.written%4)%4)) }

func (a *archive) printf(format string, args ...any) { a.write(fmt.Appendf(nil, format, args...)) }

func (a *archive) write(b []byte) {
	n, err := a.w.Write(b)
	a.written += int64(n)
	a.err = errors.Join(a.err, err)
}
