package gvisor

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
)

// Memory that the sandbox needs beside the guest's own. With sentryHeadroom, a guest that fills its
// memory can be suspended. A resume needs resumeHeadroom until its pages are loaded, or the kernel
// kills it.
const (
	sentryHeadroom = 64 << 20
	resumeHeadroom = 128 << 20
)

// cpuPeriod is the period of the CPU quota, in microseconds.
const cpuPeriod = 100_000

// guestLimits are resource limits for which gVisor's defaults are too low.
func guestLimits() []specs.POSIXRlimit {
	const unlimited = 1<<64 - 1
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: 10_240, Hard: 1 << 20},
		{Type: "RLIMIT_MEMLOCK", Soft: unlimited, Hard: unlimited},
		{Type: "RLIMIT_SIGPENDING", Soft: 1 << 14, Hard: 1 << 14},
	}
}

// guestCapabilities are all capabilities that gVisor emulates: a Machine is a computer of its own,
// and its root user is root. They do not apply to the host.
func guestCapabilities() []string {
	return []string{
		"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_CHOWN",
		"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
		"CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD",
		"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID",
		"CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT",
		"CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE",
		"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
	}
}

// guestMemory is the size of the memory that the guest sees, in bytes.
func guestMemory(spec *driver.Spec) int64 { return int64(spec.MemoryMB) << 20 }

// runtimeSpec returns the OCI configuration of a sandbox.
func (d *Driver) runtimeSpec(spec *driver.Spec, headroom int64) *specs.Spec {
	limit := guestMemory(spec) + headroom
	quota := int64(spec.CPUs) * cpuPeriod
	period := uint64(cpuPeriod)
	network := specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: spec.NetNS}
	all := guestCapabilities()
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
		{
			Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "nodev", "mode=1777", "size=" + strconv.FormatInt(guestMemory(spec)/2, 10)},
		},
	}
	for _, m := range spec.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		mounts = append(mounts, specs.Mount{
			Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", access},
		})
	}
	args, env := initCommand(spec)
	memory := &specs.LinuxMemory{Limit: &limit}
	if spec.SwapMB > 0 && d.cgroup.hasSwap() {
		total := limit + int64(spec.SwapMB)<<20
		memory.Swap = &total
	}
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: rootfsDir(spec.Dir)},
		Process: &specs.Process{
			Args: args,
			Env:  env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: all, Effective: all, Permitted: all, Inheritable: nil, Ambient: nil,
			},
			Rlimits: guestLimits(),
		},
		Hostname: spec.Hostname,
		Mounts:   mounts,
		Linux: &specs.Linux{
			CgroupsPath: d.cgroup.path(string(spec.ID)),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				network,
			},
			Resources: &specs.LinuxResources{
				Memory: memory,
				CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
				Pids:   &specs.LinuxPids{Limit: maxTasks(guestMemory(spec))},
			},
		},
	}
}

// initCommand returns the arguments and the environment that start the guest's init.
func initCommand(spec *driver.Spec) (args, env []string) {
	cmd := spec.Command
	if len(spec.Others) == 0 {
		return guestinit.Args(initPath, spec.TTY, cmd.UID, cmd.GID, cmd.Groups, cmd.Dir, cmd.Args), cmd.Env
	}
	commands := make([]guestinit.ManyCommand, 0, 1+len(spec.Others))
	for _, c := range commandsOf(spec) {
		commands = append(commands, guestinit.ManyCommand{
			Args: c.Args, Env: c.Env, Dir: c.Dir, UID: c.UID, GID: c.GID, Groups: c.Groups,
		})
	}
	return guestinit.SeveralArgs(initPath, int(spec.StopSignal), spec.StopGrace, commands)
}

// specDigest identifies everything that a snapshot depends on. It omits what may change between
// suspend and resume: environment, host name, limits, network and the sources of mounts.
func (d *Driver) specDigest(spec *driver.Spec) (string, error) {
	type mount struct {
		Target   string
		ReadOnly bool
	}
	args, _ := initCommand(spec)
	fixed := struct {
		Layers []string
		Init   string
		Args   []string
		Memory int
		Mounts []mount
		Caps   []string
		Limits []specs.POSIXRlimit
	}{
		Layers: spec.Root.Layers,
		Init:   digest(guestinit.Binary()),
		Args:   args,
		Memory: spec.MemoryMB, Caps: guestCapabilities(), Limits: guestLimits(),
	}
	for _, m := range spec.Mounts {
		fixed.Mounts = append(fixed.Mounts, mount{m.Target, m.ReadOnly})
	}
	raw, err := json.Marshal(fixed)
	if err != nil {
		return "", err
	}
	return digest(raw), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

// writeBundle writes the files that the engine reads, and removes files of an earlier sandbox.
func (d *Driver) writeBundle(spec *driver.Spec, headroom int64) error {
	raw, err := json.Marshal(d.runtimeSpec(spec, headroom))
	if err != nil {
		return err
	}
	if err := removeFiles(spec.Dir, bundle.ExitFile, bundle.SuspendFile); err != nil {
		return err
	}
	sum, err := d.specDigest(spec)
	if err != nil {
		return err
	}
	// The configuration contains the environment, which may contain secrets. So it is in memory, where
	// the engine has its own copy, and is removed with the sandbox.
	config := filepath.Join(d.opts.Root, string(spec.ID)+configSuffix)
	for _, f := range []struct{ path, content string }{
		{filepath.Join(spec.Dir, bundle.TotalMemFile), strconv.FormatInt(guestMemory(spec), 10)},
		{filepath.Join(spec.Dir, specDigestFile), sum},
		{config, string(raw)},
	} {
		// Only this driver and its engine read these files, and each start writes them again, so a
		// crash that truncates them does no harm.
		if err := os.WriteFile(f.path, []byte(f.content), 0o600); err != nil {
			return err
		}
	}
	if err := removeFiles(spec.Dir, bundle.ConfigFile); err != nil {
		return err
	}
	return os.Symlink(config, filepath.Join(spec.Dir, bundle.ConfigFile))
}

// configSuffix ends the name of a sandbox's configuration in Options.Root.
const configSuffix = ".config"

// specDigestFile keeps the digest for Suspend, which has no Spec.
const specDigestFile = "specdigest"

func removeFiles(dir string, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// origin is what all snapshots of this host have in common.
type origin struct {
	engine string
	cpu    string
}

// hostOrigin reads the version of gVisor from the engine, and the features of the processor from the
// kernel.
func hostOrigin(engine string) (origin, error) {
	info, err := buildinfo.ReadFile(engine)
	if err != nil {
		return origin{}, fmt.Errorf("read engine version: %w", err)
	}
	var o origin
	for _, dep := range info.Deps {
		if dep.Path == "gvisor.dev/gvisor" {
			o.engine = dep.Version
		}
	}
	if o.engine == "" {
		return origin{}, fmt.Errorf("engine %s: gVisor is not linked in", engine)
	}
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return origin{}, err
	}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "flags", "Features":
			o.cpu = digest([]byte(strings.TrimSpace(value)))
			return o, nil
		}
	}
	return origin{}, errors.New("/proc/cpuinfo names no processor features")
}
