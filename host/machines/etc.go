package machines

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/internal/durable"
)

// etcFiles are the files that writeEtc writes.
func etcFiles() []string { return []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} }

// writeEtc writes the platform's files in the Machine's /etc, and returns their mounts. The set is
// always the same, so that a resume finds the mounts of the suspend. A file in files replaces the
// platform's; writeEtc returns the others.
func (w *worker) writeEtc(
	rec *journal.Record, img *image.Image, at network.Attachment, files []guest.File,
) ([]driver.Mount, []driver.File, error) {
	hosts, err := guest.EtcHosts(asGuest(img), &rec.Machine, at.IPv4)
	if err != nil {
		return nil, nil, err
	}
	etc := map[string]string{
		"/etc/hostname":    guest.EtcHostname(&rec.Machine),
		"/etc/hosts":       hosts,
		"/etc/resolv.conf": guest.ResolvConf(&rec.Machine, w.store.o.Nameservers),
	}
	var rest []driver.File
	for _, f := range files {
		if _, ok := etc[f.Path]; ok {
			etc[f.Path] = string(f.Content)
			continue
		}
		rest = append(rest, driver.File{Path: f.Path, Content: f.Content, Mode: f.Mode})
	}
	// Other files of the Machine are kept, and so are its changes to these.
	keep := !resetsRoot(rec) && !rec.FreshVersion
	if err := os.Mkdir(w.layer(etcDir), 0o711); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the Machine's user must be able to traverse it
		return nil, nil, err
	}
	var mounts []driver.Mount
	for _, target := range slices.Sorted(maps.Keys(etc)) {
		path := filepath.Join(w.layer(etcDir), filepath.Base(target))
		if err := writeUnlessChanged(path, []byte(etc[target]), keep); err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, driver.Mount{Source: path, Target: target})
	}
	return mounts, rest, nil
}

// writtenSuffix is the suffix of the file with the digest that the platform wrote.
const writtenSuffix = ".written"

// writeUnlessChanged writes a file of a Machine; with keep, only if the Machine has not changed it
// since the last write.
func writeUnlessChanged(path string, content []byte, keep bool) error {
	if keep {
		switch changed, err := isChanged(path); {
		case err != nil:
			return err
		case changed:
			return nil
		}
	}
	// The digest is removed first: without one, a file is written again, in case a crash truncates
	// it.
	if err := durable.Remove(path + writtenSuffix); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // every user of the Machine reads it
		return err
	}
	sum := sha256.Sum256(content)
	return os.WriteFile(path+writtenSuffix, sum[:], 0o600)
}

// maxCompared bounds the bytes read of a file that a Machine may have changed. The platform writes
// less.
const maxCompared = 32 << 20

// isChanged reports whether a file differs from what the platform wrote. An empty file is the
// result of a power failure.
func isChanged(path string) (bool, error) {
	written, err := os.ReadFile(path + writtenSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, maxCompared))
	return n > 0 && !bytes.Equal(sum.Sum(nil), written), err
}
