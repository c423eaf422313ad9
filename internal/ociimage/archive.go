package ociimage

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// FromLayout makes an image from a directory in the OCI layout. If it has several images, FromLayout
// takes the one for the platform of c.
func FromLayout(name string, c Config) (*Image, error) {
	img, err := fromLayout(name, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dir, err := os.MkdirTemp(c.TempDir, "hangar-image-")
	if err != nil {
		return nil, err
	}
	return &Image{Image: img, dir: dir}, nil
}

func fromLayout(name string, c Config) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(name)
	if err != nil {
		return nil, err
	}
	img, err := choose(index, c.platform(), 3)
	if err != nil {
		return nil, err
	}
	return c.apply(img)
}

// choose returns the one image of an index for a platform.
func choose(index v1.ImageIndex, platform v1.Platform, depth int) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var matches []v1.Descriptor
	for _, d := range m.Manifests {
		if d.Platform == nil || d.Platform.Satisfies(platform) {
			matches = append(matches, d)
		}
	}
	switch {
	case len(matches) == 0:
		return nil, fmt.Errorf("no image for %s in it", platform)
	case len(matches) > 1:
		return nil, fmt.Errorf("%d images in it: save only one of them", len(matches))
	}
	d := matches[0]
	if d.MediaType != types.OCIImageIndex && d.MediaType != types.DockerManifestList {
		return index.Image(d.Digest)
	}
	if depth == 0 {
		return nil, errors.New("indexes are nested too deeply")
	}
	inner, err := index.ImageIndex(d.Digest)
	if err != nil {
		return nil, err
	}
	return choose(inner, platform, depth-1)
}

// FromArchive makes an image from a tar archive, plain or compressed by gzip or zstd, that contains
// the output of docker save or an OCI layout.
func FromArchive(name string, c Config) (_ *Image, err error) {
	dir, err := os.MkdirTemp(c.TempDir, "hangar-image-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	plain, err := decompress(name, filepath.Join(dir, "archive.tar"))
	if err != nil {
		return nil, err
	}
	kind, err := kindOf(plain)
	if err != nil {
		return nil, err
	}
	var img v1.Image
	switch kind {
	case ociArchive:
		into := filepath.Join(dir, "layout")
		if err := extract(plain, into); err != nil {
			return nil, err
		}
		if img, err = fromLayout(into, c); err != nil {
			return nil, err
		}
	case dockerArchive:
		if img, err = tarball.ImageFromPath(plain, nil); err != nil {
			return nil, err
		}
		if img, err = c.apply(img); err != nil {
			return nil, err
		}
	default:
		return nil, ErrUnsupported
	}
	return &Image{Image: img, dir: dir}, nil
}

// decompress returns the name of the plain archive: name itself, or into.
func decompress(name, into string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b := bufio.NewReaderSize(f, 256<<10)
	magic, _ := b.Peek(4) // a shorter file is not an archive, and is refused later
	var r io.Reader
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if r, err = gzip.NewReader(b); err != nil {
			return "", err
		}
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b)
		if err != nil {
			return "", err
		}
		defer z.Close()
		r = z
	default:
		return name, nil
	}
	return into, writeFile(into, r)
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

type archiveKind int

const (
	noArchive archiveKind = iota
	dockerArchive
	ociArchive
)

// kindOf returns the format of an archive. An archive in both formats counts as an OCI layout, whose
// layers are already in the form in which they are pushed.
func kindOf(name string) (archiveKind, error) {
	kind := noArchive
	err := entries(name, func(h *tar.Header, _ io.Reader) error {
		switch {
		case path.Clean(h.Name) == "manifest.json" && kind == noArchive:
			kind = dockerArchive
		case path.Clean(h.Name) == "index.json":
			kind = ociArchive
		}
		return nil
	})
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return noArchive, nil
	}
	return kind, err
}

var layoutFile = regexp.MustCompile(`^(oci-layout|index\.json|blobs/sha256/[0-9a-f]{64})$`)

// extract writes the files of an OCI layout, and nothing else, to a directory.
func extract(name, into string) error {
	if err := os.MkdirAll(filepath.Join(into, "blobs", "sha256"), 0o700); err != nil {
		return err
	}
	return entries(name, func(h *tar.Header, r io.Reader) error {
		rel := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag != tar.TypeReg || !layoutFile.MatchString(rel) {
			return nil
		}
		err := writeFile(filepath.Join(into, filepath.FromSlash(rel)), r)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s is in it twice", rel)
		}
		return err
	})
}

func entries(name string, each func(*tar.Header, io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	t := tar.NewReader(f) // seeks over what is not read
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(h, t); err != nil {
			return err
		}
	}
}
