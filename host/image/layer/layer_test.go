package layer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/layer"
)

var limits = layer.Limits{Bytes: 64 << 20, Files: 1000, Ratio: 1000, Slack: 64 << 20}

type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, body}
}

func dir(name string, mode int64) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, ""}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func link(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}, ""}
}

func device(name string, kind byte) entry {
	return entry{tar.Header{Name: name, Typeflag: kind, Devmajor: 1, Devminor: 3, Mode: 0o666}, ""}
}

func archive(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.body))
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("owners, whiteouts and mounts need root")
	}
}

func unpack(tb testing.TB, entries ...entry) (string, layer.Result) {
	tb.Helper()
	needRoot(tb)
	d := tb.TempDir()
	r, err := layer.Unpack(tb.Context(), d, bytes.NewReader(archive(tb, entries...)), limits)
	if err != nil {
		tb.Fatal(err)
	}
	return d, r
}

// overlay mounts the layers, lowest first, with an empty writable one on top.
func overlay(tb testing.TB, layers ...string) string {
	tb.Helper()
	work := tb.TempDir()
	for _, d := range []string{"up", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(work, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	slices.Reverse(layers)
	target := filepath.Join(work, "merged")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(layers, ":"), filepath.Join(work, "up"), filepath.Join(work, "work"))
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		tb.Skipf("no overlayfs here: %v", err)
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			tb.Error(err)
		}
	})
	return target
}

func tree(tb testing.TB, root string) []string {
	tb.Helper()
	var names []string
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(root, p); rel != "." {
			names = append(names, rel)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

func TestUnpackKeepsWhatAFileIs(t *testing.T) {
	when := time.Date(2001, 2, 3, 4, 5, 6, 789000000, time.UTC)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	raw := archive(t,
		dir("./", 0o755),
		entry{tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: when}, ""},
		entry{tar.Header{Name: "bin/su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 7, Gid: 8, ModTime: when, PAXRecords: map[string]string{
			"SCHILY.xattr.user.color": "blue", "SCHILY.xattr.security.capability": capability,
			"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.opaque": "y",
		}}, "binary"},
		link("bin/sudo", "/bin/su"),
		entry{tar.Header{Name: "bin/link", Typeflag: tar.TypeSymlink, Linkname: "../../../etc/passwd", Uid: 9, Gid: 10, ModTime: when}, ""},
		entry{tar.Header{Name: "tmp/pipe", Typeflag: tar.TypeFifo, Mode: 0o622, ModTime: when}, ""},
		device("dev/null", tar.TypeChar),
	)
	needRoot(t)
	sum := sha256.Sum256(raw)
	for _, form := range []struct {
		name string
		data []byte
	}{{"plain", raw}, {"gzip", gzipped(t, raw)}, {"zstd", zstded(t, raw)}} {
		t.Run(form.name, func(t *testing.T) {
			d := t.TempDir()
			r, err := layer.Unpack(t.Context(), d, bytes.NewReader(form.data), limits)
			if err != nil {
				t.Fatal(err)
			}
			if want := "sha256:" + hex.EncodeToString(sum[:]); r.DiffID != want {
				t.Errorf("DiffID is %s, want %s", r.DiffID, want)
			}
			if r.Bytes != 6 || r.Files != 7 {
				t.Errorf("%d bytes in %d files, want 6 in 7", r.Bytes, r.Files)
			}
			if want := []string{"bin", "dev"}; !slices.Equal(r.Implicit, want) {
				t.Errorf("implicit directories %q, want %q", r.Implicit, want)
			}
			if got, want := tree(t, d), []string{"bin", "bin/link", "bin/su", "bin/sudo", "dev", "tmp", "tmp/pipe"}; !slices.Equal(got, want) {
				t.Errorf("unpacked %q, want %q", got, want)
			}
			checkStat(t, d, "bin/su", unix.S_IFREG|0o4755, 7, 8, when)
			checkStat(t, d, "bin/sudo", unix.S_IFREG|0o4755, 7, 8, when)
			checkStat(t, d, "bin/link", unix.S_IFLNK|0o777, 9, 10, when)
			checkStat(t, d, "tmp", unix.S_IFDIR|0o1777, 0, 0, when)
			checkStat(t, d, "tmp/pipe", unix.S_IFIFO|0o622, 0, 0, when)
			checkStat(t, d, "bin", unix.S_IFDIR|0o755, 0, 0, time.Unix(0, 0))
			if a, b := inode(t, d, "bin/su"), inode(t, d, "bin/sudo"); a != b {
				t.Errorf("hard link has inode %d, its target %d", b, a)
			}
			for key, want := range map[string]string{
				"user.color": "blue", "security.capability": capability, "trusted.overlay.redirect": "", "user.overlay.opaque": "",
			} {
				if got := xattr(t, filepath.Join(d, "bin/su"), key); got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
		})
	}
}

func TestUnpackedLayersMerge(t *testing.T) {
	lower, _ := unpack(t,
		dir("etc", 0o755), file("etc/keep", "1"), file("etc/gone", "1"), file("etc/changed", "old"),
		dir("data", 0o755), file("data/old", "1"), file("data/sub/old", "1"),
		dir("cache", 0o755), file("cache/old", "1"), file("cache/hidden", "1"),
		dir("again", 0o755), file("again/old", "1"), file("later/old", "1"),
	)
	upper, _ := unpack(t,
		file("etc/.wh.gone", ""), file("etc/changed", "new"), file("etc/new", "1"),
		file(".wh.data", ""),
		// The opaque mark may come after entries of its directory, and makes other marks redundant.
		dir("cache", 0o700), file("cache/.wh.hidden", ""), file("cache/fresh", "1"), file("cache/.wh..wh..opq", ""),
		// A deleted directory may be made again in the same layer, in either order.
		file(".wh.again", ""), file("again/fresh", "1"),
		file("later/fresh", "1"), file(".wh.later", ""),
		file(".wh..wh.plnk", ""), file("etc/.wh..wh.aufs", ""),
	)
	merged := overlay(t, lower, upper)
	want := []string{
		"again", "again/fresh", "cache", "cache/fresh", "etc", "etc/changed", "etc/keep", "etc/new", "later", "later/fresh",
	}
	if got := tree(t, merged); !slices.Equal(got, want) {
		t.Errorf("merged tree\n%q\nwant\n%q", got, want)
	}
	if b, _ := os.ReadFile(filepath.Join(merged, "etc/changed")); string(b) != "new" {
		t.Errorf("etc/changed is %q", b)
	}
}

func TestInheritKeepsTheLookOfDirectoriesWithoutAnEntry(t *testing.T) {
	when := time.Unix(1e9, 0)
	lower, _ := unpack(t,
		entry{tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: when}, ""},
		entry{tar.Header{Name: "home", Typeflag: tar.TypeDir, Mode: 0o711, ModTime: when}, ""},
		entry{tar.Header{Name: "home/app", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 1000, Gid: 1000, ModTime: when, PAXRecords: map[string]string{
			"SCHILY.xattr.user.color": "red",
		}}, ""},
		dir("usr", 0o755), dir("secret", 0o700), dir("secret/in", 0o711),
	)
	upper, r := unpack(t,
		file("tmp/x", "1"), dir("home", 0o700), file("home/app/x", "1"), file("usr/x", "1"),
		file(".wh.secret", ""), file("secret/in/x", "1"), file("brand/new", "1"),
	)
	dirs, err := layer.Inherit(upper, r.Implicit, []string{lower})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range dirs {
		names = append(names, d.Path)
	}
	// secret was deleted and created again, so the image does not depend on its earlier attributes.
	// They are kept nevertheless, as by other runtimes.
	if want := []string{"home", "home/app", "secret", "secret/in", "tmp"}; !slices.Equal(names, want) {
		t.Fatalf("inherited %q, want %q", names, want)
	}
	shape := t.TempDir()
	if err := layer.Shape(shape, dirs); err != nil {
		t.Fatal(err)
	}
	merged := overlay(t, lower, upper, shape)
	checkStat(t, merged, "tmp", unix.S_IFDIR|0o1777, 0, 0, when)
	checkStat(t, merged, "home", unix.S_IFDIR|0o700, 0, 0, time.Unix(0, 0)) // explicit: its own look
	checkStat(t, merged, "home/app", unix.S_IFDIR|0o750, 1000, 1000, when)
	checkStat(t, merged, "brand", unix.S_IFDIR|0o755, 0, 0, time.Unix(0, 0))
	if got := xattr(t, filepath.Join(merged, "home/app"), "user.color"); got != "red" {
		t.Errorf("user.color is %q", got)
	}
	for _, p := range []string{"tmp/x", "home/app/x", "usr/x", "secret/in/x", "brand/new"} {
		if _, err := os.Stat(filepath.Join(merged, p)); err != nil {
			t.Error(err)
		}
	}
	again, err := layer.Inherit(upper, r.Implicit, []string{lower})
	if err != nil || layer.ShapeID(again) != layer.ShapeID(dirs) {
		t.Errorf("the same directories have the names %s and %s (%v)", layer.ShapeID(again), layer.ShapeID(dirs), err)
	}
	if none, err := layer.Inherit(upper, []string{"brand", "usr"}, []string{lower}); err != nil || len(none) != 0 {
		t.Errorf("inherited %v (%v) where nothing differs", none, err)
	}
}

func TestLinksWithinALayerLeadWhereTheyLeadInTheImage(t *testing.T) {
	d, _ := unpack(t,
		dir("usr", 0o755), dir("usr/lib", 0o755), dir("run", 0o755), dir("var", 0o755),
		symlink("lib", "usr/lib"), symlink("var/run", "/run"), symlink("usr/up", "../run"),
		file("lib/a", "1"), file("var/run/b", "1"), file("usr/up/c", "1"),
		file("lib/new/d", "1"), link("e", "lib/a"),
		// A later directory replaces a link.
		symlink("swap", "usr"), dir("swap", 0o755), file("swap/f", "1"),
	)
	for _, p := range []string{"usr/lib/a", "run/b", "run/c", "usr/lib/new/d", "swap/f"} {
		if fi, err := os.Lstat(filepath.Join(d, p)); err != nil || !fi.Mode().IsRegular() {
			t.Errorf("%s: %v %v", p, fi, err)
		}
	}
	if inode(t, d, "e") != inode(t, d, "usr/lib/a") {
		t.Error("a hard link through a symbolic link is not the same file")
	}
	if _, err := os.Lstat(filepath.Join(d, "usr/f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("usr/f: %v", err)
	}
}

func TestLaterEntriesReplaceEarlierOnes(t *testing.T) {
	d, r := unpack(t,
		file("a", "old"), file("a", "new"),
		dir("b", 0o700), file("b/c/d", "1"), file("b", "a file now"),
		file("c", "1"), dir("c", 0o755), file("c/d", "1"),
		file("target", "safe"), symlink("s", "target"), file("s", "own"),
	)
	for p, want := range map[string]string{"a": "new", "b": "a file now", "c/d": "1", "target": "safe", "s": "own"} {
		if b, err := os.ReadFile(filepath.Join(d, p)); err != nil || string(b) != want {
			t.Errorf("%s is %q (%v), want %q", p, b, err, want)
		}
	}
	if len(r.Implicit) != 0 {
		t.Errorf("implicit directories %q of a tree that was replaced", r.Implicit)
	}
}

func TestHostileLayersAreRefused(t *testing.T) {
	needRoot(t)
	deep := strings.Repeat("d/", 3000)
	sparse := tar.Header{Name: "bomb", Typeflag: tar.TypeReg, Mode: 0o644}
	tests := []struct {
		name    string
		entries []entry
		says    string
	}{
		{"path above the root", []entry{file("../evil", "1")}, "leads out"},
		{"path with dots inside", []entry{file("a/../../evil", "1")}, "leads out"},
		{"file through link above the root", []entry{symlink("x", "../../.."), file("x/evil", "1")}, "leads out"},
		{"file through absolute link to the host", []entry{symlink("x", "/etc"), file("x/passwd", "1")}, "does not hold"},
		{"directory through link", []entry{symlink("x", "../outside"), dir("x/evil", 0o755)}, "leads out"},
		{"whiteout through link", []entry{symlink("x", "/etc"), file("x/.wh.passwd", "")}, "does not hold"},
		{"chain of links", []entry{symlink("a", "b"), symlink("b", "a"), file("a/x", "1")}, "too many links"},
		{"hard link above the root", []entry{link("x", "../../etc/passwd")}, "leads out"},
		{"hard link to the host", []entry{link("x", "/etc/passwd")}, "does not hold"},
		{"hard link through a link", []entry{symlink("y", "/etc"), link("x", "y/passwd")}, "does not hold"},
		{"hard link to a directory", []entry{dir("d", 0o755), link("x", "d")}, "not a file"},
		{"hard link to a whiteout", []entry{file(".wh.w", ""), link("x", "w")}, "not a file"},
		{"hard link to itself", []entry{file("x", "1"), link("x", "x")}, "itself"},
		{"hard link to the root", []entry{link("x", "/")}, "the root"},
		{"character device", []entry{device("etc/mem", tar.TypeChar)}, "device node"},
		{"block device", []entry{device("disk", tar.TypeBlock)}, "device node"},
		{"device behind a link into dev", []entry{dir("dev", 0o755), dir("etc", 0o755), symlink("dev/x", "../etc"), device("dev/x/mem", tar.TypeChar)}, "device node"},
		{"whiteout of nothing", []entry{file(".wh.", "")}, "without a name"},
		{"whiteout of the parent", []entry{file("a/.wh...", "")}, "without a name"},
		{"file where a directory is needed", []entry{file("a", "1"), file("a/b", "1")}, "also has a directory"},
		{"root that is a file", []entry{file(".", "1")}, "root"},
		{"symbolic link to nothing", []entry{symlink("x", "")}, "nowhere"},
		{"unknown type", []entry{{tar.Header{Name: "x", Typeflag: 'Z'}, ""}}, "unknown type"},
		{"too deep", []entry{file(deep+"x", "1")}, "damaged"},
		{"too long", []entry{file(strings.Repeat("n", 300), "1")}, "damaged"},
		{"too many files", slices.Repeat([]entry{file("x", "")}, limits.Files+1), "files"},
		{"too large", []entry{{sparse, strings.Repeat("x", int(limits.Bytes)+1)}}, "larger"},
		{"owner out of range", []entry{{tar.Header{Name: "x", Typeflag: tar.TypeReg, Uid: 1 << 40}, ""}}, "owner"},
		{"huge attribute", []entry{{tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1<<17)}}, ""}}, "attribute"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			outer := t.TempDir()
			d := filepath.Join(outer, "one", "layer")
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
			_, err := layer.Unpack(t.Context(), d, bytes.NewReader(gzipped(t, archive(t, tt.entries...))), limits)
			if hangar.CodeOf(err) != hangar.CodeInvalid || hangar.ReasonOf(err) != hangar.ReasonBadImage {
				t.Fatalf("error is %v (%s, %s)", err, hangar.CodeOf(err), hangar.ReasonOf(err))
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q does not say %q", err, tt.says)
			}
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, outer); !slices.Equal(got, []string{"one"}) {
				t.Errorf("outside of the layer there is %q", got)
			}
		})
	}
}

func TestDamagedLayersAreRefused(t *testing.T) {
	needRoot(t)
	good := archive(t, file("a", strings.Repeat("a", 5000)), file("b", strings.Repeat("b", 5000)))
	packed := gzipped(t, good)
	flipped := bytes.Clone(packed)
	flipped[len(flipped)-6] ^= 1
	zpacked := zstded(t, good)
	bomb := gzipped(t, make([]byte, limits.Bytes+4096*int64(limits.Files)+1<<20))
	for name, data := range map[string][]byte{
		"cut gzip": packed[:len(packed)/2], "flipped checksum": flipped, "cut zstd": zpacked[:len(zpacked)/2],
		"cut tar": good[:6000], "not a tar": bytes.Repeat([]byte("no tar"), 1000), "bad gzip header": {0x1f, 0x8b, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9},
		"gzip bomb": bomb,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := layer.Unpack(t.Context(), t.TempDir(), bytes.NewReader(data), limits)
			if hangar.ReasonOf(err) != hangar.ReasonBadImage {
				t.Fatalf("error is %v", err)
			}
		})
	}
}

func TestUnpackEndsWithItsContext(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := layer.Unpack(ctx, t.TempDir(), bytes.NewReader(archive(t, file("a", "1"))), limits)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v", err)
	}
}

// FuzzUnpack: for any stream, nothing outside of the directory changes and every error has a
// class.
func FuzzUnpack(f *testing.F) {
	needRoot(f)
	f.Add(archive(f, file("a", "1"), dir("d", 0o755), symlink("s", ".."), file("s/x", "1"), link("l", "a"), file("d/.wh.x", ""), file("d/.wh..wh..opq", "")))
	f.Add(archive(f, symlink("s", "/"), file("s/s/s/x", "1"), file(".wh.s", ""), dir("s", 0o700)))
	f.Add(gzipped(f, archive(f, file("a", "1"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		d := filepath.Join(outer, "layer")
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := layer.Unpack(t.Context(), d, bytes.NewReader(data), layer.Limits{Bytes: 1 << 20, Files: 100, Ratio: 1000, Slack: 64 << 20})
		if err != nil && hangar.ReasonOf(err) != hangar.ReasonBadImage {
			t.Fatalf("error without a class: %v", err)
		}
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, outer); len(got) != 0 {
			t.Fatalf("outside of the layer there is %q", got)
		}
	})
}

func checkStat(t *testing.T, root, name string, mode, uid, gid uint32, mtime time.Time) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
		t.Error(err)
		return
	}
	if st.Mode != mode || st.Uid != uid || st.Gid != gid {
		t.Errorf("%s has mode %o, owner %d:%d, want %o, %d:%d", name, st.Mode, st.Uid, st.Gid, mode, uid, gid)
	}
	if got := time.Unix(st.Mtim.Unix()); !got.Equal(mtime) {
		t.Errorf("%s was modified %v, want %v", name, got.UTC(), mtime.UTC())
	}
}

func inode(t *testing.T, root, name string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func xattr(t *testing.T, p, key string) string {
	t.Helper()
	buf := make([]byte, 1024)
	n, err := unix.Lgetxattr(p, key, buf)
	if errors.Is(err, unix.ENODATA) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func gzipped(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func zstded(tb testing.TB, data []byte) []byte {
	tb.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	return w.EncodeAll(data, nil)
}
