// Package oomscore says which processes the kernel ends first when memory runs out.
//
// A process inherits the score of its parent. So the daemon protects itself and with that all its
// children, such as the keeper and the storage daemons of volumes; the engine of sandboxes exposes
// itself before it starts anything, and with that the sandbox, its gofer and all of their children.
// Programs that the daemon runs for one tenant, whose memory depends on the tenant's data, are
// exposed as soon as they have started. This does not depend on how the daemon was started, and
// holds after a restart.
package oomscore

import (
	"os"
	"strconv"
)

// Scores, from -1000 (never) to 1000 (first of all), as in proc(5): the kernel adds that many
// thousandths of the total memory to the memory of a process.
const (
	// Platform is for processes that all Machines depend on. One that leaks without a bound still
	// ends.
	Platform = -900
	// Machine is for processes that one Machine alone depends on.
	Machine = 500
)

// Set gives this process a score. A score below the one at its start needs CAP_SYS_RESOURCE.
func Set(score int) error { return set("self", score) }

// SetChild gives a child process a score, replacing the inherited one.
func SetChild(p *os.Process, score int) error { return set(strconv.Itoa(p.Pid), score) }

func set(process string, score int) error {
	return os.WriteFile("/proc/"+process+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}
