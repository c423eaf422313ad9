package volumes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// roundEvery is how often a Store runs due work. Everything is due at a whole minute.
const roundEvery = time.Minute

// rounds take daily snapshots, remove expired ones, and start drills.
type rounds struct {
	index  *index
	drills *drills
	soon   chan struct{} // buffered 1: work may be due before the next round
	now    func() time.Time
	log    *slog.Logger

	mu sync.Mutex // held by a round, which visits all volumes
}

// lookSoon begins the next round at once.
func (r *rounds) lookSoon() {
	select {
	case r.soon <- struct{}{}:
	default:
	}
}

// keep makes rounds until ctx ends.
func (r *rounds) keep(ctx context.Context) {
	round := time.NewTicker(roundEvery)
	defer round.Stop()
	for {
		r.Round(ctx)
		select {
		case <-round.C:
		case <-r.soon:
		case <-ctx.Done():
			return
		}
	}
}

// Round does the work that is due. Failures are retried in the next round.
func (r *rounds) Round(ctx context.Context) {
	r.mu.Lock() // two at once would skip each other's volumes
	defer r.mu.Unlock()
	now := r.now()
	apps := make(map[hangar.AppID][]*journal.VolumeRecord)
	for _, v := range r.index.all() {
		if ctx.Err() != nil {
			return
		}
		if dueDaily(v.rec.Load(), now) && v.claimable() {
			v.failed("take the daily one", v.takeDaily(ctx))
		}
		v.failed("take expired ones off the list", v.expire())
		v.failed("remove discarded ones from the archive", v.removeDiscarded(ctx))
		rec := v.rec.Load()
		apps[rec.Volume.AppID] = append(apps[rec.Volume.AppID], rec)
	}
	for of, records := range apps {
		r.drills.mu.Lock()
		due := dueDrill(of, r.drills.byApp[of], records, now)
		r.drills.mu.Unlock()
		if due {
			if _, err := r.drills.DrillVolumes(ctx, of); err != nil && ctx.Err() == nil {
				r.log.Error("begin a drill", keyApp, records[0].Volume.App, keyError, err)
			}
		}
	}
	r.drills.forget(apps)
}

// takeDaily begins the daily snapshot. On a full disk it waits for a round that finds room, and
// records that once.
func (v *volume) takeDaily(ctx context.Context) error {
	refusal := v.store.o.Space.Admit(diskspace.TakeSnapshot, 0)
	switch {
	case hangar.ReasonOf(refusal) != hangar.ReasonDiskFull:
		v.dailyWaits.Store(false)
		if refusal != nil {
			return refusal
		}
		return v.dailySnapshot(ctx)
	case v.dailyWaits.Swap(true):
		return nil
	}
	v.store.o.Log.Warn("the daily snapshot of a volume waits", keyVolume, v.id, keyError, refusal)
	return v.recordEvents(hangar.VolumeEvent{
		Type: hangar.VolumeEventSnapshot, Text: "The daily snapshot waits until the disk has room", Fault: hangar.MessageOf(refusal),
	})
}

// failed logs a failure.
func (v *volume) failed(what string, err error) {
	if err != nil && v.store.work.Context.Err() == nil {
		v.store.o.Log.Error("look after the snapshots of a volume", keyStep, what, keyVolume, v.id, keyError, err)
	}
}

// expire takes expired snapshots off the list.
func (v *volume) expire() error {
	now := v.store.expiry.now()
	if len(dispensable(v.rec.Load().Snapshots, now)) == 0 {
		return nil
	}
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		discard(next, dispensable(next.Snapshots, now)...)
		return nil
	})
	return err
}

// forget drops the records of drills of Apps without volumes.
func (d *drills) forget(apps map[hangar.AppID][]*journal.VolumeRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for of, rec := range d.byApp {
		if len(apps[of]) > 0 || rec.Latest.FinishedAt.IsZero() || rec.Scratch != "" {
			continue
		}
		if err := d.put(of, nil); err != nil {
			d.store.o.Log.Error("forget drills", keyApp, of, keyError, err)
			return
		}
	}
}
