package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/debian"
)

// TestPackage makes what is released and installs the Debian package in a clean system, updates it over a
// running platform with a Machine, which must not notice, and removes it, after which the system is what it
// was. There is no systemd in it: testdata/systemctl does what the unit says.
func TestPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("end-to-end tests are left out of short runs")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: a system of its own is made")
	}
	dir := dist(t, "v1.2.0-rc1")
	checkArchive(t, filepath.Join(dir, "hangar-1.2.0-rc1-linux-amd64.tar.gz"))
	first := filepath.Join(dir, "hangar_1.2.0~rc1_amd64.deb")

	c := newCleanSystem(t)
	c.put(t, first, "/first.deb")
	c.put(t, nextVersion(t, first, "1.2.0"), "/second.deb")
	if out, err := exec.Command("cp", "-a", daemon.Busybox(t, "sh", "od", "head", "httpd"), filepath.Join(c.root, "image")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := c.files(t)

	c.run(t, "dpkg", "-i", "/first.deb")
	if v := c.run(t, "hangar", "version"); !strings.HasPrefix(v, "hangar v") {
		t.Errorf("hangar version prints %q", v)
	}
	for _, path := range []string{
		"usr/share/man/man1/hangar-machine-run.1.gz", "usr/share/bash-completion/completions/hangar", "usr/share/doc/hangar/examples/hangar.yaml",
		"usr/share/doc/hangar/licences/go", "usr/share/doc/hangar/sbom", "usr/lib/systemd/system/hangar.service",
	} {
		if _, err := os.Stat(filepath.Join(c.root, path)); err != nil {
			t.Error(err)
		}
	}
	c.run(t, "hangar", "doctor")

	c.run(t, "systemctl", "enable", "--now", "hangar")
	c.run(t, "hangar", "apps", "create", "hello")
	image := strings.Fields(c.run(t, "hangar", "image", "push", "/image", "image"))
	c.run(t, "hangar", "machine", "run", "hello", image[len(image)-1], "--name", "web", "--port", "80:8080", "--",
		"sh", "-c", "mkdir /www && head -c 8 /dev/urandom | od -x >/www/born && exec httpd -f -p 8080 -h /www")
	born := func() string { return c.run(t, "curl", "-sSf", "http://hello.hangar.localhost/born") }
	if log := c.run(t, "cat", "/run/hangar.log"); strings.Contains(log, "msg=etcd") {
		t.Errorf("the first start logs what etcd says:\n%s", log)
	}
	marker, events, process := born(), c.events(t), c.run(t, "cat", "/run/hangar.pid")
	if len(marker) < 10 || len(events) < 2 {
		t.Fatalf("the Machine serves %q and had the events %v", marker, events)
	}

	c.run(t, "dpkg", "-i", "/second.deb")
	if v := c.run(t, "dpkg-query", "-W", "-f", "${Version}", "hangar"); v != "1.2.0" {
		t.Errorf("after the update, %s is installed", v)
	}
	if c.run(t, "cat", "/run/hangar.pid") == process {
		t.Error("the daemon was not restarted by the update")
	}
	if now := born(); now != marker {
		t.Errorf("the program in the Machine was %s and is %s", marker, now)
	}
	if now := c.events(t); !slices.Equal(now, events) {
		t.Errorf("the Machine's events were %v and are %v", events, now)
	}

	if out, err := c.try("dpkg", "--remove", "hangar"); err == nil || !strings.Contains(out, "hangar down") {
		t.Errorf("the package of a platform with Machines is removed: %v\n%s", err, out)
	}
	if now := born(); now != marker {
		t.Errorf("after a removal that was refused, the program was %s and is %s", marker, now)
	}
	c.run(t, "systemctl", "disable", "--now", "hangar")
	c.run(t, "hangar", "down", "--yes")
	c.run(t, "dpkg", "--purge", "hangar")
	if after := c.files(t); !slices.Equal(after, before) {
		t.Errorf("after the removal there is more, or less: %v", changes(before, after))
	}
	if left := c.processes(t); len(left) > 0 {
		t.Errorf("after the removal there run %v", left)
	}
}

// dist makes the release of bin/ under a version and returns the directory.
func dist(t *testing.T, version string) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	sbom := ""
	if !short() { // each program takes seconds
		tools, err := filepath.Glob(filepath.Join(root, ".tools", "cyclonedx-gomod-*"))
		if err != nil || len(tools) == 0 {
			t.Fatalf("no cyclonedx-gomod in .tools (%v): run `make dist`", err)
		}
		sbom = tools[len(tools)-1]
	}
	dir := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, ".ci", "dist"), dir)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "VERSION="+version, "SBOM="+sbom)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dist: %v\n%s", err, out)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != 2 {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}
	return dir
}

// checkArchive looks for what must be in an archive: the programs, and what is linked into them.
func checkArchive(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	names, linked, licensed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for archive := tar.NewReader(text); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		names[name] = true
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o022 != 0 {
			t.Errorf("%s belongs to %d:%d and has mode %o", h.Name, h.Uid, h.Gid, h.Mode)
		}
		if !strings.HasSuffix(name, ".cdx.json") {
			continue
		}
		var bill struct {
			BOMFormat  string `json:"bomFormat"`
			Components []struct {
				Name     string `json:"name"`
				Evidence struct {
					Licenses []any `json:"licenses"`
				} `json:"evidence"`
			} `json:"components"`
		}
		if err := json.NewDecoder(archive).Decode(&bill); err != nil || bill.BOMFormat != "CycloneDX" {
			t.Errorf("%s: %v, %q", name, err, bill.BOMFormat)
		}
		for _, c := range bill.Components {
			linked[c.Name] = true
			licensed[c.Name] = licensed[c.Name] || len(c.Evidence.Licenses) > 0
		}
	}
	for _, name := range []string{"hangar", "hangar-db", "LICENSE", "hangar.service", "hangar.yaml", "man/hangar.1", "completions/hangar.zsh", "licences/go"} {
		if !names[name] {
			t.Errorf("the archive lacks %s", name)
		}
	}
	for _, module := range []string{"gvisor.dev/gvisor", "github.com/VictoriaMetrics/VictoriaMetrics", "go.etcd.io/etcd/server/v3", "github.com/spf13/cobra"} {
		if !licensed[module] && !short() {
			t.Errorf("%s is linked in (%t), and no bill of materials has its licence", module, linked[module])
		}
	}
}

// nextVersion makes of a package one with a later version, whose program is another file.
func nextVersion(t *testing.T, deb, version string) string {
	t.Helper()
	dir := t.TempDir()
	script := `dpkg-deb -R "$1" tree && sed -i "s/^Version: .*/Version: $2/" tree/DEBIAN/control &&
		echo another >>tree/usr/bin/hangar && dpkg-deb --root-owner-group -Znone -b tree next.deb`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", deb, version)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make another version: %v\n%s", err, out)
	}
	return filepath.Join(dir, "next.deb")
}

// cleanSystem is a Debian system in namespaces of its own, that ends with the test.
type cleanSystem struct {
	root string
	init *exec.Cmd
}

// enterRoot makes a directory the root of the namespaces that it runs in, and stays as their first process,
// which waits for orphans.
const enterRoot = `set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs sys sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mkdir -p run/systemd/system run/lock
ip link set lo up
mkdir -p old
pivot_root . old
umount -l old
exec chroot . sh -c 'rmdir /old; sleep infinity & echo ready; wait'`

// newCleanSystem makes a system that has what the package depends on, and curl.
func newCleanSystem(t *testing.T) *cleanSystem {
	t.Helper()
	image := build(t, debian.Recipe{
		Packages: []string{"ca-certificates", "cryptsetup-bin", "curl", "dmsetup", "e2fsprogs", "kmod", "procps"},
		Version:  "cat /etc/debian_version",
	})
	root, err := os.MkdirTemp("", "hgr") //nolint:usetesting // sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	c := &cleanSystem{root: root}
	t.Cleanup(func() {
		if c.init != nil {
			_ = c.init.Process.Kill() // and with it all processes of its namespace
			_ = c.init.Wait()
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	files := mutate.Extract(image)
	defer files.Close()
	unpack := exec.CommandContext(t.Context(), "tar", "-C", root, "--numeric-owner", "-xpf", "-")
	unpack.Stdin = files
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack the system: %v\n%s", err, out)
	}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Images leave out what this is about: manuals and documents.
	if err := os.Remove(filepath.Join(root, "etc/dpkg/dpkg.cfg.d/90image")); err != nil {
		t.Fatal(err)
	}
	c.put(t, filepath.Join("testdata", "systemctl"), "/usr/bin/systemctl")

	c.init = exec.Command("sh", "-c", enterRoot, "sh", root)
	c.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	var complaints bytes.Buffer
	c.init.Stderr = &complaints
	out, err := c.init.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.init.Start(); err != nil {
		c.init = nil
		t.Fatal(err)
	}
	if line, err := io.ReadAll(io.LimitReader(out, 6)); err != nil || string(line) != "ready\n" {
		_ = c.init.Process.Kill()
		t.Fatalf("the system does not start: %q, %v\n%s", line, err, &complaints)
	}
	return c
}

// put copies a file into the system.
func (c *cleanSystem) put(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "cp", from, filepath.Join(c.root, to)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// try runs a command in the system and returns what it prints, on standard error, too, if it fails.
func (c *cleanSystem) try(args ...string) (string, error) {
	enter := []string{"--target", strconv.Itoa(c.init.Process.Pid), "--mount", "--pid", "--net", "--root", "--wd", "--"}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	cmd.WaitDelay = time.Second // a daemon that it starts may keep its output
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return stdout.String() + stderr.String(), fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return stdout.String(), nil
}

// run is try for a command that must not fail.
func (c *cleanSystem) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	if err != nil {
		daemon, _ := c.try("tail", "-n", "20", "/run/hangar.log")
		t.Fatalf("%v\n%s\nthe daemon:\n%s", err, out, daemon)
	}
	return out
}

// events are those of the Machine.
func (c *cleanSystem) events(t *testing.T) []string {
	t.Helper()
	var events []hangar.Event
	if err := json.Unmarshal([]byte(c.run(t, "hangar", "machine", "events", "hello", "web", "--json")), &events); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, fmt.Sprint(e.Type, " ", e.Status))
	}
	return kinds
}

// files lists what is on the disk of the system, except for dpkg's records.
func (c *cleanSystem) files(t *testing.T) []string {
	t.Helper()
	return strings.Split(c.run(t, "find", "/", "-xdev", "-path", "/var/lib/dpkg", "-prune", "-o", "-path", "/var/log", "-prune", "-o", "-print"), "\n")
}

// processes lists the commands that run in the system, except for those that keep it and the one
// that looks.
func (c *cleanSystem) processes(t *testing.T) []string {
	t.Helper()
	var left []string
	for line := range strings.Lines(c.run(t, "ps", "-eo", "pid=,args=")) {
		if pid, command, _ := strings.Cut(strings.TrimSpace(line), " "); pid != "1" && command != "sleep infinity" && !strings.HasPrefix(command, "ps ") {
			left = append(left, command)
		}
	}
	return left
}

// changes are the lines that only one of two lists has.
func changes(before, after []string) []string {
	var list []string
	for _, line := range after {
		if !slices.Contains(before, line) {
			list = append(list, "+"+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			list = append(list, "-"+line)
		}
	}
	return list
}
