package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
)

// The places of volumes.
const (
	volumes = "/v1/apps/{app}/volumes"
	volume  = volumes + "/{volume}"
)

func (s *server) volumeRoutes() {
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	example := exampleVolume()
	one := viewOneVolume(example)
	s.handle("GET "+volumes, s.listVolumes, operation{
		ID: "listVolumes", Tag: "Volumes", Summary: "List the volumes of an App",
		Text: "Sorted by id. A volume that was destroyed is listed as `pending_destroy` as long as it can be had back, and then no more. " +
			"Volumes on a server that cannot be reached are shown as they were last known, with another `host_status` than `ok`.",
		Query: []param{{"summary", true, "Accepted; the list is the same."}}, Answer: []volumeView{viewVolume(example)},
	})
	s.handle("POST "+volumes, s.createVolume, operation{
		ID: "createVolume", Tag: "Volumes", Summary: "Create a volume",
		Text: "Empty, or filled from a snapshot or as a copy of another volume of the organization: then the state is `restoring` until it is `created`. " +
			"null is the same as nothing. The file system is made when a Machine mounts the volume first. " +
			"409 with the status `volume_placement_capacity` says that no server has the room.",
		Body: volumeWish{Name: "data", Region: "loc", SizeGB: 3}, Answer: one, Errors: []int{conflict, state},
	})
	s.handle("GET "+volume, s.getVolume, operation{
		ID: "getVolume", Tag: "Volumes", Summary: "Get a volume",
		Text: "A volume that was destroyed says so, and until when it can be had back, as long as it or a snapshot of it is kept.", Answer: one,
	})
	update := operation{
		ID: "updateVolume", Tag: "Volumes", Summary: "Change the settings of a volume", Text: "What is left out, or null, stays. The retention is that of later snapshots.",
		Body: volumeUpdateWish{SnapshotRetention: new(7)}, Answer: one, Errors: []int{state},
	}
	s.handle("PUT "+volume, s.updateVolume, update)
	update.ID, update.Summary = "postVolume", "Change the settings of a volume, as some clients do"
	s.handle("POST "+volume, s.updateVolume, update)
	s.handle("PUT "+volume+"/extend", s.extendVolume, operation{
		ID: "extendVolume", Tag: "Volumes", Summary: "Make a volume larger",
		Text: "A volume cannot be made smaller. With `needs_restart` a Machine sees the new size from its next start on.",
		Body: extendWish{SizeGB: 10}, Answer: extendedView{Volume: one}, Errors: []int{conflict, state},
	})
	gone := *example
	gone.State, gone.DestroyedAt = hangar.VolumePendingDestroy, exampleTime
	s.handle("DELETE "+volume, s.destroyVolume, operation{
		ID: "destroyVolume", Tag: "Volumes", Summary: "Destroy a volume",
		Text:   "Refused with 412 while a Machine has it. For 24 hours it can be had back; its snapshots stay until their retention has passed.",
		Answer: viewOneVolume(&gone), Errors: []int{state},
	})
	s.handle("POST "+volume+"/undelete", s.undeleteVolume, operation{
		ID: "undeleteVolume", Tag: "Volumes", Summary: "Have a destroyed volume back",
		Text: "Within 24 hours, and with all that was on it.", Answer: one, Errors: []int{state},
	})
	s.handle("GET "+volume+"/events", s.listVolumeEvents, operation{
		ID: "listVolumeEvents", Tag: "Volumes", Summary: "List what happened to a volume", Text: "The newest 50, newest first.",
		Answer: []hangar.VolumeEvent{{ID: exampleEvent, Type: hangar.VolumeEventCreate, Source: hangar.SourceUser, Timestamp: exampleTime.UnixMilli()}},
	})
	s.snapshotRoutes()
	s.handle("GET /v1/orgs/{org}/volumes", s.listOrgVolumes, operation{
		ID: "listOrgVolumes", Tag: "Volumes", Summary: "List the volumes of an organization, page by page",
		Text: "Sorted by id: whatever comes and goes meanwhile, no volume is on two pages, and none that is there all the time is on none. " +
			"`next_cursor` is empty on the last page. Given as `updated_after` later, the `last_updated_at` of the last page yields every volume " +
			"that changed after this listing began.",
		Query: []param{
			{"include_deleted", true, "Also those that were destroyed and can be had back."},
			{"region", []hangar.Region{"loc"}, "Only those in one of these regions."},
			{"state", []hangar.VolumeState{hangar.VolumeCreated}, "Only those in one of these states."},
			{"updated_after", exampleTime, "Only those that changed after this time. A cursor remembers it."},
			{"summary", true, "Accepted; the list is the same."},
			{"after", exampleVolumeID, "Only those whose ids come after this one."},
			{"cursor", "eyJhIjoi", "The `next_cursor` of the page before."},
			{"limit", maxVolumePage, "At most so many on a page, from 1 to 1000. The default is 1000."},
		},
		Answer: viewVolumePage([]*hangar.Volume{example}, "", exampleTime),
	})
}

// volumeWish is the body of create. Existing clients send nearly all properties, as null.
type volumeWish struct {
	Name              string            `json:"name" schema:"required"`
	Region            hangar.Region     `json:"region"`
	SizeGB            int               `json:"size_gb"`
	Encrypted         *bool             `json:"encrypted"`
	FSType            hangar.FSType     `json:"fstype"`
	SnapshotRetention int               `json:"snapshot_retention"`
	AutoBackup        *bool             `json:"auto_backup_enabled"`
	Snapshot          hangar.SnapshotID `json:"snapshot_id"`
	Source            hangar.VolumeID   `json:"source_volume_id"`
	UniqueZone        *bool             `json:"require_unique_zone"`
	UniqueZoneAppWide bool              `json:"unique_zone_app_wide"`
	Compute           *hangar.Guest     `json:"compute"`
	// What follows is read and makes no difference.
	ComputeImage string `json:"compute_image"`
	MachinesOnly bool   `json:"machines_only"`
}

// volumeUpdateWish is the body of update.
type volumeUpdateWish struct {
	SnapshotRetention *int  `json:"snapshot_retention"`
	AutoBackup        *bool `json:"auto_backup_enabled"`
}

// extendWish is the body of extend.
type extendWish struct {
	SizeGB int `json:"size_gb" schema:"required"`
}

// volumeRef reads the volume of a path. An id that no volume can have is not found.
func volumeRef(r *http.Request) (hangar.VolumeRef, error) {
	app, err := appName(r)
	if err != nil {
		return hangar.VolumeRef{}, err
	}
	id := hangar.VolumeID(r.PathValue("volume"))
	if !id.Valid() {
		return hangar.VolumeRef{}, hangar.VolumeNotFound(hangar.VolumeID(clip(string(id))))
	}
	return hangar.VolumeRef{App: app, ID: id}, nil
}

func (s *server) listVolumes(r *http.Request) (answer, error) {
	app, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	q := queryOf(r)
	q.bool("summary")
	if q.err != nil {
		return answer{}, q.err
	}
	list, err := s.Volumes.Volumes(r.Context(), app)
	if err != nil {
		return answer{}, err
	}
	views := make([]volumeView, 0, len(list))
	for _, v := range list {
		views = append(views, viewVolume(v))
	}
	return ok(views)
}

func (s *server) createVolume(r *http.Request) (answer, error) {
	app, err := appName(r)
	if err != nil {
		return answer{}, err
	}
	in, err := decode[volumeWish](r)
	if err != nil {
		return answer{}, err
	}
	return oneVolume(s.Volumes.CreateVolume(r.Context(), app, hangar.VolumeCreate{
		Name: in.Name, Region: in.Region, SizeGB: in.SizeGB, Encrypted: in.Encrypted, FSType: in.FSType,
		SnapshotRetention: in.SnapshotRetention, AutoBackup: in.AutoBackup, Snapshot: in.Snapshot, Source: in.Source,
		UniqueZone: in.UniqueZone, UniqueZoneAppWide: in.UniqueZoneAppWide, Compute: in.Compute,
	}))
}

// oneVolume answers with a volume by itself.
func oneVolume(v *hangar.Volume, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return ok(viewOneVolume(v))
}

func (s *server) getVolume(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	return oneVolume(s.Volumes.Volume(r.Context(), ref))
}

func (s *server) updateVolume(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := decode[volumeUpdateWish](r)
	if err != nil {
		return answer{}, err
	}
	return oneVolume(s.Volumes.UpdateVolume(r.Context(), ref, hangar.VolumeUpdate(in)))
}

func (s *server) extendVolume(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := decode[extendWish](r)
	if err != nil {
		return answer{}, err
	}
	done, err := s.Volumes.ExtendVolume(r.Context(), ref, in.SizeGB)
	if err != nil {
		return answer{}, err
	}
	return ok(extendedView{viewOneVolume(done.Volume), done.NeedsRestart})
}

func (s *server) destroyVolume(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	return oneVolume(s.Volumes.DestroyVolume(r.Context(), ref))
}

func (s *server) undeleteVolume(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	return oneVolume(s.Volumes.UndeleteVolume(r.Context(), ref))
}

func (s *server) listVolumeEvents(r *http.Request) (answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return answer{}, err
	}
	events, err := s.Volumes.VolumeEvents(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	return ok(orEmpty(events))
}
