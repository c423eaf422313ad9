package host

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// volumeRound is how often the agent looks for what is due. Everything is due at a whole
// minute.
const volumeRound = time.Minute

// lookAtVolumes makes the agent look at once.
func (a *Agent) lookAtVolumes() {
	select {
	case a.rounds <- struct{}{}:
	default:
	}
}

// keepSnapshots takes daily snapshots, removes those that have expired, and has snapshots
// tried out.
func (a *Agent) keepSnapshots(ctx context.Context) {
	if a.o.Archive == nil {
		return
	}
	round := time.NewTicker(volumeRound)
	defer round.Stop()
	for {
		a.snapshotRound(ctx)
		select {
		case <-round.C:
		case <-a.rounds:
		case <-ctx.Done():
			return
		}
	}
}

// snapshotRound does what is due. What fails is tried again in the next round.
func (a *Agent) snapshotRound(ctx context.Context) {
	a.round.Lock() // two at once would pass over what the other one looks at
	defer a.round.Unlock()
	now := a.o.Now()
	apps := make(map[hangar.AppID][]*journal.VolumeRecord)
	for _, v := range a.allVolumes() {
		if ctx.Err() != nil {
			return
		}
		if dueDaily(v.rec.Load(), now) && v.claimable() {
			v.failed("take the daily one", v.takeDaily(ctx))
		}
		v.failed("take expired ones off the list", v.expire(now))
		v.failed("remove discarded ones from the archive", v.removeDiscarded(ctx))
		rec := v.rec.Load()
		apps[rec.Volume.AppID] = append(apps[rec.Volume.AppID], rec)
	}
	for of, records := range apps {
		a.drills.mu.Lock()
		due := dueDrill(of, a.drills.byApp[of], records, now)
		a.drills.mu.Unlock()
		if due {
			if _, err := a.DrillVolumes(ctx, of); err != nil && ctx.Err() == nil {
				a.o.Log.Error("begin a drill", keyApp, records[0].Volume.App, keyError, err)
			}
		}
	}
	a.forgetDrills(apps)
}

// takeDaily begins the daily snapshot. On a full disk it waits for a round that finds room, of
// which the volume tells once.
func (v *volume) takeDaily(ctx context.Context) error {
	refusal := v.agent.o.Space.Admit(snapshotting, 0)
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
	v.agent.o.Log.Warn("the daily snapshot of a volume waits", keyVolume, v.id, keyError, refusal)
	return v.tell(hangar.VolumeEvent{
		Type: hangar.VolumeEventSnapshot, Text: "The daily snapshot waits until the disk has room", Fault: userText(refusal),
	})
}

// keyStep is the key of log lines.
const keyStep = "step"

// failed logs what went wrong.
func (v *volume) failed(what string, err error) {
	if err != nil && v.agent.lifetime.Err() == nil {
		v.agent.o.Log.Error("look after the snapshots of a volume", keyStep, what, keyVolume, v.id, keyError, err)
	}
}

// expire takes those snapshots off the list whose time is over.
func (v *volume) expire(now time.Time) error {
	if len(dispensable(v.rec.Load().Snapshots, now)) == 0 {
		return nil
	}
	_, err := v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		discard(next, dispensable(next.Snapshots, now)...)
		return nil
	})
	return err
}

// forgetDrills drops what is known of drills of Apps that have no volumes any more.
func (a *Agent) forgetDrills(apps map[hangar.AppID][]*journal.VolumeRecord) {
	a.drills.mu.Lock()
	defer a.drills.mu.Unlock()
	for of, rec := range a.drills.byApp {
		if len(apps[of]) > 0 || rec.Latest.FinishedAt.IsZero() || rec.Scratch != "" {
			continue
		}
		if err := a.putDrill(of, nil); err != nil {
			a.o.Log.Error("forget drills", keyApp, of, keyError, err)
			return
		}
		if app := rec.Latest.App; !a.drills.of(app) {
			a.metrics.forget(app)
		}
	}
}
