package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// The reserve of a layer is what the platform needs to start the Machine: blocks and inodes
// for directories, sockets and small files. The Machine does not see the files it is made of.
const (
	reserveDir   = "reserve"
	reserveFiles = 16
	reserveSize  = 64 << 10 // bytes, of each file
)

// Reserve takes back the room in a mounted layer that Mount has made, or the rest of it. It is to
// be called once the Machine runs.
func (l *Layers) Reserve(id hangar.MachineID) error {
	if l.o.Unbounded {
		return nil
	}
	if err := makeReserve(l.Path(id)); err != nil && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

func makeReserve(layer string) error {
	dir := filepath.Join(layer, reserveDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for i := range reserveFiles {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(i)), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		err = durable.Allocate(int(f.Fd()), 0, reserveSize)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("reserve room in %s: %w", layer, err)
		}
	}
	return nil
}

func releaseReserve(layer string) error {
	for i := range reserveFiles {
		err := os.Remove(filepath.Join(layer, reserveDir, strconv.Itoa(i)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
