// Package embedprog finds programs that are embedded, compressed, in a hangar binary that `make
// build` made, or that lie beside it.
//
// An embedded program is unpacked once per content, atomically, under a name that contains its
// digest. So daemons of several versions can share a directory, and the file of a running program
// never changes.
//
// Locate may be called from many goroutines and processes at once. The package runs nothing.
package embedprog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// ErrNotFound is Locate's error for a program that is neither embedded nor beside the executable.
var ErrNotFound = errors.New("program not found")

// Locate returns the path of a program: embedded/NAME.zst of files, unpacked below dir/bin on first
// use, or else the file NAME beside the running executable.
func Locate(files fs.FS, name, dir string) (string, error) {
	packed, err := fs.ReadFile(files, "embedded/"+name+".zst") // only `make build` puts it there
	if err == nil {
		return unpack(packed, name, filepath.Join(dir, "bin"))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("%w: %s is not embedded, and %s does not exist; build it with `make build`", ErrNotFound, name, beside)
	}
	return beside, nil
}

// unpack writes a program to dir under a name that contains the digest of packed.
func unpack(packed []byte, name, dir string) (string, error) {
	digest := sha256.Sum256(packed)
	path := filepath.Join(dir, name+"-"+hex.EncodeToString(digest[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs are world-readable
		return "", err
	}
	z, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", fmt.Errorf("read embedded %s: %w", name, err)
	}
	defer z.Close()
	tmp, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // fails after it was renamed
	_, err = io.Copy(tmp, z)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	return path, os.Rename(tmp.Name(), path)
}
