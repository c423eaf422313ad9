package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// snapshotRoutes mounts the operations on snapshots and restore drills.
func (s *server) snapshotRoutes() {
	example := hangar.Snapshot{
		ID: exampleSnapshot, Volume: exampleVolumeID, State: hangar.SnapshotCreated, Size: 1 << 20, VolumeSize: 3 << 30,
		Digest: exampleImage.Digest, CreatedAt: exampleTime, FinishedAt: exampleTime, RetentionDays: hangar.DefaultSnapshotRetain,
	}
	s.Handle("GET "+volume+"/snapshots", s.listSnapshots, router.Operation{
		ID: "listSnapshots", Tag: "Volumes", Summary: "List snapshots",
		Text: "Newest first, also when the volume is destroyed. `size` is what a snapshot added to the store, in bytes.", Answer: []view.Snapshot{view.OfSnapshot(&example)},
	})
	waiting := hangar.Snapshot{
		AppID: "w5yt2wl6j1qgakzn",
		ID:    example.ID, Volume: example.Volume, State: hangar.SnapshotWaiting, VolumeSize: example.VolumeSize, CreatedAt: exampleTime,
		RetentionDays: example.RetentionDays,
	}
	s.Handle("POST "+volume+"/snapshots", s.createSnapshot, router.Operation{
		ID: "createSnapshot", Tag: "Volumes", Summary: "Create a snapshot",
		Text: "A snapshot has the content at one moment, as after a loss of power, even while a Machine uses the volume. The answer comes before the " +
			"snapshot is complete. Once it is, the listing has it as `created`.",
		Answer: view.OfBackup(&waiting), Errors: []int{http.StatusPreconditionFailed},
	})
	drill := hangar.VolumeDrill{
		App: "web", Volume: exampleVolumeID, Snapshot: exampleSnapshot, StartedAt: exampleTime, FinishedAt: exampleTime.Add(exampleTimeout), Passed: true,
	}
	const drills = "/v1/apps/{app}/volume_drill"
	s.Handle("GET "+drills, s.getVolumeDrill, router.Operation{
		ID: "getVolumeDrill", Tag: "Volumes", Summary: "Get the latest restore drill", Text: "A drill that is under way has no `finished_at`, and may have `progress`.",
		Answer: drill,
	})
	begun := hangar.VolumeDrill{App: "web", Volume: exampleVolumeID, Snapshot: exampleSnapshot, StartedAt: exampleTime}
	s.Handle("POST "+drills, s.drillVolumes, router.Operation{
		ID: "drillVolumes", Tag: "Volumes", Summary: "Run a restore drill",
		Text:   "Restores a random snapshot of the App to scratch, checks its file system and compares its digest. The answer comes when that begins.",
		Answer: begun, Errors: []int{http.StatusPreconditionFailed},
	})
}

func (s *server) listSnapshots(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	list, err := s.Volumes.Snapshots(r.Context(), ref)
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]view.Snapshot, 0, len(list))
	for _, snapshot := range list {
		views = append(views, view.OfSnapshot(snapshot))
	}
	return router.OK(views)
}

func (s *server) createSnapshot(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	snapshot, err := s.Volumes.CreateSnapshot(r.Context(), ref)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(view.OfBackup(snapshot))
}

func (s *server) getVolumeDrill(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Volumes.VolumeDrill(r.Context(), app))
}

func (s *server) drillVolumes(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Volumes.DrillVolumes(r.Context(), app))
}
