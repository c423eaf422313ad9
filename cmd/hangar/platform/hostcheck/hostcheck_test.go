package hostcheck

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/mounttest"
)

// asNobody marks the child process that runs the checks as an unprivileged user.
const asNobody = "HANGAR_HOSTCHECK_TEST_NOBODY"

func TestMain(m *testing.M) {
	if os.Getenv(asNobody) != "" {
		if err := json.NewEncoder(os.Stdout).Encode(Run(context.Background(), Options{Dir: "/"})); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var names = []string{
	"root", "kernel", "cgroups", "namespaces", "overlayfs", "writable layers", "nftables", "ipv6", "firewall", "tun", "disk", "limits", "time", "local names",
	"kvm", "volumes", "volume tools", "loop devices", "device mapper", "fuse", "qemu-storage-daemon", "volume growth",
}

func wellFormed(t *testing.T, checks []Check) {
	t.Helper()
	var got []string
	for _, c := range checks {
		got = append(got, c.Name)
		if c.Detail == "" {
			t.Errorf("%s has no detail", c.Name)
		}
		switch c.Status {
		case OK:
			if c.Fix != "" {
				t.Errorf("%s is ok, but has the fix %q", c.Name, c.Fix)
			}
		case Warn, Fail:
			t.Logf("%s %s: %s. %s", c.Status, c.Name, c.Detail, c.Fix)
			if c.Fix == "" {
				t.Errorf("%s is not ok, but has no fix", c.Name)
			}
		default:
			t.Errorf("%s is %q", c.Name, c.Status)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("checks are %q, want %q", got, names)
	}
}

// hostState returns everything that checks could leave behind.
func hostState(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	mounts, err := mounttest.Mentioning("doctor", dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		fmt.Fprintln(&b, *m)
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "doctor") {
			fmt.Fprintln(&b, l.Attrs().Name)
		}
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if strings.Contains(table.Name, "doctor") {
			fmt.Fprintln(&b, table.Name)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/hangar-doctor*", "/sys/fs/cgroup/*/hangar-doctor*", dir + "/*", dir + "/.*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, found)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, len(fds))
	return b.String()
}

func TestRunAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "not", "yet", "there")
	Run(t.Context(), Options{Dir: data}) // the runtime opens files of its own on first use
	var checks []Check
	for attempt := 1; ; attempt++ { // it includes the checks of other processes
		before := hostState(t, dir)
		checks = Run(t.Context(), Options{Dir: data})
		after := hostState(t, dir)
		if after == before {
			break
		}
		if attempt == 5 {
			t.Fatalf("host before:\n%s\nafter:\n%s", before, after)
		}
	}
	wellFormed(t, checks)
	for _, c := range checks {
		// The platform's own tests need these checks to pass.
		if c.Status == Fail {
			t.Errorf("%s fails: %s", c.Name, c.Detail)
		}
	}
}

func TestRunAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asNobody+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var checks []Check
	if err := json.Unmarshal(out, &checks); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	wellFormed(t, checks)
	for _, c := range checks {
		if want := Fail; slices.Contains([]string{"root", "cgroups", "namespaces", "overlayfs", "writable layers", "nftables", "ipv6"}, c.Name) && c.Status != want {
			t.Errorf("%s is %s for an unprivileged user, want %s", c.Name, c.Status, want)
		}
	}
}

func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if checks := Run(ctx, Options{Dir: "/"}); len(checks) != 0 {
		t.Errorf("made %d checks", len(checks))
	}
}

func TestOverlayIsReallyTried(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// No overlay can have its upper layer in /proc.
	if c := checkOverlay("/proc"); c.Status != Fail {
		t.Errorf("in /proc: %+v", c)
	}
}

func TestVerdicts(t *testing.T) {
	const gib = 1 << 30
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	chain := func(policy *nftables.ChainPolicy, hook *nftables.ChainHook, family nftables.TableFamily) Check {
		if drops(&nftables.Chain{Policy: policy, Hooknum: hook, Table: &nftables.Table{Family: family}}) {
			return Check{Status: Warn}
		}
		return Check{Status: OK}
	}
	for name, c := range map[string]struct {
		got  Check
		want Status
	}{
		"disk full":            {verdictDisk("/", unix.EXT4_SUPER_MAGIC, gib/2, 1e6, 1e6), Fail},
		"disk small":           {verdictDisk("/", unix.EXT4_SUPER_MAGIC, 5*gib, 1e6, 1e6), Warn},
		"disk good":            {verdictDisk("/", unix.EXT4_SUPER_MAGIC, 50*gib, 1e6, 1e6), OK},
		"few inodes":           {verdictDisk("/", unix.EXT4_SUPER_MAGIC, 50*gib, 1e6, 10), Warn},
		"no inodes":            {verdictDisk("/", unix.EXT4_SUPER_MAGIC, 50*gib, 0, 0), OK},
		"btrfs":                {verdictDisk("/", unix.BTRFS_SUPER_MAGIC, 50*gib, 0, 0), Warn},
		"few files":            {verdictLimits(1024, 128, 32768), Warn},
		"few inotify":          {verdictLimits(1<<20, 8, 32768), Warn},
		"few processes":        {verdictLimits(1<<20, 128, 4096), Warn},
		"enough":               {verdictLimits(1<<20, 128, 32768), OK},
		"time":                 {verdictTime(unix.TIME_OK, 0), OK},
		"local names":          {verdictLocalNames("::1             STREAM app.hangar.localhost\n::1             DGRAM  \n"), OK},
		"no local names":       {verdictLocalNames(""), Warn},
		"foreign local names":  {verdictLocalNames("192.0.2.1       STREAM app.hangar.localhost\n"), Warn},
		"time is unsynced":     {verdictTime(unix.TIME_OK, unix.STA_UNSYNC), Warn},
		"time is wrong":        {verdictTime(unix.TIME_ERROR, 0), Warn},
		"forward drops":        {chain(&drop, nftables.ChainHookForward, nftables.TableFamilyIPv4), Warn},
		"forward accepts":      {chain(&accept, nftables.ChainHookForward, nftables.TableFamilyIPv4), OK},
		"input drops":          {chain(&drop, nftables.ChainHookInput, nftables.TableFamilyINet), OK},
		"no base chain":        {chain(nil, nil, nftables.TableFamilyINet), OK},
		"volumes by kernel":    {verdictVolumes(nil, unix.ENOENT), OK},
		"volumes by daemon":    {verdictVolumes(unix.ENOENT, nil), Warn},
		"no volumes":           {verdictVolumes(unix.ENOENT, unix.ENODEV), Warn},
		"bridge forward drops": {chain(&drop, nftables.ChainHookForward, nftables.TableFamilyBridge), OK},
	} {
		if c.got.Status != c.want {
			t.Errorf("%s: %+v, want %s", name, c.got, c.want)
		}
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: dir, dir + "/a/b": dir, file: dir, file + "/a": dir, "/": "/", "/no-such-directory": "/",
	} {
		if got := existing(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
