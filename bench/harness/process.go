package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// ProcessorTime is what processes have spent so far, in user and kernel mode.
func ProcessorTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(raw), ") ") // behind the name, which may hold anything
		fields := strings.Fields(rest)
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read processor time: %w", err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// Memory is what processes hold, in bytes; pages that they share count once. Pages of files count
// as well, which the kernel takes back when it wants room.
func Memory(pids []int) (int64, error) { return memory(pids, "Pss:") }

// OwnMemory is Memory without pages of files.
func OwnMemory(pids []int) (int64, error) { return memory(pids, "Pss_Anon:") }

// memory adds up a line of smaps_rollup, see proc_pid_smaps(5).
func memory(pids []int, name string) (int64, error) {
	var sum int64
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(raw)) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == name {
				kb, err := strconv.ParseInt(words[1], 10, 64)
				if err != nil {
					return 0, err
				}
				sum += kb << 10
			}
		}
	}
	return sum, nil
}

// Children are the processes that a process has started and that run, with it and theirs.
func Children(pid int) []int {
	all := []int{pid}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return all
	}
	for _, t := range tasks {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(raw)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, Children(child)...)
			}
		}
	}
	return all
}
