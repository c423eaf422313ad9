package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

// The files of a layer in the cache.
const (
	layerFile = "layer.tar.gz"
	aboutFile = "about.json"
)

// layer is a layer in the cache. It implements v1.Layer.
type layer struct {
	Name    string  `json:"name"`
	Version string  `json:"version,omitempty"`
	Packed  v1.Hash `json:"digest"`
	Plain   v1.Hash `json:"diff_id"`
	Bytes   int64   `json:"size"` // packed

	dir string
}

func (l *layer) file() string                        { return filepath.Join(l.dir, layerFile) }
func (l *layer) Digest() (v1.Hash, error)            { return l.Packed, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.Plain, nil }
func (l *layer) Size() (int64, error)                { return l.Bytes, nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error)  { return os.Open(l.file()) }

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.file())
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// readLayer answers fs.ErrNotExist when the cache has no such layer.
func readLayer(dir string) (*layer, error) {
	b, err := os.ReadFile(filepath.Join(dir, aboutFile))
	if err != nil {
		return nil, err
	}
	l := &layer{dir: dir}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("%s: %w; remove that directory", dir, err)
	}
	return l, nil
}

// writeLayer packs a tree, which may be the upper directory of an overlay, into
// dir, which it makes.
func writeLayer(ctx context.Context, root, dir string, l layer) (err error) {
	if err := translateWhiteouts(root); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, layerFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := sha256.New(), sha256.New()
	counted := &counter{Writer: io.MultiWriter(f, packed)}
	z, err := gzip.NewWriterLevel(counted, gzip.BestSpeed)
	if err != nil {
		return err
	}
	// The tar of the host, not this module's, so that the unpacked files come from a foreign
	// program.
	tar := exec.CommandContext(ctx, "tar", "--create", "--directory", root, "--numeric-owner", "--sort=name",
		"--format=posix", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
		"--xattrs", "--xattrs-include=security.capability", "--xattrs-include=user.*", ".")
	var stderr bytes.Buffer
	tar.Stdout, tar.Stderr = io.MultiWriter(z, plain), &stderr
	if err := tar.Run(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, stderr.String())
	}
	if err := z.Close(); err != nil {
		return err
	}
	l.Packed, l.Plain, l.Bytes = digest(packed), digest(plain), counted.n
	about, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, aboutFile), append(about, '\n'), 0o600)
}

func digest(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}

// translateWhiteouts turns what overlayfs writes for a removed file, a device with
// the number 0, and for a directory that hides the one below, an attribute, into
// the files that the image format has for them.
func translateWhiteouts(root string) error {
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			value := make([]byte, 1)
			if n, err := unix.Lgetxattr(name, "trusted.overlay.opaque", value); err != nil || n != 1 || value[0] != 'y' {
				return nil //nolint:nilerr // most directories have no such attribute
			}
			return os.WriteFile(filepath.Join(name, ".wh..wh..opq"), nil, 0o600)
		}
		if d.Type()&fs.ModeCharDevice == 0 {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil || st.Rdev != 0 {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(filepath.Dir(name), ".wh."+filepath.Base(name)), nil, 0o600)
	})
}
