package gvisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	pidMaxFile = "/proc/sys/kernel/pid_max"
	// mostPIDs is the highest kernel.pid_max of a 64-bit Linux, see proc(5).
	mostPIDs = 1 << 22
)

// maxTasks is how many tasks of the server a sandbox may have whose guest has that many bytes of
// memory; each process of the guest takes at least one. The kernel has a task for each 128 KiB of the
// server's memory (threads-max in proc(5)), so half of them remain for the server itself. A sandbox
// that needs more ends.
func maxTasks(memory int64) int64 {
	const bytesPerTask, ownTasks = 256 << 10, 256
	return memory/bytesPerTask + ownTasks
}

// raiseMaxPID allows as many process ids as tasks, as systemd does.
func raiseMaxPID() error {
	raw, err := os.ReadFile(pidMaxFile)
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return fmt.Errorf("%s: %w", pidMaxFile, err)
	}
	if most >= mostPIDs {
		return nil
	}
	return os.WriteFile(pidMaxFile, []byte(strconv.Itoa(mostPIDs)), 0)
}
