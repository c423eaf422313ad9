// Package debian builds OCI images from Debian packages, without a container
// engine, for tests that run real software.
//
// An image has two layers: a minimal system made by debootstrap, which all images share, and what
// apt-get added to it in a chroot. Layers are kept in a cache under a hash of their sources, appear
// there by a rename when they are complete, and are used again by later runs; nothing else is left
// behind. Builders of several processes may share a cache: one builds at a time.
//
// A build runs in namespaces of its own, so that no process, mount or service outlives it. A
// Builder may be used from many goroutines.
//
// It is not a builder of images for production: it neither minimises nor signs them,
// and a cached layer is as old as its first build.
package debian

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

//go:embed base.sh
var baseScript string

//go:embed packages.sh
var packagesScript string

const (
	downloadsDir = "downloads" // of the cache: packages
	// keepFor is how long an unused layer stays.
	keepFor = 30 * 24 * time.Hour
)

// Tools are the programs that a Builder needs on its host, by Debian package.
var Tools = map[string]string{"debootstrap": "debootstrap", "unshare": "util-linux", "tar": "tar", "apt-get": "apt"}

// Recipe says what is in an image.
type Recipe struct {
	Packages []string // to install
	Setup    string   // shell script, run as root in the image after they are installed
	Version  string   // shell script that prints the version of the software
	// Only, when set, is a directory of the finished system that becomes the whole
	// image, without the shared layer.
	Only   string
	Config v1.Config // command, environment, user and so on
}

// Image is an image that was built.
type Image struct {
	v1.Image
	Version string // of the software, as the recipe asks for it
}

// Builder builds images of one Debian release.
type Builder struct {
	cache  string
	system release

	mu   sync.Mutex
	root string // the shared layer unpacked, once an image is built; empty before
}

// New returns a Builder for the release and the mirror of the host, that keeps its
// layers in cache. It needs root, and the Tools.
func New(ctx context.Context, cache string) (*Builder, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root: a chroot with devices and mounts is made")
	}
	for tool, pkg := range Tools {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: apt-get install %s", err, pkg)
		}
	}
	system, err := hostRelease(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	return &Builder{cache: cache, system: system}, nil
}

// Release names the system, e.g. "Debian 12".
func (b *Builder) Release() string { return b.system.title }

// Close removes what was unpacked. The cache stays.
func (b *Builder) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	root := b.root
	b.root = ""
	if root == "" {
		return nil
	}
	return os.RemoveAll(filepath.Dir(root))
}

// Build returns the image of a recipe.
func (b *Builder) Build(ctx context.Context, r Recipe) (*Image, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	unlock, err := b.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	base, err := b.base(ctx)
	if err != nil {
		return nil, fmt.Errorf("build the shared layer: %w", err)
	}
	added, err := b.packages(ctx, base, r)
	if err != nil {
		return nil, fmt.Errorf("build a layer with %s: %w", strings.Join(r.Packages, " "), err)
	}
	layers := []v1.Layer{base, added}
	if r.Only != "" {
		layers = layers[1:]
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, r.Config
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, err
	}
	return &Image{Image: img, Version: added.Version}, nil
}

// lock keeps other processes out of the cache.
func (b *Builder) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

// base returns the layer that all images share.
func (b *Builder) base(ctx context.Context) (*layer, error) {
	return b.cached(ctx, key(baseScript, b.system), func(work string) (string, string, error) {
		root := filepath.Join(work, "root")
		_, err := b.run(ctx, baseScript, "ROOT="+root, "CODENAME="+b.system.codename, "MIRROR="+b.system.mirror, "COMPONENTS="+b.system.components, "SOURCES="+b.system.sources)
		return root, "", err
	})
}

// packages returns the layer that a recipe adds to base.
func (b *Builder) packages(ctx context.Context, base *layer, r Recipe) (*layer, error) {
	k := key(packagesScript, base.Name, r.Packages, r.Setup, r.Version, r.Only)
	return b.cached(ctx, k, func(work string) (string, string, error) {
		if err := b.unpackBase(ctx, base); err != nil {
			return "", "", err
		}
		for _, dir := range []string{"upper", "overlay", "merged"} {
			if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
				return "", "", err
			}
		}
		downloads := filepath.Join(b.cache, downloadsDir, b.system.codename)
		for _, dir := range []string{"lists/partial", "archives/partial"} {
			if err := os.MkdirAll(filepath.Join(downloads, dir), 0o755); err != nil {
				return "", "", err
			}
		}
		for name, script := range map[string]string{"setup": r.Setup, "version": r.Version} {
			if err := os.WriteFile(filepath.Join(work, name), []byte(script), 0o600); err != nil {
				return "", "", err
			}
		}
		out, err := b.run(ctx, packagesScript, "BASE="+b.root, "WORK="+work, "DOWNLOADS="+downloads,
			"PACKAGES="+strings.Join(r.Packages, " "))
		if err != nil {
			return "", "", err
		}
		upper := filepath.Join(work, "upper")
		if r.Only != "" {
			upper = filepath.Join(upper, filepath.Clean("/"+r.Only))
		}
		return upper, lastLine(out), nil
	})
}

// unpackBase makes the directory that packages are installed over.
func (b *Builder) unpackBase(ctx context.Context, base *layer) error {
	if b.root != "" {
		return nil
	}
	dir, err := os.MkdirTemp(b.cache, "work-")
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	untar := exec.CommandContext(ctx, "tar", "--extract", "--gzip", "--file", base.file(), "--directory", root,
		"--preserve-permissions", "--numeric-owner", "--same-owner", "--xattrs", "--xattrs-include=*")
	if out, err := untar.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("unpack the shared layer: %w\n%s", err, out), os.RemoveAll(dir))
	}
	b.root = root
	return nil
}

// cached returns the layer of a key. If the cache does not have it, build makes
// a tree below a directory of its own and returns its root, and a version.
func (b *Builder) cached(ctx context.Context, key string, build func(work string) (root, version string, err error)) (_ *layer, err error) {
	final := filepath.Join(b.cache, key)
	now := time.Now()
	if l, err := readLayer(final); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return l, errors.Join(err, os.Chtimes(final, now, now))
	}
	if err := b.forget(now.Add(-keepFor)); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(b.cache, "work-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	root, version, err := build(work)
	if err != nil {
		return nil, err
	}
	done := filepath.Join(work, "done")
	if err := writeLayer(ctx, root, done, layer{Name: key, Version: version}); err != nil {
		return nil, err
	}
	if err := os.Rename(done, final); err != nil {
		return nil, err
	}
	return readLayer(final)
}

// forget removes layers that were last used before a time, and what a build that was
// killed has left.
func (b *Builder) forget(before time.Time) error {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || e.Name() == downloadsDir {
			continue
		}
		if info.ModTime().Before(before) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.cache, e.Name())))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run runs a script in namespaces that end with it, and returns its output.
func (b *Builder) run(ctx context.Context, script string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-eu", "-c", script)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s%s", cmp.Or(ctx.Err(), err), tail(stdout.String(), 2<<10), tail(stderr.String(), 4<<10))
	}
	return stdout.String(), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func tail(text string, most int) string {
	return text[max(0, len(text)-most):]
}

// key names what is made from parts.
func key(parts ...any) string {
	h := sha256.New()
	for _, p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			panic(err) // parts are strings and plain structs
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

// release is the system of the host, which images are made of.
type release struct {
	title      string // "Debian 12"
	codename   string
	mirror     string
	components string // separated by commas
	sources    string // of apt, lines
}

// MarshalJSON makes all that decides what is installed a part of a key.
func (r release) MarshalJSON() ([]byte, error) {
	return json.Marshal([]string{r.codename, r.mirror, r.sources})
}

// hostRelease finds out from where the host installs its own packages.
func hostRelease(ctx context.Context) (release, error) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return release{}, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		fields[name] = strings.Trim(value, `"`)
	}
	r := release{codename: fields["VERSION_CODENAME"]}
	id := fields["ID"]
	if id == "" || r.codename == "" {
		return release{}, errors.New("/etc/os-release names no release: images are made from packages of Debian or Ubuntu")
	}
	r.title = strings.ToUpper(id[:1]) + id[1:] + " " + fields["VERSION_ID"]
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return release{}, fmt.Errorf("ask apt-get for its sources: %w", err)
	}
	var components []string
	suites := map[string][]string{} // "mirror suite" to components
	var order []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) != 3 || words[1] != r.codename && !strings.HasPrefix(words[1], r.codename+"-") {
			continue // of a third party
		}
		site, suite, component := words[0], words[1], words[2]
		if suite == r.codename && r.mirror == "" {
			r.mirror = site
		}
		if suite == r.codename && !slices.Contains(components, component) {
			components = append(components, component)
		}
		at := site + " " + suite
		if suites[at] == nil {
			order = append(order, at)
		}
		if !slices.Contains(suites[at], component) {
			suites[at] = append(suites[at], component)
		}
	}
	if r.mirror == "" {
		return release{}, fmt.Errorf("apt-get has no source for %s", r.codename)
	}
	r.components = strings.Join(components, ",")
	for _, at := range order {
		r.sources += "deb " + at + " " + strings.Join(suites[at], " ") + "\n"
	}
	return r, nil
}
