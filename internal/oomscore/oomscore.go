// Package oomscore says which processes the kernel ends first when memory runs out.
//
// A process inherits the score of its parent. The daemon protects itself and so all its children,
// such as the keeper and the storage daemons of volumes. The engine of sandboxes exposes itself
// before it starts anything, and so the sandbox, its gofer and all their children. Programs that the
// daemon runs for one tenant, whose memory depends on the tenant's data, are exposed as soon as they
// have started. This does not depend on how the daemon was started, and remains so after a restart.
package oomscore

import (
	"os"
	"strconv"
)

// Scores, from -1000 (never) to 1000 (first), as in proc(5): the kernel adds that many thousandths of
// the total memory to the memory of a process.
const (
	// Platform is for processes that all Machines depend on. The kernel still kills one that leaks
	// without limit.
	Platform = -900
	// Machine is for processes that only one Machine depends on.
	Machine = 500
)

// Set sets the score of this process. A score below the initial one needs CAP_SYS_RESOURCE.
func Set(score int) error { return set("self", score) }

// SetChild sets the score of a child process, which replaces the inherited one.
func SetChild(p *os.Process, score int) error { return set(strconv.Itoa(p.Pid), score) }

func set(process string, score int) error {
	return os.WriteFile("/proc/"+process+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}
