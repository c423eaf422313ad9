// Package volumestest is what a volumes.Store works on, in memory: a disk with the images of
// volumes, an archive of snapshots, and a cluster state that takes the rows.
//
// Each outlives the Stores that use it, so that a test may end one as a kill does, and open
// another one on what it has left. A Rig asks a Store, or the agent that has it, for volumes.
package volumestest

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes"
)

var (
	_ volumes.Devices        = (*Session)(nil)
	_ volumes.Archive        = (*Archive)(nil)
	_ hangar.VolumePublisher = (*Rows)(nil)
)
