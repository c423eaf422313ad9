package volumes

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar"
)

// promised is how much of the disk a volume may take at most, in GiB.
func (v *volume) promised() int {
	rec := v.rec.Load()
	switch state := rec.Volume.State; {
	case state == hangar.VolumeDestroyed, state == hangar.VolumeFailed, state.Gone() && rec.Unfilled:
		return 0
	default:
	}
	return max(rec.Volume.SizeGB, rec.Growing)
}

// promises decides how much of the disk is promised to volumes.
type promises struct {
	index *index
	o     *Options
	// deciding is held from a check of the room until the promise is committed. It is taken before
	// any volume's mu.
	deciding sync.Mutex
	// purging is held while destroyed volumes are removed. It is taken before deciding.
	purging *semaphore.Weighted
}

// make calls commit to promise volumes of an organization more GiB of the disk. All promises
// together may not exceed the free room and that of volumes, times the operator's ratio. Before
// make refuses, it removes destroyed volumes that could still be undeleted: those of the same
// organization first, then those of others.
func (p *promises) make(ctx context.Context, org hangar.OrgID, more int, commit func() error) error {
	lacking, err := p.try(ctx, more, commit)
	if lacking == 0 {
		return err
	}
	if err := p.purging.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.purging.Release(1)
	for {
		if lacking, err = p.try(ctx, more, commit); lacking == 0 {
			return err
		}
		if !p.reclaim(ctx, org, lacking) {
			return err
		}
	}
}

// try is make without a reclaim. lacking is how many bytes are missing; if it is positive, commit
// was not called.
func (p *promises) try(ctx context.Context, more int, commit func() error) (lacking int64, err error) {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	disk, err := p.room(ctx)
	if err != nil {
		return 0, err
	}
	if lacking = int64(more)<<30 - disk.left(); more > 0 && lacking > 0 {
		return lacking, hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity,
			"no capacity: %d GB asked, %d GB promised to volumes already, and the disk holds %.1f GB for them (over-commit ratio %g)",
			more, disk.promised, float64(disk.holds)/(1<<30), disk.ratio)
	}
	return 0, commit()
}

// promisable has the amounts by which the disk is promised to volumes.
type promisable struct {
	promised int   // GiB
	holds    int64 // bytes that are free, or taken by volumes
	ratio    float64
}

// left is how many bytes more may be promised.
func (r promisable) left() int64 { return int64(float64(r.holds)*r.ratio) - int64(r.promised)<<30 }

func (p *promises) room(ctx context.Context) (promisable, error) {
	disk, err := p.o.Devices.Room(ctx)
	if err != nil {
		return promisable{}, fmt.Errorf("measure the disk of volumes: %w", err)
	}
	room := promisable{holds: disk.Free - p.o.Space.Reserved(), ratio: p.o.Overcommit}
	for _, v := range p.index.all() {
		room.promised += v.promised()
	}
	for _, taken := range disk.Taken {
		room.holds += taken
	}
	return room, nil
}

// Room is how many bytes of the disk are left for volumes, and how many they were promised.
func (p *promises) Room(ctx context.Context) (left, promised int64, err error) {
	room, err := p.room(ctx)
	if err != nil {
		return 0, 0, err
	}
	return room.left(), int64(room.promised) << 30, nil
}

// hasComputeRoom refuses a volume for a Machine that would not fit on the host now.
func hasComputeRoom(machines Machines, guest *hangar.Guest) error {
	if guest == nil {
		return nil
	}
	_, free := machines.Memory()
	if need := int64(guest.Memory()) << 20; need > free {
		return hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity,
			"no capacity: compute.guest asks for %d MB of memory, the host has %d MB left", guest.Memory(), max(0, free)>>20)
	}
	return nil
}
