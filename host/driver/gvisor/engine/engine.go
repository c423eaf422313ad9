// Package engine finds the program that runs sandboxes: hangar-sandbox, which is
// embedded in a hangar binary that `make build` made, or lies beside it.
//
// An embedded program is unpacked once per content, atomically, under a name that
// holds its digest, so that daemons of several versions share a directory, and a
// running sandbox is never changed under its feet.
//
// Locate may be called from many goroutines and processes at once.
//
// The package does not run the program; package gvisor does.
package engine

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Name is the file name of the program.
const Name = "hangar-sandbox"

// archive is the embedded program, compressed. Only `make build` puts it there.
const archive = "embedded/" + Name + ".zst"

//go:embed embedded
var embedded embed.FS

// ErrNotFound is what Locate answers when there is no engine anywhere.
var ErrNotFound = errors.New("engine " + Name + " not found")

// Locate returns the path of the engine: the embedded one, unpacked below dir/bin
// if it is not there yet, else the file Name beside the running executable.
func Locate(dir string) (string, error) {
	packed, err := embedded.ReadFile(archive)
	if err == nil {
		return unpack(packed, filepath.Join(dir, "bin"))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), Name)
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("%w: not embedded, and no %s; build it with `make build`", ErrNotFound, beside)
	}
	return beside, nil
}

// unpack writes the program to dir under a name that holds the digest of packed.
func unpack(packed []byte, dir string) (string, error) {
	digest := sha256.Sum256(packed)
	path := filepath.Join(dir, Name+"-"+hex.EncodeToString(digest[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs are for everybody to read
		return "", err
	}
	z, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", fmt.Errorf("read embedded engine: %w", err)
	}
	defer z.Close()
	tmp, err := os.CreateTemp(dir, "."+Name+"-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // fails once it has its final name
	_, err = io.Copy(tmp, z)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close())
	if err != nil {
		return "", fmt.Errorf("unpack engine: %w", err)
	}
	return path, os.Rename(tmp.Name(), path)
}
