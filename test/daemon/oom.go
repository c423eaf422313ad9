package daemon

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Score is by how much the kernel prefers a process when memory has run out: see
// oom_score_adj in proc(5). ok is false when the process has ended.
func Score(pid int) (score int, ok bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"))
	if err != nil {
		return 0, false
	}
	score, err = strconv.Atoi(strings.TrimSpace(string(raw)))
	return score, err == nil
}

// Keeper returns the process that holds the output of the Machines of a data directory;
// 0: there is none.
func Keeper(daemon int) int {
	keeper := 0
	_ = eachProcess(func(pid int, args []string) {
		if len(args) > 1 && strings.HasPrefix(filepath.Base(args[0]), "hangar-sandbox") && args[1] == "keep" && parentOf(pid) == daemon {
			keeper = pid
		}
	})
	return keeper
}

// parentOf returns the process that has started another.
func parentOf(pid int) int {
	p, _ := readProcess(filepath.Join("/proc", strconv.Itoa(pid)))
	return p.Parent
}
