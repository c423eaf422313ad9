// Package ext4 makes, checks, repairs and grows ext4 file systems on block devices with the
// programs of e2fsprogs.
//
// Make writes as little as possible. ext4 never reads blocks that it knows to be unused, so the noise
// in unwritten parts of an encrypted device does no harm, and a sparse image stays sparse. Repair
// makes a file system that was not unmounted mountable again, or returns e2fsck's reason why it
// cannot. Except for Make, every function may be killed at any moment and repeated. After a killed
// Grow only RepairAll repairs the file system, and after a killed GrowCompact only Undo does.
//
// No function may be used on a mounted device, except ReadSuperblock, GrowMounted, Usage, Freeze and
// Thaw.
package ext4

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/oomscore"
)

// The programs in use, all of the Debian package e2fsprogs.
const (
	makeProgram  = "mke2fs"
	checkProgram = "e2fsck"
	growProgram  = "resize2fs"
	undoProgram  = "e2undo"
)

// Programs returns the programs that must be installed.
func Programs() []string { return []string{makeProgram, checkProgram, growProgram, undoProgram} }

// ErrUnrepairable reports that the file system must not be mounted. The error has e2fsck's reason.
var ErrUnrepairable = errors.New("the file system cannot be repaired")

// ErrNone reports that the device has no ext4.
var ErrNone = errors.New("no ext4 file system")

// mountOptions are for the file system of a tenant. An error makes it read-only, even an error of
// writing content, which would otherwise be reported only once. Unused inode tables are not written.
const (
	mountFlags   = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_RELATIME
	mountOptions = "errors=remount-ro,data_err=abort,noinit_itable"
)

// Make makes a file system on a device.
func Make(ctx context.Context, device string) error {
	// All space is the user's, without root's usual share of 5 %. The inode tables of a terabyte would
	// take 16 GB, so they and the journal are initialized on first use.
	_, err := run(ctx, makeProgram, "-q", "-F", "-t", "ext4", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", device)
	return err
}

// MakeCompact makes a file system in a sparse file that nothing else uses. It writes only some 120 KB.
// The file system cannot grow while it is mounted, and its journal is small: 16 MB.
func MakeCompact(ctx context.Context, path string) error {
	// Without backups of the superblock, all written blocks are in one place; backups would only help
	// after the disk was overwritten. There is no UUID, because the result is copied.
	_, err := runWith(ctx, notMounted, makeProgram, "-q", "-F", "-t", "ext4", "-m", "0", "-b", "4096", "-J", "size=16", "-U", "clear",
		"-O", "^resize_inode,sparse_super2",
		"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1,num_backup_sb=0,packed_meta_blocks=1", path)
	return err
}

// notMounted are variables with which the programs do not look whether a file is mounted. They would ask
// the kernel for the file of each loop device, and so hang when the storage of any volume does.
var notMounted = []string{"EXT2FS_PRETEND_RO_MOUNT=1", "EXT2FS_PRETEND_ROOTFS=1"}

// IsMounted reports whether a file system of any kind is mounted on a directory, which may be
// missing. It only examines that directory, because a host may have thousands of mounts, and does not
// wait for a disk.
func IsMounted(dir string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "statx", Path: dir, Err: err}
	case st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return false, fmt.Errorf("%s: a kernel before Linux 5.8 cannot tell whether it is mounted", dir)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// MountDetached mounts a device without a mount point. The mount lasts as long as the returned file,
// through which it is reachable, unless move_mount(2) attaches it. Nothing on it can be executed, and
// freed space is discarded.
func MountDetached(device string) (*os.File, error) {
	f, err := mountDetached(device)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", device, err)
	}
	return f, nil
}

func mountDetached(device string) (*os.File, error) {
	config, err := unix.Fsopen(string(hangar.FSExt4), unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(config) }()
	if err := unix.FsconfigSetString(config, "source", device); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	for option := range strings.SplitSeq(mountOptions+",discard", ",") {
		key, value, _ := strings.Cut(option, "=")
		if value == "" {
			err = unix.FsconfigSetFlag(config, key)
		} else {
			err = unix.FsconfigSetString(config, key, value)
		}
		if err != nil {
			return nil, os.NewSyscallError("fsconfig "+key, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, os.NewSyscallError("fsconfig create", err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// Mount mounts a device on a directory.
func Mount(device, dir string) error {
	if err := unix.Mount(device, dir, string(hangar.FSExt4), mountFlags, mountOptions); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	return nil
}

// Superblock has fields of a file system's superblock.
type Superblock struct {
	Blocks    int64
	BlockSize int64 // bytes
	Clean     bool  // unmounted without a known error
	Journal   bool  // the journal must be replayed
}

// Size is the size of the file system in bytes.
func (s Superblock) Size() int64 { return s.Blocks * s.BlockSize }

// Offsets in the superblock, which is at superblockAt.
const (
	superblockAt    = 1024
	superblockSize  = 1024
	blocksLow       = 0x4
	logBlockSize    = 0x18
	magicAt         = 0x38
	stateAt         = 0x3a
	incompatible    = 0x60
	blocksHigh      = 0x150
	magic           = 0xef53
	stateClean      = 1
	stateErrors     = 2
	featureJournal  = 0x4
	feature64Bit    = 0x80
	maxLogBlockSize = 6
)

// ReadSuperblock reads the superblock of a device, or returns ErrNone.
func ReadSuperblock(device string) (Superblock, error) {
	f, err := os.Open(device)
	if err != nil {
		return Superblock{}, err
	}
	defer f.Close()
	raw := make([]byte, superblockSize)
	if _, err := f.ReadAt(raw, superblockAt); err != nil {
		return Superblock{}, err
	}
	le := binary.LittleEndian
	shift := le.Uint32(raw[logBlockSize:])
	if le.Uint16(raw[magicAt:]) != magic || shift > maxLogBlockSize {
		return Superblock{}, ErrNone
	}
	state, features := le.Uint16(raw[stateAt:]), le.Uint32(raw[incompatible:])
	s := Superblock{
		Blocks: int64(le.Uint32(raw[blocksLow:])), BlockSize: 1024 << shift, Journal: features&featureJournal != 0,
		Clean: state&stateClean != 0 && state&stateErrors == 0,
	}
	if features&feature64Bit != 0 {
		s.Blocks |= int64(le.Uint32(raw[blocksHigh:])) << 32
	}
	return s, nil
}

// The exit codes of e2fsck are bits.
const (
	fsckFixed = 1
	fsckAgain = 2 // repaired a mounted file system: reboot
	fsckUnrun = 8 // could not check everything
)

// Repair replays the journal and makes safe repairs; with full, it also checks a file system that is
// marked clean. It returns whether it repaired anything beyond the journal, and e2fsck's output. For
// a device that is in exclusive use, the error is not ErrUnrepairable.
func Repair(ctx context.Context, device string, full bool) (repaired bool, report string, err error) {
	args := []string{"-p"}
	if full {
		args = append(args, "-f")
	}
	return check(ctx, append(args, device)...)
}

// RepairAll checks the whole file system and repairs everything, even where that may lose data. It
// returns e2fsck's output.
func RepairAll(ctx context.Context, device string) (report string, err error) {
	_, report, err = check(ctx, "-f", "-y", device)
	return report, err
}

func check(ctx context.Context, args ...string) (repaired bool, report string, err error) {
	report, err = run(ctx, checkProgram, args...)
	code, ran := exitCode(err)
	switch {
	case err == nil:
		return false, report, nil
	case ctx.Err() != nil:
		return false, report, ctx.Err()
	case !ran:
		return false, report, err
	case code&^(fsckFixed|fsckAgain) == 0:
		return true, report, nil
	case code == fsckUnrun && strings.Contains(report, args[len(args)-1]+" is in use."):
		return false, report, err // the device is in use, so this says nothing about the file system
	default:
		return false, report, fmt.Errorf("%w: %s", ErrUnrepairable, report)
	}
}

// Check checks the whole file system and changes nothing. An unreplayed journal is not a fault by
// itself, but the damage that it would repair is.
func Check(ctx context.Context, device string) error {
	report, err := run(ctx, checkProgram, "-f", "-n", device)
	if _, ran := exitCode(err); ran && ctx.Err() == nil {
		return fmt.Errorf("%w: %s", ErrUnrepairable, report)
	}
	return err
}

// Grow grows a file system of Make to the size of its device. Check it before.
func Grow(ctx finish.Context, device string) error {
	_, err := run(ctx, growProgram, device)
	return err
}

// ioctlResize is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64).
const ioctlResize = 0x40086610

// GrowMounted grows a mounted file system to size bytes. Without CAP_SYS_RESOURCE, the error is
// EPERM.
func GrowMounted(dir string, size int64) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	usage, err := Usage(dir)
	if err != nil {
		return err
	}
	blocks := uint64(size / usage.BlockSize)
	if err := resize(int(d.Fd()), &blocks); err != nil {
		return fmt.Errorf("grow the file system on %s: %w", dir, err)
	}
	return nil
}

// Usage returns the usage of a mounted file system.
func Usage(dir string) (hangar.VolumeUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return hangar.VolumeUsage{}, fmt.Errorf("examine the file system on %s: %w", dir, err)
	}
	return hangar.VolumeUsage{
		FSType: hangar.FSExt4, Blocks: int64(st.Blocks), BlockSize: st.Bsize, BlocksFree: int64(st.Bfree), BlocksAvail: int64(st.Bavail),
	}, nil
}

// run runs a program and returns all its output. Its memory depends on the content of the volume, so
// the kernel kills it before processes that all Machines depend on.
func run(ctx context.Context, program string, args ...string) (string, error) {
	return runWith(ctx, nil, program, args...)
}

// runWith runs a program with variables added to its environment.
func runWith(ctx context.Context, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(cmd.Environ(), "LC_ALL=C"), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The program ends with the daemon, so that it does not change a device that the next daemon uses.
	// The kernel sends the signal when the thread that started the program ends, so the thread must
	// stay.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		_ = oomscore.SetChild(cmd.Process, oomscore.Machine) // fails if it has ended already
		err = cmd.Wait()
	}
	said := strings.TrimSpace(string(bytes.ToValidUTF8(out.Bytes(), nil)))
	if err != nil {
		return said, fmt.Errorf("%s: %w: %s", program, err, said)
	}
	return said, nil
}

// exitCode returns the exit code of a program; false if it did not exit by itself.
func exitCode(err error) (int, bool) {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), true
	}
	return 0, false
}
