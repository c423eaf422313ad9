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
	now := a.o.Now()
	apps := make(map[drillKey][]*journal.VolumeRecord)
	for _, v := range a.allVolumes() {
		if ctx.Err() != nil {
			return
		}
		if dueDaily(v.rec.Load(), now) {
			_, err := v.beginSnapshot(ctx, true)
			v.failed("take the daily one", err)
		}
		v.failed("take expired ones off the list", v.expire(ctx, now))
		v.failed("remove discarded ones from the archive", v.removeDiscarded(ctx))
		rec := v.rec.Load()
		apps[drillKeyOf(rec)] = append(apps[drillKeyOf(rec)], rec)
	}
	for of, records := range apps {
		orgID, app := records[0].OrgID, records[0].Volume.App
		a.drills.mu.Lock()
		due := dueDrill(app, a.drills.byApp[of], records, now)
		a.drills.mu.Unlock()
		if due {
			if _, err := a.DrillVolumes(ctx, orgID, app); err != nil && ctx.Err() == nil {
				a.o.Log.Error("begin a drill", keyApp, app, keyError, err)
			}
		}
	}
	a.forgetDrills(ctx, apps)
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
func (v *volume) expire(ctx context.Context, now time.Time) error {
	if len(dispensable(v.rec.Load().Snapshots, now)) == 0 {
		return nil
	}
	_, err := v.record(ctx, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		discard(next, dispensable(next.Snapshots, now)...)
		return nil
	})
	return err
}

// forgetDrills drops what is known of drills of Apps that have no volumes any more.
func (a *Agent) forgetDrills(ctx context.Context, apps map[drillKey][]*journal.VolumeRecord) {
	a.drills.mu.Lock()
	defer a.drills.mu.Unlock()
	for of, rec := range a.drills.byApp {
		if len(apps[of]) > 0 || rec.Latest.FinishedAt.IsZero() || rec.Scratch != "" {
			continue
		}
		if err := a.putDrill(ctx, of, nil); err != nil {
			a.o.Log.Error("forget drills", keyApp, of, keyError, err)
			return
		}
		if app := rec.Latest.App; !a.drills.of(app) {
			a.metrics.forget(app)
		}
	}
}
