// Package ociimage makes OCI images of a developer's files, without a Docker daemon: a directory, a
// static binary, an archive of docker save, an OCI layout; and pushes them to a registry.
//
// The same input gives the same digest on every machine: entries are sorted, and an image contains
// nothing of the clock, the user or the machine. Trees and archives are streamed, so that memory does
// not grow with their size. An Image keeps its temporary files in a directory until Close.
//
// An Image may be used by many goroutines until it is closed. The package runs nothing: it does not
// build programs or read Dockerfiles.
package ociimage

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ErrUnsupported means that no image can be made of the input.
var ErrUnsupported = errors.New("not a directory, a static Linux program, a docker save archive or an OCI layout")

// Config overrides how an image is run. Empty fields keep the values of the input.
type Config struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // "NAME=value"; replaces a variable of the same name, or is added
	WorkingDir string
	User       string
	Expose     []string // "80" or "80/tcp"
	Labels     map[string]string
	// Platform is the platform of the image, or the one to choose if the input has several. Zero:
	// Linux on the architecture of this program, or of the binary.
	Platform v1.Platform
	// TempDir is the directory for an Image's temporary files; empty: the system's.
	TempDir string
}

// Image is an image that is ready to be pushed.
type Image struct {
	v1.Image
	dir string // temporary, the Image's own
}

// Close removes the Image's temporary files.
func (i *Image) Close() error { return os.RemoveAll(i.dir) }

// Open makes an image from the file or directory at name: a directory that is an OCI layout, any
// other directory, an archive or a program. It returns ErrUnsupported for anything else.
func Open(name string, c Config) (*Image, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		if _, err := os.Stat(filepath.Join(name, "oci-layout")); err == nil {
			return FromLayout(name, c)
		}
		return FromDirectory(name, c)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", name, ErrUnsupported)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := f.ReadAt(magic, 0); err == nil && string(magic) == elf.ELFMAG {
		return FromBinary(name, c)
	}
	return FromArchive(name, c)
}

// FromDirectory makes an image whose root file system is the directory. Files keep their modes,
// times, links and capabilities. Files of the current user belong to root in the image; others keep
// their numeric owner. Devices and sockets are omitted.
func FromDirectory(name string, c Config) (*Image, error) {
	return build(c, func(w *layerWriter) error { return w.tree(name) })
}

// FromBinary makes an image with a static Linux program, a /tmp and nothing else. The image runs the
// program unless c says otherwise.
func FromBinary(name string, c Config) (*Image, error) {
	arch, err := inspect(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.Platform.Architecture = cmp.Or(c.Platform.Architecture, arch)
	if c.Platform.Architecture != arch {
		return nil, fmt.Errorf("%s is made for %s, not for %s", name, arch, c.Platform.Architecture)
	}
	target := "/" + filepath.Base(name)
	if len(c.Entrypoint) == 0 {
		c.Entrypoint = []string{target}
	}
	return build(c, func(w *layerWriter) error { return w.program(name, strings.TrimPrefix(target, "/")) })
}

// inspect returns the architecture of a program that needs only a kernel.
func inspect(name string) (string, error) {
	f, err := elf.Open(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	defer func() { _ = f.Close() }()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return "", fmt.Errorf("%w: it is not executable", ErrUnsupported)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("the program is linked dynamically: link it statically (Go: CGO_ENABLED=0), or pack it with its libraries as a directory")
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	case elf.EM_RISCV:
		return "riscv64", nil
	default:
		return "", fmt.Errorf("%w: programs for %s", ErrUnsupported, f.Machine)
	}
}

// build makes an image with one layer, whose entries fill writes.
func build(c Config, fill func(*layerWriter) error) (_ *Image, err error) {
	dir, err := os.MkdirTemp(c.TempDir, "hangar-image-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	l, err := writeLayer(filepath.Join(dir, "layer.tar.gz"), fill)
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	platform := c.platform()
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	})
	if err != nil {
		return nil, err
	}
	img, err = mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "hangar image push"}})
	if err != nil {
		return nil, err
	}
	if img, err = c.apply(img); err != nil {
		return nil, err
	}
	return &Image{Image: img, dir: dir}, nil
}

func (c Config) platform() v1.Platform {
	p := c.Platform
	p.OS = cmp.Or(p.OS, "linux")
	p.Architecture = cmp.Or(p.Architecture, runtime.GOARCH)
	return p
}

// apply overrides the config of an image with c.
func (c Config) apply(img v1.Image) (v1.Image, error) {
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := *file.Config.DeepCopy()
	changed := false
	if len(c.Entrypoint) > 0 {
		config.Entrypoint, changed = c.Entrypoint, true
		config.Cmd = nil // it was written for the other entrypoint
	}
	if len(c.Cmd) > 0 {
		config.Cmd, changed = c.Cmd, true
	}
	for _, e := range c.Env {
		if !strings.Contains(e, "=") || strings.HasPrefix(e, "=") {
			return nil, fmt.Errorf("environment %q is not NAME=value", e)
		}
		config.Env, changed = setEnv(config.Env, e), true
	}
	if c.WorkingDir != "" {
		config.WorkingDir, changed = path.Clean("/"+c.WorkingDir), true
	}
	if c.User != "" {
		config.User, changed = c.User, true
	}
	for _, port := range c.Expose {
		if !strings.Contains(port, "/") {
			port += "/tcp"
		}
		if config.ExposedPorts == nil {
			config.ExposedPorts = map[string]struct{}{}
		}
		config.ExposedPorts[port], changed = struct{}{}, true
	}
	for k, v := range c.Labels {
		if config.Labels == nil {
			config.Labels = map[string]string{}
		}
		config.Labels[k], changed = v, true
	}
	if !changed {
		return img, nil // with the digest that it had
	}
	return mutate.Config(img, config)
}

func setEnv(env []string, e string) []string {
	name, _, _ := strings.Cut(e, "=")
	for i, old := range env {
		if strings.HasPrefix(old, name+"=") {
			env[i] = e
			return env
		}
	}
	return append(env, e)
}
