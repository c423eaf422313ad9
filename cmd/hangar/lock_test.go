package main

import (
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/control/oidc"
)

func TestLockIsExclusiveAndEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); !errors.Is(err, errLocked) {
		t.Errorf("second lock: %v", err)
	}
	d, err := findDaemon(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.pid != os.Getpid() {
		t.Errorf("found process %d", d.pid)
	}
	d.close()
	first.release()
	again, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}

// TestLockOutlivesItsHolder: a daemon that was killed while it started a child leaves the lock to
// that until the child runs its own program. The next daemon waits for it.
func TestLockOutlivesItsHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{lock.f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.release()
	ended := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		_ = child.Process.Kill()
		ended <- child.Wait()
	})
	again, err := lockDir(dir)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}

// TestFindDaemonTrustsNoPID: a pid that was given to another process is not killed.
func TestFindDaemonTrustsNoPID(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	for _, content := range []string{strconv.Itoa(stranger.Process.Pid), "1", "-1", "", "x", strconv.Itoa(1 << 30)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, lockFile), []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if d, err := findDaemon(dir); err == nil {
			t.Errorf("%q: found process %d", content, d.pid)
			d.close()
		}
	}
	if _, err := findDaemon(t.TempDir()); err == nil {
		t.Error("found a daemon where there is no lock")
	}
}

// TestStopKillsWhatDoesNotEnd: a process that ignores SIGTERM is killed.
func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The shell holds the lock file open, as a daemon does.
	cmd := exec.Command("sh", "-c", `exec 9>"$1"; echo $$ >&9; trap '' TERM; echo ready; while :; do read x || exec sleep 60; done`, "sh", filepath.Join(dir, lockFile))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	d, err := findDaemon(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if d.managed() != (os.Getenv("NOTIFY_SOCKET") != "") {
		t.Error("wrong about systemd")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.stop(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("stop with a context that ended: %v", err)
	}
	if err := d.stop(t.Context(), 0); err != nil {
		// Patience is over at once, also for the kill, which takes effect soon.
		if ended, _ := d.ended(t.Context(), time.Minute); !ended {
			t.Errorf("stop: %v", err)
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	all, err := mountsBelow("")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(all, "/proc") {
		t.Errorf("/proc is not among %v", all)
	}
	parent := t.TempDir()
	none, err := mountsBelow(parent)
	if err != nil || len(none) > 0 {
		t.Errorf("below a new directory: %v, %v", none, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("without root nothing is mounted at a name that has to be escaped")
	}
	escaped := filepath.Join(parent, `a b\c`)
	if err := errors.Join(os.Mkdir(escaped, 0o700), unix.Mount("tmpfs", escaped, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	mounts, err := mountsBelow(parent)
	if err != nil || !slices.Equal(mounts, []string{escaped}) {
		t.Errorf("mounted: %q, %v, want %q", mounts, err, escaped)
	}
	if err := unix.Unmount(escaped, 0); err != nil {
		t.Error(err)
	}
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	good := func() config {
		return config{
			Dir: "/var/lib/hangar", API: defaultAPI, HTTP: defaultHTTP, HTTPS: defaultHTTPS,
			Region: defaultRegion, Domain: defaultDomain, Driver: driverGvisor, OIDCPeriod: oidc.DefaultPeriod,
			VolumeOvercommit: 1, VolumesPerMachine: 1, MemoryOvercommit: 1, CPUOvercommit: 32, RootfsSize: 8,
		}
	}
	for _, address := range []string{"https://oidc.example.com", "https://example.com/oidc/", "http://[::1]:8080"} {
		c := good()
		c.OIDC = address
		if err := c.validate(); err != nil {
			t.Error(err)
		}
	}
	if c := good(); c.validate() != nil {
		t.Fatalf("the defaults: %v", c.validate())
	}
	for name, spoil := range map[string]func(*config){
		"--dir":    func(c *config) { c.Dir = "/" + strings.Repeat("x", maxDirBytes) },
		"root":     func(c *config) { c.Dir = "/" },
		"--api":    func(c *config) { c.API = "4280" },
		"--http":   func(c *config) { c.HTTP = ":http5" },
		"--https":  func(c *config) { c.HTTPS = "x:70000" },
		"--region": func(c *config) { c.Region = "Local" },
		"--domain": func(c *config) { c.Domain = "-x.example" },
		"--driver": func(c *config) { c.Driver = "docker" },
		"--etcd":   func(c *config) { c.Etcd = []string{"host:2379"} },

		"--oidc-url":                            func(c *config) { c.OIDC = "oidc.example.com" },
		`--oidc-url "https:"`:                   func(c *config) { c.OIDC = "https:" },
		"?":                                     func(c *config) { c.OIDC = "https://oidc.example.com/?org=" },
		"--oidc-rotate-every":                   func(c *config) { c.OIDCPeriod = time.Minute },
		`--allow-egress "10.0.0.1"`:             func(c *config) { c.AllowEgress = []string{"192.168.7.0/24", "10.0.0.1"} },
		"--allow-egress 10.1.2.3/16: the":       func(c *config) { c.AllowEgress = []string{"10.1.2.3/16"} },
		"--allow-egress ::ffff:10.0.0.0/104":    func(c *config) { c.AllowEgress = []string{"::ffff:10.0.0.0/104"} },
		"--allow-egress fdaa:0:5::/48: the":     func(c *config) { c.AllowEgress = []string{"fdaa:0:5::/48"} },
		`--allow-egress "example.com/24": must`: func(c *config) { c.AllowEgress = []string{"example.com/24"} },
		"--volume-overcommit 0: must":           func(c *config) { c.VolumeOvercommit = 0 },
		"--volume-overcommit NaN: must":         func(c *config) { c.VolumeOvercommit = math.NaN() },
		"--volume-overcommit 1001: must":        func(c *config) { c.VolumeOvercommit = 1001 },
		"--memory-overcommit 0: must":           func(c *config) { c.MemoryOvercommit = 0 },
		"--cpu-overcommit NaN: must":            func(c *config) { c.CPUOvercommit = math.NaN() },
		"--volumes-per-machine 17: must":        func(c *config) { c.VolumesPerMachine = 17 },
		"--rootfs-size 0: must":                 func(c *config) { c.RootfsSize = 0 },
		"--rootfs-size 501: must":               func(c *config) { c.RootfsSize = 501 },
		"--snapshots: ":                         func(c *config) { c.Snapshots = "file://relative/dir" },
	} {
		c := good()
		spoil(&c)
		err := c.validate()
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestConfigSurvivesOnDisk(t *testing.T) {
	t.Parallel()
	c := config{Dir: t.TempDir(), API: "127.0.0.1:0", Driver: driverFake, Etcd: []string{"http://x:1"}, Region: "ams", AllowEgress: []string{"10.0.0.0/8"}}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	got, err := loadConfig(c.Dir)
	if err != nil || got.Driver != c.Driver || got.Region != c.Region || got.Etcd[0] != c.Etcd[0] {
		t.Errorf("got %+v, %v", got, err)
	}
	if egress, err := got.egress(); err != nil || len(egress) != 1 || egress[0].String() != "10.0.0.0/8" {
		t.Errorf("egress to %v, %v", egress, err)
	}
	if _, err := loadConfig(t.TempDir()); err == nil {
		t.Error("an empty directory was taken for a data directory")
	}
}

func TestDetachedArgs(t *testing.T) {
	t.Parallel()
	got := detachedArgs([]string{"--dir", "/d", "up", "-d", "--detach", "--api", "x"})
	if want := "--dir /d up --api x --signal-ready"; strings.Join(got, " ") != want {
		t.Errorf("got %v", got)
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "example.com:1": "example.com:1",
	} {
		if got := reachable(addr); got != want {
			t.Errorf("%s: got %s", addr, got)
		}
	}
}
