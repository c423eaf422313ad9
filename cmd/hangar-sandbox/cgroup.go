package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cgroup"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// joinCgroup makes the groups of a sandbox and moves this command into them, so that all it starts
// is born there. runsc would move itself in and out again, which with cgroups of version 1 takes a
// grace period of up to 15 ms each way; this process need not return. With version 2, children are
// born in a group without a move, and runsc does that.
func joinCgroup(conf *config.Config, spec *specs.Spec) error {
	if conf.IgnoreCgroups || cgroup.IsOnlyV2() {
		return nil
	}
	group, err := cgroup.NewFromPath(spec.Linux.CgroupsPath, false)
	if err != nil {
		return fmt.Errorf("find cgroup: %w", err)
	}
	if err := group.Install(spec.Linux.Resources); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if _, err := group.Join(); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	conf.IgnoreCgroups = true
	return nil
}

// minCPUs is how many processors a guest sees at least: with one alone, programs
// leave out locks that they need.
const minCPUs = 2

// overrideCPUs passes the bundle's number of processors to the sentry, as runsc does when it joins
// the cgroup itself.
func overrideCPUs() {
	at := slices.Index(os.Args, "--total-memory")
	if at < 0 || slices.Contains(os.Args, "--cpu-num") {
		return
	}
	raw, err := os.ReadFile(filepath.Join(bundleDir(), bundle.ConfigFile))
	if err != nil {
		return // boot reports what is wrong with the bundle
	}
	var spec struct {
		Linux struct {
			Resources struct {
				CPU struct{ Quota, Period int64 }
			}
		}
	}
	cpu := &spec.Linux.Resources.CPU
	if err := json.Unmarshal(raw, &spec); err != nil || cpu.Quota <= 0 || cpu.Period <= 0 {
		return
	}
	granted := int((cpu.Quota + cpu.Period - 1) / cpu.Period)
	os.Args = slices.Insert(os.Args, at,
		"--cpu-num", strconv.Itoa(min(max(granted, minCPUs), runtime.NumCPU())),
		"--cpu-quota", strconv.FormatInt(cpu.Quota, 10),
		"--cpu-period", strconv.FormatInt(cpu.Period, 10))
}
