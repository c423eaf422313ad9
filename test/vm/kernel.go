package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// metaPackage depends on Debian's current kernel for virtual machines.
const metaPackage = "linux-image-cloud-amd64"

// image is a kernel, unpacked.
type image struct {
	vmlinuz string
	modules map[string]string // file by name, with _ for -
}

// kernel returns Debian's kernel out of cache, into which it is downloaded when it is not
// there or too old to be the current one.
func kernel(ctx context.Context, cache string) (*image, error) {
	name, err := currentKernel(ctx)
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(cache, name)
	if _, err := os.Stat(tree); errors.Is(err, fs.ErrNotExist) {
		err = download(ctx, cache, name, tree)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return unpacked(tree)
}

// currentKernel is the name of the package that has the kernel: it changes with every
// version.
func currentKernel(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "apt-cache", "depends", "--important", metaPackage)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return "", fmt.Errorf("no package %s: run apt-get update, on a Debian system", metaPackage)
}

// download unpacks a package to tree, which appears when it is complete.
func download(ctx context.Context, cache, name, tree string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, ".download-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if _, err := output(ctx, work, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s: %d files", name, len(debs))
	}
	if _, err := output(ctx, work, "dpkg", "-x", debs[0], "tree"); err != nil {
		return err
	}
	err = os.Rename(filepath.Join(work, "tree"), tree)
	if errors.Is(err, fs.ErrExist) { // another test was faster
		return nil
	}
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.Bytes())
	}
	return string(out), nil
}

// unpacked finds the files of a kernel.
func unpacked(tree string) (*image, error) {
	found, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("%s has %d kernels, not one: remove it", tree, len(found))
	}
	k := &image{vmlinuz: found[0], modules: map[string]string{}}
	// Debian 13 has /usr/lib/modules.
	err = filepath.WalkDir(tree, func(name string, d fs.DirEntry, err error) error {
		if module, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(name), ".xz"), ".ko"); ok && err == nil && d.Type().IsRegular() {
			k.modules[underscored(module)] = name
		}
		return err
	})
	return k, err
}

func underscored(module string) string { return strings.ReplaceAll(module, "-", "_") }

// module is a part of the kernel that is loaded after it.
type module struct {
	name    string
	content []byte
}

// load returns modules with all that they need, in the order in which they are loaded.
// What is built into the kernel is not among them.
func (k *image) load(ctx context.Context, names []string) ([]module, error) {
	var ordered []module
	seen := map[string]bool{}
	var visit func(name string, wanted bool) error
	visit = func(name string, wanted bool) error {
		name = underscored(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		file, ok := k.modules[name]
		if !ok {
			if wanted {
				return fmt.Errorf("the kernel %s has no module %s", filepath.Base(k.vmlinuz), name)
			}
			return nil
		}
		content, err := os.ReadFile(file)
		if err == nil && strings.HasSuffix(file, ".xz") {
			var text string
			text, err = output(ctx, "", "xz", "-dc", file)
			content = []byte(text)
		}
		if err != nil {
			return err
		}
		needs, err := dependencies(content)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, n := range needs {
			if err := visit(n, true); err != nil {
				return err
			}
		}
		ordered = append(ordered, module{name: name, content: content})
		return nil
	}
	for _, n := range names {
		if err := visit(n, true); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

// dependencies of a module are named in the module.
func dependencies(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
