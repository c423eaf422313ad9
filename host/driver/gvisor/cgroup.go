package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/cgroup"
)

// cgroups are the control groups of all sandboxes of one driver. The engine makes
// them; the driver reads, adjusts and removes them.
type cgroups struct {
	parent string
	v2     bool
	// hierarchies are the mounted directories that hold a group of each sandbox: one for version 2,
	// one per controller for version 1.
	hierarchies []string
	// own is the process list of this process's memory group in version 1; see quicken.
	own string
}

// findCgroups finds the host's control groups.
func findCgroups(parent string) (cgroups, error) {
	if parent == "" || strings.Contains(parent, "/") {
		return cgroups{}, fmt.Errorf("cgroup parent %q: must be one name", parent)
	}
	c := cgroups{parent: parent}
	unified, err := cgroup.Unified()
	if err != nil {
		return cgroups{}, err
	}
	if unified {
		c.v2 = true
		c.hierarchies = []string{cgroup.Root}
		return c, nil
	}
	entries, err := os.ReadDir(cgroup.Root)
	if err != nil {
		return cgroups{}, err
	}
	var st unix.Statfs_t
	for _, e := range entries {
		dir := filepath.Join(cgroup.Root, e.Name())
		if e.Type()&os.ModeSymlink != 0 { // "cpu" may be a link to "cpu,cpuacct"
			continue
		}
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
			c.hierarchies = append(c.hierarchies, dir)
		}
	}
	for _, need := range []string{"memory", "cpu"} {
		if _, err := os.Stat(filepath.Join(cgroup.Root, need)); err != nil {
			return cgroups{}, fmt.Errorf("no %s controller: %w", need, err)
		}
	}
	c.own = ownGroup()
	return c, nil
}

// ownGroup returns the process list of this process's memory group, or "" where the process cannot
// see that group, as in some containers.
func ownGroup() string {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 || fields[1] != "memory" {
			continue
		}
		path := filepath.Join(cgroup.Root, "memory", fields[2], "cgroup.procs")
		members, err := os.ReadFile(path)
		if err == nil && slices.Contains(strings.Fields(string(members)), strconv.Itoa(os.Getpid())) {
			return path
		}
	}
	return ""
}

// quicken speeds up the engine's move into its group. In version 1, the kernel waits up to 15 ms for
// an RCU grace period before the first move after a pause. So this process "moves" to its own group,
// and the wait is over when the engine moves.
func (c cgroups) quicken() {
	if c.own == "" {
		return
	}
	f, err := os.OpenFile(c.own, os.O_WRONLY, 0)
	if err != nil {
		return // the engine waits instead
	}
	_, _ = f.WriteString("0")
	_ = f.Close()
}

// path is the name of a sandbox's group in the OCI configuration.
func (c cgroups) path(id string) string { return "/" + c.parent + "/" + id }

// file is a control file of a sandbox's group.
func (c cgroups) file(id, controller, name string) string {
	if c.v2 {
		controller = ""
	}
	return filepath.Join(cgroup.Root, controller, c.parent, id, name)
}

// oomKills returns how often the kernel ran out of memory in the group and killed a process.
func (c cgroups) oomKills(id string) (int64, error) {
	name := "memory.oom_control"
	if c.v2 {
		name = "memory.events"
	}
	return c.field(c.file(id, "memory", name), "oom_kill")
}

// field returns the number that follows a key in a file of "key number" lines.
func (c cgroups) field(path, key string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, key)
}

func number(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// memory returns the bytes that the group holds, without the file cache that the kernel could free at
// once.
func (c cgroups) memory(id string) (int64, error) {
	usage, inactive := "memory.usage_in_bytes", "total_inactive_file"
	if c.v2 {
		usage, inactive = "memory.current", "inactive_file"
	}
	n, err := number(c.file(id, "memory", usage))
	if err != nil {
		return 0, err
	}
	if cache, err := c.field(c.file(id, "memory", "memory.stat"), inactive); err == nil && cache < n {
		n -= cache
	}
	return n, nil
}

// cpuTime returns the processor time of the group.
func (c cgroups) cpuTime(id string) (time.Duration, error) {
	if c.v2 {
		us, err := c.field(c.file(id, "", "cpu.stat"), "usage_usec")
		return time.Duration(us) * time.Microsecond, err
	}
	ns, err := number(c.file(id, "cpuacct", "cpuacct.usage"))
	return time.Duration(ns), err
}

// memoryLimit returns the limit that setMemoryLimit changes.
func (c cgroups) memoryLimit(id string) (int64, error) { return number(c.limitFile(id)) }

// setMemoryLimit changes the limit of a running sandbox, in bytes.
func (c cgroups) setMemoryLimit(id string, limit int64) error {
	return os.WriteFile(c.limitFile(id), []byte(strconv.FormatInt(limit, 10)), 0o600)
}

func (c cgroups) limitFile(id string) string {
	name := "memory.limit_in_bytes"
	if c.v2 {
		name = "memory.max"
	}
	return c.file(id, "memory", name)
}

// limitParent limits the memory of all sandboxes together, in bytes. Above the limit the kernel kills
// one of them, and no other process of the host (docs/adr/0032-quotas.md).
func (c cgroups) limitParent(limit int64) error {
	_, err := cgroup.LimitMemory(c.parent, limit)
	return err
}

// hasSwap reports whether the host has swap and its kernel counts the use by group.
func (c cgroups) hasSwap() bool {
	raw, err := os.ReadFile("/proc/swaps")
	if err != nil || strings.Count(strings.TrimSpace(string(raw)), "\n") == 0 {
		return false // the first line is a header
	}
	counted := filepath.Join(cgroup.Root, "memory", "memory.memsw.limit_in_bytes")
	if c.v2 {
		// The root group has no limits, so look at the others.
		groups, err := filepath.Glob(filepath.Join(cgroup.Root, "*", "memory.swap.max"))
		return err == nil && len(groups) > 0
	}
	_, err = os.Stat(counted)
	return err == nil
}

// processes returns the process ids in the sandbox's groups.
func (c cgroups) processes(id string) []int {
	seen := make(map[int]bool)
	var pids []int
	for _, h := range c.hierarchies {
		raw, err := os.ReadFile(filepath.Join(h, c.parent, id, "cgroup.procs"))
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// remove removes the sandbox's groups. The error is EBUSY, wrapped, while they contain processes.
func (c cgroups) remove(id string) error {
	var errs []error
	for _, h := range c.hierarchies {
		errs = append(errs, cgroup.Remove(filepath.Join(h, c.parent, id)))
	}
	return errors.Join(errs...)
}

func (c cgroups) removeParent() error {
	var errs []error
	for _, h := range c.hierarchies {
		errs = append(errs, cgroup.Remove(filepath.Join(h, c.parent)))
	}
	return errors.Join(errs...)
}

// ids returns the ids of the sandboxes that have a group.
func (c cgroups) ids() []string {
	seen := make(map[string]bool)
	var out []string
	for _, h := range c.hierarchies {
		entries, err := os.ReadDir(filepath.Join(h, c.parent))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out
}
