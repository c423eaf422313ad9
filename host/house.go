package host

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/host/image"
)

// housekeeping is how often the agent keeps house.
const housekeeping = 10 * time.Minute

// imagePolicy is when images that no Machine uses are freed.
var imagePolicy = image.Policy{MaxAge: 7 * 24 * time.Hour, MinFreeBytes: 2 << 30}

// keepHouse forgets Machines that were destroyed long ago, frees images and removes
// what is left of volumes.
func (a *Agent) keepHouse(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		if err := a.machines.ForgetDestroyed(); err != nil && ctx.Err() == nil {
			a.o.Log.Error("forget destroyed machines", keyError, err)
		}
		a.collectImages(ctx)
		a.volumes.Purge(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// collectImages frees images, unless there are Machines whose record does not tell what they use.
func (a *Agent) collectImages(ctx context.Context) {
	if !a.machines.AllRead() {
		return
	}
	freed, err := a.o.Images.GC(ctx, imagePolicy)
	if err != nil && ctx.Err() == nil {
		a.o.Log.Error("collect images", keyError, err)
	}
	if freed > 0 {
		a.o.Log.Info("freed images", "bytes", freed)
	}
}
