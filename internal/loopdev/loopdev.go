// Package loopdev makes block devices of files with the kernel's loop driver.
//
// A device has no owner process: it stays until Detach, even after its maker has ended, and its label
// identifies it. The package keeps no state. Functions may be called from many goroutines and by many
// processes.
package loopdev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	control  = "/dev/loop-control"
	sysBlock = "/sys/block"
	// attempts is how often to try when another process takes a free device first.
	attempts = 64
	// pause is the time between two checks of a device that another process has open.
	pause = 5 * time.Millisecond
)

// MaxLabel is the longest label, in bytes.
const MaxLabel = unix.LO_NAME_SIZE - 1

// Config of a device.
type Config struct {
	Label     string // identifies the device in List
	BlockSize uint32 // bytes; 0: 512
	Direct    bool   // reads and writes bypass the page cache of the file
	ReadOnly  bool
	AutoClear bool // the device ends by itself when it is last closed or unmounted
}

// Device is a block device of a file.
type Device struct {
	Path  string // e.g. /dev/loop7
	Label string // empty if not selected, or if the kernel does not return it, as for a file whose FUSE server has died
	File  string // "/" if its file system was unmounted
}

// Attach makes a block device of a file and returns its path.
func Attach(file *os.File, c Config) (string, error) {
	dev, err := Open(file, c)
	if err != nil {
		return "", err
	}
	return dev.Name(), dev.Close()
}

// Open makes a block device of a file and returns it open for reading and writing.
//
// The kernel keeps the open file description of file until the device ends, with any flock(2) lock on
// it.
func Open(file *os.File, c Config) (*os.File, error) {
	if len(c.Label) > MaxLabel {
		return nil, fmt.Errorf("attach loop device: label %q is too long", c.Label)
	}
	ctl, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach loop device: %w", err)
	}
	defer ctl.Close()
	for range attempts {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(n)
		if err := node(path, n); err != nil {
			return nil, err
		}
		dev, err := configure(path, file, c)
		if err == nil {
			return dev, nil
		}
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process was faster
			return nil, fmt.Errorf("attach %s: %w", path, err)
		}
	}
	return nil, errors.New("attach loop device: other processes take every free one")
}

// node makes the device file if no device manager does, as in a container.
func node(path string, minor int) error {
	const major = 7
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(minor))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

func configure(path string, file *os.File, c Config) (*os.File, error) {
	dev, err := open(path)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: c.BlockSize}
	if c.Direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	if c.ReadOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if c.AutoClear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	copy(config.Info.File_name[:], c.Label)
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

func open(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0) }

// Refresh updates the size of a device from its file.
func Refresh(path string) error {
	dev, err := open(path)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("refresh the size of %s: %w", path, err)
	}
	return nil
}

// Detach ends a device. A device that is in use ends with its last user. It may be repeated.
func Detach(path string) error {
	dev, err := open(path)
	if err != nil {
		return err
	}
	defer dev.Close()
	err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
	if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: it has no file
		return fmt.Errorf("detach %s: %w", path, err)
	}
	return nil
}

// List returns all devices that have a file. Reading a label makes the kernel call the file system of
// the file, which may hang, so List reads labels only for files that labelled selects. The file of an
// unmounted file system has the name "/".
func List(labelled func(file string) bool) ([]Device, error) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var list []Device
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		d := Device{Path: filepath.Join("/dev", e.Name())}
		file, err := os.ReadFile(filepath.Join(sysBlock, e.Name(), "loop", "backing_file"))
		if isGone(err) {
			continue // it has no file, or ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list loop devices: %w", err)
		}
		d.File = strings.TrimSuffix(string(file), "\n")
		if labelled(d.File) {
			d.Label, err = labelOf(d.Path)
			if isGone(err) {
				continue
			}
			if errors.As(err, new(*fs.PathError)) { // not opened; the kernel may withhold the label of an open one
				return nil, fmt.Errorf("list loop devices: %w", err)
			}
		}
		list = append(list, d)
	}
	return list, nil
}

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

// Await waits until the device no longer has this file.
func Await(ctx context.Context, d Device) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		label, err := labelOf(d.Path)
		if isGone(err) || err == nil && label != d.Label {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is still in use: %w", d.Path, ctx.Err())
		}
	}
}

func labelOf(path string) (string, error) {
	dev, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer dev.Close()
	info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
	if err != nil {
		return "", err
	}
	label, _, _ := bytes.Cut(info.File_name[:], []byte{0})
	return string(label), nil
}
