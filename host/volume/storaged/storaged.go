// Package storaged runs QEMU's storage daemon: a process per image, which decrypts it and
// offers it as a file by FUSE, from which a loop device can be made.
//
// A Daemon outlives the process that started it: Adopt reconnects to it, and Kill ends it and removes
// what it left. Its directory identifies it, and has its sockets, the exported file and its last
// output.
//
// When the user of the file syncs data, the data is on the disk of the image before the sync returns:
// the file's fsync becomes a flush of every layer down to fdatasync of the image. A killed daemon
// loses unsynced data only.
//
// A Daemon can show the image as of one moment while it is written to: Prepare, Cut, Show, Drop, in
// that order. After Cut, each overwrite first copies the old data, in ciphertext, to a file beside
// the image; if that fails, the view is lost but not the write. The daemon counts the changes since
// some earlier cuts.
//
// The key reaches the daemon through a pipe. Methods may be called from many goroutines, except for
// Prepare, Cut, Show and Drop, which belong to one goroutine.
package storaged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Program is the program that runs as a storage daemon.
const Program = "qemu-storage-daemon"

// Errors of daemons.
var (
	ErrGone       = errors.New("the storage daemon ended")     // by itself
	ErrNotRunning = errors.New("no storage daemon is running") // for a directory
)

// Files in the directory of a daemon.
const (
	qmpSocket  = "qmp"
	nbdSocket  = "nbd"
	exportFile = "disk"
	pidFile    = "pid"
	logFile    = "log"
	controlDir = "fusectl" // exists briefly
)

// MaxSocketDir is the most bytes of a directory's path that leave room for its sockets in a socket
// address.
const MaxSocketDir = 100

// Nodes of a daemon's block graph, and exports.
const (
	nodeDisk   = "disk"  // the image
	nodePlain  = "plain" // the content
	nodeCow    = "cow"   // the file for blocks that were overwritten since the cut
	nodeFilter = "cbw"   // copies these blocks to cow; between disk and plain
	nodeAccess = "acc"   // the image at the cut
	nodeTop    = "top"   // the content, without hole punching
	secretID   = "key"
	exportID   = "volume"
)

// ExportImage is the name of the NBD export of a view: the content of the image, the parts that were
// ever written, and the changed parts.
const ExportImage = "image"

var absentText = regexp.MustCompile(`(?i)not found|does not exist|cannot find|is not found|failed to find`)

// Spec is what a daemon serves.
type Spec struct {
	Dir    string // the daemon's own; Start makes it
	Image  string
	Secret []byte // passphrase of the image; nil: not encrypted
}

// Daemon is a running storage daemon.
type Daemon struct {
	spec    Spec
	qmp     *qmp
	pid     int
	proc    *os.File // pidfd
	gone    chan struct{}
	leaving chan struct{} // closed by Leave
	done    chan struct{} // closed when the goroutine has ended
	left    sync.Once
}

// startPatience bounds the start of a daemon, which may derive a key meanwhile, on a busy server.
const startPatience = 3 * time.Minute

// Start starts a daemon. Its directory must not have remains of an earlier one. The end of ctx ends the start, but not
// a daemon that has started.
func Start(ctx context.Context, spec Spec) (*Daemon, error) {
	if len(spec.Dir) > MaxSocketDir {
		return nil, fmt.Errorf("start the storage daemon: the path %s is too long for sockets", spec.Dir)
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(spec.path(exportFile), nil, 0o600); err != nil {
		return nil, err
	}
	cmd, err := spec.command()
	if err != nil {
		return nil, err
	}
	defer closeAll(cmd.ExtraFiles)
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := run(starting, cmd); err != nil {
		said, readErr := os.ReadFile(spec.path(logFile))
		why := strings.TrimSpace(string(said))
		switch {
		case starting.Err() != nil:
			err = fmt.Errorf("start the storage daemon: %w", err)
		case why != "" || readErr != nil:
			err = fmt.Errorf("start the storage daemon: %w: %s", err, why)
		default: // a killed daemon leaves no message
			err = fmt.Errorf("start the storage daemon: %w: %w", ErrGone, err)
		}
		return nil, errors.Join(err, reapFailed(spec.Dir))
	}
	if err := errors.Join(reapStarter(spec.Dir), spec.prepare()); err != nil {
		if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOTCONN) { // says the export of a killed daemon
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		return nil, fmt.Errorf("start the storage daemon: %w", err)
	}
	return Adopt(ctx, spec)
}

// run runs the program until it returns, which it does with --daemonize when the daemon is ready or has failed. When
// ctx ends first, run kills the program.
func run(ctx context.Context, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	var err error
	ended := make(chan struct{})
	go func() { // reaps it, even if run does not wait for that
		defer close(ended)
		err = cmd.Wait()
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill() // fails if it has ended
	select {
	case <-ended:
		return ctx.Err()
	case <-time.After(patience): // it waits for the disk
		return fmt.Errorf("%w, and process %d does not end", ctx.Err(), cmd.Process.Pid)
	}
}

func (s Spec) path(name string) string { return filepath.Join(s.Dir, name) }

// command returns the daemon's command. The caller closes its ExtraFiles.
func (s Spec) command() (*exec.Cmd, error) {
	said, err := os.Create(s.path(logFile))
	if err != nil {
		return nil, err
	}
	plain := "driver=raw,node-name=" + nodePlain + ",file=" + nodeDisk
	var secret []string
	files := []*os.File{}
	if s.Secret != nil {
		pipe, err := filled(s.Secret)
		if err != nil {
			return nil, errors.Join(err, said.Close())
		}
		files = append(files, pipe)
		secret = []string{"--object", "secret,id=" + secretID + ",file=/dev/fd/3"}
		plain = "driver=luks,node-name=" + nodePlain + ",file=" + nodeDisk + ",key-secret=" + secretID
	}
	argv := append([]string{
		"--daemonize", "--pidfile", s.path(pidFile),
		"--chardev", "socket,id=qmp,server=on,wait=off,path=" + escape(s.path(qmpSocket)), "--monitor", "qmp",
	}, secret...)
	argv = append(argv,
		"--blockdev", "driver=file,node-name="+nodeDisk+",discard=unmap,aio=threads,filename="+escape(s.Image),
		"--blockdev", plain+",discard=unmap",
		"--nbd-server", "addr.type=unix,addr.path="+escape(s.path(nbdSocket)),
		"--blockdev", "driver=blkdebug,node-name="+nodeTop+",image="+nodePlain+",discard=unmap,"+noHoles,
		"--export", "type=fuse,id="+exportID+",node-name="+nodeTop+",writable=on,growable=off,mountpoint="+escape(s.path(exportFile)))
	cmd := exec.Command(Program, argv...) //nolint:noctx // the daemon outlives this process
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = append(files, said)
	return cmd, nil
}

// escape quotes a value for QEMU's options.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// filled returns the read end of a pipe that contains b, which is less than a page.
func filled(b []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Adopt reconnects to the daemon of a directory. It returns ErrNotRunning only if there is none.
func Adopt(ctx context.Context, spec Spec) (*Daemon, error) {
	pid, proc, err := find(spec.Dir)
	if err != nil {
		return nil, err
	}
	q, err := dialQMP(ctx, spec.path(qmpSocket))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the storage daemon, process %d: %w", pid, err), proc.Close())
	}
	d := &Daemon{spec: spec, qmp: q, pid: pid, proc: proc, gone: make(chan struct{}), leaving: make(chan struct{}), done: make(chan struct{})}
	go d.watch()
	return d, nil
}

// watch closes gone when the process ends, until Leave. A failed poll does not prove its end.
func (d *Daemon) watch() {
	defer close(d.done)
	for {
		if awaitEnd(d.proc) == nil {
			close(d.gone)
			return
		}
		select {
		case <-d.leaving:
			return
		case <-time.After(time.Second):
		}
	}
}

// Leave disconnects from the daemon, which continues. It may be repeated.
func (d *Daemon) Leave() (err error) {
	d.left.Do(func() {
		close(d.leaving)
		err = errors.Join(d.qmp.close(), d.proc.Close())
		<-d.done
	})
	return err
}

// File is the path of the exported file.
func (d *Daemon) File() string { return d.spec.path(exportFile) }

// NBD is the path of the socket on which views are shown.
func (d *Daemon) NBD() string { return d.spec.path(nbdSocket) }

// PID is the id of the daemon's process.
func (d *Daemon) PID() int { return d.pid }

// Gone is closed when the daemon has ended.
func (d *Daemon) Gone() <-chan struct{} { return d.gone }

// Size is the size of the content, in bytes.
func (d *Daemon) Size() (int64, error) {
	fi, err := os.Stat(d.File())
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// Resize makes image and file larger.
func (d *Daemon) Resize(ctx context.Context, size int64) error {
	return d.qmp.do(ctx, "block_resize", args{"node-name": nodeTop, "size": size}, nil)
}

// Quit ends the daemon once everything is on disk. Its file must not be open.
func (d *Daemon) Quit(ctx finish.Context) error {
	err := d.qmp.unexport(ctx, exportID)
	if err == nil {
		err = d.qmp.do(ctx, "quit", nil, nil)
	}
	if err != nil {
		return errors.Join(err, d.Leave())
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-d.gone:
	case <-timer.C:
		err = fmt.Errorf("the storage daemon, process %d, does not end", d.pid)
	}
	return errors.Join(err, d.Leave(), clean(d.spec.Dir))
}

// clean removes the files of a daemon that has ended.
func clean(dir string) error {
	var errs []error
	file := filepath.Join(dir, exportFile)
	// A killed daemon leaves a dead mount.
	for {
		err := unix.Unmount(file, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", file, err))
		}
		break
	}
	if err := unix.Unmount(filepath.Join(dir, controlDir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	for _, name := range []string{controlDir, exportFile, qmpSocket, nbdSocket, pidFile, logFile} {
		errs = append(errs, durable.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}
