package debian

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLayerOfAnOverlay: what overlayfs writes for removed files and replaced
// directories becomes what images have for them.
func TestLayerOfAnOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: overlayfs marks what is removed with devices and trusted attributes")
	}
	root := t.TempDir()
	for _, dir := range []string{"kept", "replaced"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "replaced", "file"), []byte("content"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		unix.Mknod(filepath.Join(root, "kept", "removed"), unix.S_IFCHR, 0),
		unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Link(filepath.Join(root, "replaced", "file"), filepath.Join(root, "too")),
		os.Symlink("kept", filepath.Join(root, "link")),
	); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(filepath.Join(root, "replaced"), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		t.Skipf("no trusted attributes on this file system: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "layer")
	if err := writeLayer(t.Context(), root, dir, layer{Name: "x", Version: "1.2"}); err != nil {
		t.Fatal(err)
	}
	l, err := readLayer(dir)
	if err != nil || l.Version != "1.2" {
		t.Fatalf("%+v, %v", l, err)
	}
	content, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	got := map[string]byte{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h.Typeflag
	}
	want := map[string]byte{
		"./": tar.TypeDir, "./kept/": tar.TypeDir, "./kept/.wh.removed": tar.TypeReg, "./link": tar.TypeSymlink, "./null": tar.TypeChar,
		"./replaced/": tar.TypeDir, "./replaced/.wh..wh..opq": tar.TypeReg, "./replaced/file": tar.TypeReg, "./too": tar.TypeLink,
	}
	if !maps.Equal(got, want) {
		t.Errorf("the layer has %v, not %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// TestKeysDiffer: what decides about a layer is a part of its name.
func TestKeysDiffer(t *testing.T) {
	bookworm, trixie := release{codename: "bookworm", mirror: "m"}, release{codename: "trixie", mirror: "m"}
	keys := map[string]bool{}
	for _, parts := range [][]any{
		{"a", "b"},
		{"ab"},
		{"b", "a"},
		{[]string{"a", "b"}},
		{bookworm},
		{trixie},
		{release{codename: "bookworm", mirror: "n"}},
		{release{codename: "bookworm", mirror: "m", sources: "s"}},
	} {
		keys[key(parts...)] = true
	}
	if len(keys) != 8 {
		t.Errorf("only %d of 8 keys differ", len(keys))
	}
	if key(bookworm) != key(release{title: "Debian 12", codename: "bookworm", mirror: "m"}) {
		t.Error("the title is a part of the key")
	}
}
