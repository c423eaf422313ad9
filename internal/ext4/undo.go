package ext4

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
)

// undoMagic begins a complete undo file of e2undo.
const undoMagic = "E2UNDO02"

// GrowCompact grows a file system of MakeCompact to the size of its device. Check it before.
//
// The file system has no room for further group descriptors, so inode tables and the root directory
// must move, and an interrupted growth would lose them. Until the growth is complete, the file undo
// has the overwritten blocks, for Undo.
func GrowCompact(ctx finish.Context, device, undo string) error {
	if err := makeUndo(undo); err != nil {
		return err
	}
	if _, err := run(ctx, growProgram, "-z", undo, device); err != nil {
		return err
	}
	return removeUndo(undo)
}

// makeUndo makes an empty file with synchronous writes, where the file system supports them. So after
// a loss of power the file has everything that was overwritten.
func makeUndo(undo string) error {
	f, err := os.OpenFile(undo, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		const syncEach = 0x8 // FS_SYNC_FL of linux/fs.h
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|syncEach)
	}
	return errors.Join(f.Sync(), durable.SyncDir(filepath.Dir(undo)))
}

func removeUndo(undo string) error {
	return errors.Join(os.Remove(undo), durable.SyncDir(filepath.Dir(undo)))
}

// Undo restores a file system to its state before an interrupted GrowCompact, and reports whether
// there was one. Repair the file system afterwards.
func Undo(ctx context.Context, device, undo string) (undone bool, err error) {
	begun, err := hasUndo(undo)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if begun {
		said, err := run(ctx, undoProgram, "-f", undo, device)
		if _, ran := exitCode(err); ran && ctx.Err() == nil {
			return false, fmt.Errorf("%w: %s", ErrUnrepairable, said)
		}
		if err != nil {
			return false, err
		}
		if err := syncDevice(device); err != nil {
			return false, err
		}
	}
	return true, removeUndo(undo)
}

// hasUndo reports whether a file has anything to undo. If not, the device has not changed yet.
func hasUndo(undo string) (bool, error) {
	f, err := os.Open(undo)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, len(undoMagic))
	_, err = io.ReadFull(f, magic)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return string(magic) == undoMagic, err
}

func syncDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
