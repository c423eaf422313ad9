package hangar

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// The kinds of CPU, and the bounds of a Machine's size.
const (
	CPUShared      = "shared"      // less memory by default
	CPUPerformance = "performance" // more memory by default; its cores are shared with other Machines, too

	MaxCPUs      = 128
	MemoryStepMB = 256
	MaxMemoryMB  = 256 << 10 // 256 GiB

	// MaxSuspendMemoryMB bounds the memory of a Machine that can be suspended.
	MaxSuspendMemoryMB = 2048
)

// sharedPresets and performancePresets are the numbers of CPUs that sizes named
// shared-cpu-Nx and performance-Nx exist for.
var (
	sharedPresets      = []int{1, 2, 4, 6, 8}
	performancePresets = []int{1, 2, 4, 6, 8, 10, 12, 14, 16}
)

// memoryPerCPU is the default memory of a Guest for each CPU, in MiB.
func memoryPerCPU(kind string) int {
	if kind == CPUPerformance {
		return 2048
	}
	return 256
}

// Preset returns the Guest that a size such as "shared-cpu-2x" or
// "performance-4x" stands for.
func Preset(size string) (Guest, bool) {
	for _, n := range sharedPresets {
		if size == fmt.Sprintf("shared-cpu-%dx", n) {
			return Guest{CPUKind: CPUShared, CPUs: n, MemoryMB: n * memoryPerCPU(CPUShared)}, true
		}
	}
	for _, n := range performancePresets {
		if size == fmt.Sprintf("performance-%dx", n) {
			return Guest{CPUKind: CPUPerformance, CPUs: n, MemoryMB: n * memoryPerCPU(CPUPerformance)}, true
		}
	}
	return Guest{}, false
}

// Presets lists the names that Preset knows, smallest first.
func Presets() []string {
	var names []string
	for _, n := range sharedPresets {
		names = append(names, fmt.Sprintf("shared-cpu-%dx", n))
	}
	for _, n := range performancePresets {
		names = append(names, fmt.Sprintf("performance-%dx", n))
	}
	return names
}

// Complete fills in what g leaves out. It answers CodeInvalid for a size that no Machine can have. The
// error names the member with at in front, e.g. "compute.".
func (g *Guest) Complete(at string) error {
	g.CPUKind = cmp.Or(g.CPUKind, CPUShared)
	g.CPUs = cmp.Or(g.CPUs, 1)
	if g.MemoryMB == 0 && g.CPUs > 0 && g.CPUs <= MaxCPUs {
		g.MemoryMB = g.CPUs * memoryPerCPU(g.CPUKind)
	}
	return g.validate(at)
}

// Memory is what the Machine may use, in MiB. A Machine that may grow has its maximum from the start,
// because unused memory takes nothing from the host.
func (g *Guest) Memory() int { return max(g.MemoryMB, g.MaxMemoryMB) }

func (g *Guest) complete() bool { return g.CPUKind != "" && g.CPUs != 0 && g.MemoryMB != 0 }

// fillGuest expands size into guest and fills in the members that guest leaves out. A size beside an
// equal guest is accepted, because clients send back what they have read.
func fillGuest(tree map[string]any) error {
	size, sized := tree["size"]
	if size == "" || size == nil {
		delete(tree, "size")
		sized = false
	}
	guest, isObject := tree["guest"].(map[string]any)
	if !isObject && tree["guest"] != nil {
		return badConfig("config.guest", "must be an object")
	}
	want := Guest{}
	if sized {
		name, _ := size.(string)
		preset, ok := Preset(name)
		if !ok {
			return badConfig("config.size", "%v is not one of %v", size, Presets())
		}
		want = preset
		delete(tree, "size")
	}
	if guest == nil {
		guest = map[string]any{}
	}
	kind, isText := guest["cpu_kind"].(string)
	if !isText && guest["cpu_kind"] != nil {
		return badConfig("config.guest.cpu_kind", "must be a text")
	}
	if kind == "" {
		kind = cmp.Or(want.CPUKind, CPUShared)
		guest["cpu_kind"] = kind
	}
	if unset(guest["cpus"]) {
		guest["cpus"] = max(want.CPUs, 1)
	}
	if unset(guest["memory_mb"]) {
		memory := want.MemoryMB
		if cpus, ok := asInt(guest["cpus"]); memory == 0 && ok && cpus > 0 && cpus <= MaxCPUs {
			memory = cpus * memoryPerCPU(kind)
		}
		guest["memory_mb"] = memory
	}
	tree["guest"] = guest
	if !sized {
		return nil
	}
	cpus, _ := asInt(guest["cpus"])
	memory, _ := asInt(guest["memory_mb"])
	if got := (Guest{CPUKind: kind, CPUs: cpus, MemoryMB: memory}); !reflect.DeepEqual(got, want) {
		return badConfig("config.size", "%v contradicts config.guest; give one of the two", size)
	}
	return nil
}

// unset reports whether a number of a document is missing, null or zero.
func unset(v any) bool {
	n, ok := asInt(v)
	return v == nil || ok && n == 0
}

func asInt(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case json.Number:
		n, err := v.Int64()
		return int(n), err == nil
	default:
		return 0, false
	}
}

// validate names the wrong member with at in front.
func (g *Guest) validate(at string) error {
	switch {
	case g.GPUKind != "":
		return unsupported(at+"gpu_kind", fmt.Sprintf("%.40q is a GPU, which are not offered", g.GPUKind))
	case g.GPUs != 0:
		return unsupported(at+"gpus", "GPUs are not offered")
	case g.HostDedicationID != "":
		return unsupported(at+"host_dedication_id", "dedicated hosts are not offered")
	case g.CPUKind != CPUShared && g.CPUKind != CPUPerformance:
		return badConfig(at+"cpu_kind", "%q is not %q or %q", g.CPUKind, CPUShared, CPUPerformance)
	case g.CPUs < 1 || g.CPUs > MaxCPUs:
		return badConfig(at+"cpus", "%d is not from 1 to %d", g.CPUs, MaxCPUs)
	case g.MemoryMB < MemoryStepMB || g.MemoryMB > MaxMemoryMB:
		return badConfig(at+"memory_mb", "%d is not from %d to %d", g.MemoryMB, MemoryStepMB, MaxMemoryMB)
	case g.MemoryMB%MemoryStepMB != 0:
		return badConfig(at+"memory_mb", "%d is not a multiple of %d", g.MemoryMB, MemoryStepMB)
	case g.MaxMemoryMB != 0 && (g.MaxMemoryMB < g.MemoryMB || g.MaxMemoryMB > MaxMemoryMB):
		return badConfig(at+"max_memory_mb", "%d is not from memory_mb, which is %d, to %d", g.MaxMemoryMB, g.MemoryMB, MaxMemoryMB)
	case g.MaxMemoryMB%MemoryStepMB != 0:
		return badConfig(at+"max_memory_mb", "%d is not a multiple of %d", g.MaxMemoryMB, MemoryStepMB)
	case g.PersistRootfs != "" && !slices.Contains(persistValues, g.PersistRootfs):
		return badConfig(at+"persist_rootfs", "%q is not one of %v", g.PersistRootfs, persistValues)
	default:
		return nil
	}
}
