package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// The paths of volumes.
const (
	volumes = "/v1/apps/{app}/volumes"
	volume  = volumes + "/{volume}"
)

func (s *server) volumeRoutes() {
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	example := exampleVolume()
	one := view.OfOneVolume(example)
	s.Handle("GET "+volumes, s.listVolumes, router.Operation{
		ID: "listVolumes", Tag: "Volumes", Summary: "List volumes",
		Text: "Sorted by id. A destroyed volume is listed as `pending_destroy` as long as it can be undeleted. " +
			"Volumes on an unreachable server are shown as last known, with a `host_status` other than `ok`.",
		Query: []router.Param{{Name: "summary", Example: true, Text: "Accepted; the list is the same."}}, Answer: []view.Volume{view.OfVolume(example)},
	})
	s.Handle("POST "+volumes, s.createVolume, router.Operation{
		ID: "createVolume", Tag: "Volumes", Summary: "Create a volume",
		Text: "The volume is empty, filled from a snapshot, or a copy of another volume of the organization. While it is filled, its state is `restoring`. " +
			"null means that a property is left out. The file system is made when a Machine first mounts the volume. " +
			"409 with the status `volume_placement_capacity` means that no server has room.",
		Lenient: true, Body: volumeRequest{Name: "data", Region: "loc", SizeGB: 3}, Answer: one, Errors: []int{conflict, state},
	})
	s.Handle("GET "+volume, s.getVolume, router.Operation{
		ID: "getVolume", Tag: "Volumes", Summary: "Get a volume",
		Text: "A destroyed volume is returned as long as it or a snapshot of it is kept, with the time until which it can be undeleted.", Answer: one,
	})
	update := router.Operation{
		ID: "updateVolume", Tag: "Volumes", Summary: "Update a volume", Text: "What is left out, or null, stays. The retention applies to later snapshots.",
		Lenient: true, Body: hangar.VolumeUpdate{SnapshotRetention: new(7)}, Answer: one, Errors: []int{state},
	}
	s.Handle("PUT "+volume, s.updateVolume, update)
	update.ID, update.Summary = "postVolume", "Change the settings of a volume, as some clients do"
	s.Handle("POST "+volume, s.updateVolume, update)
	s.Handle("PUT "+volume+"/extend", s.extendVolume, router.Operation{
		ID: "extendVolume", Tag: "Volumes", Summary: "Extend a volume",
		Text:    "A volume cannot be made smaller. With `needs_restart`, the Machine sees the new size only after its next start.",
		Lenient: true, Body: extendRequest{SizeGB: 10}, Answer: view.Extended{Volume: one}, Errors: []int{conflict, state},
	})
	gone := *example
	gone.State, gone.DestroyedAt = hangar.VolumePendingDestroy, exampleTime
	s.Handle("DELETE "+volume, s.destroyVolume, router.Operation{
		ID: "destroyVolume", Tag: "Volumes", Summary: "Destroy a volume",
		Text:   "Refused with 412 while a Machine has it. For 24 hours it can be undeleted, unless its room is needed before: see undeleteVolume. Its snapshots stay until their retention has passed.",
		Answer: view.OfOneVolume(&gone), Errors: []int{state},
	})
	s.Handle("POST "+volume+"/undelete", s.undeleteVolume, router.Operation{
		ID: "undeleteVolume", Tag: "Volumes", Summary: "Undelete a volume",
		Text: "Possible within 24 hours, with all data, as long as there is room. When a volume is created or extended beyond the quota of its " +
			"organization, or beyond the room of the server, destroyed volumes are removed for it, the oldest ones first: those of the same " +
			"organization and then, for the room of the server, those of others.", Answer: one, Errors: []int{state},
	})
	s.Handle("GET "+volume+"/events", s.listVolumeEvents, router.Operation{
		ID: "listVolumeEvents", Tag: "Volumes", Summary: "List the events of a volume", Text: "The newest 50, newest first.",
		Answer: []hangar.VolumeEvent{{ID: exampleEvent, Type: hangar.VolumeEventCreate, Source: hangar.SourceUser, Timestamp: exampleTime.UnixMilli()}},
	})
	s.snapshotRoutes()
	const destroyed = "/v1/orgs/{org}/destroyed_volumes"
	s.Handle("GET "+destroyed, s.listDestroyedVolumes, router.Operation{
		ID: "listDestroyedVolumes", Tag: "Volumes", Summary: "List destroyed volumes",
		Text: "Volumes that can be undeleted or are being removed, the oldest first, even if their Apps no longer exist. They count " +
			"against the quotas of the organization until they are purged, or their 24 hours are over.", Answer: []view.Volume{view.OfVolume(&gone)},
	})
	purged := gone
	purged.State = hangar.VolumeDestroyed
	s.Handle("DELETE "+destroyed+"/{volume}", s.purgeVolume, router.Operation{
		ID: "purgeVolume", Tag: "Volumes", Summary: "Remove a destroyed volume permanently",
		Text:   "Its key and its data are gone, and its room is free. Its snapshots stay. Refused with 412 for a volume that is not destroyed, or while it is still being read.",
		Answer: view.OfOneVolume(&purged), Errors: []int{state},
	})
	s.Handle("GET /v1/orgs/{org}/volumes", s.listOrgVolumes, router.Operation{
		ID: "listOrgVolumes", Tag: "Volumes", Summary: "List the volumes of an organization",
		Text: "Sorted by id. No volume is on two pages, and each that exists throughout is on one, even if others come and go. " +
			"`next_cursor` is empty on the last page. To list every volume that changed after this listing began, " +
			"pass the `last_updated_at` of the last page as `updated_after`; one that changed in the 10 seconds before may be listed again.",
		Query: []router.Param{
			{Name: "include_deleted", Example: true, Text: "Also those that were destroyed and can be undeleted."},
			{Name: "region", Example: []hangar.Region{"loc"}, Text: "Only those in one of these regions."},
			{Name: "state", Example: []hangar.VolumeState{hangar.VolumeCreated}, Text: "Only those in one of these states."},
			{Name: "updated_after", Example: exampleTime, Text: "Only those that changed after this time. A cursor remembers it."},
			{Name: "summary", Example: true, Text: "Accepted; the list is the same."},
			{Name: "after", Example: exampleVolumeID, Text: "Only those whose ids come after this one."},
			{Name: "cursor", Example: "eyJhIjoi", Text: "The `next_cursor` of the page before."},
			{Name: "limit", Example: maxVolumePage, Text: "The most volumes on a page, from 1 to 1000. The default is 1000."},
		},
		Answer: view.OfVolumePage([]*hangar.Volume{example}, "", exampleTime),
	})
}

// volumeRequest is the body of create. Existing clients send nearly all properties, those without a
// value as null.
type volumeRequest struct {
	Name              string            `json:"name" schema:"required"`
	Region            hangar.Region     `json:"region"`
	SizeGB            int               `json:"size_gb"`
	Encrypted         *bool             `json:"encrypted"`
	FSType            hangar.FSType     `json:"fstype"`
	SnapshotRetention *int              `json:"snapshot_retention"`
	AutoBackup        *bool             `json:"auto_backup_enabled"`
	Snapshot          hangar.SnapshotID `json:"snapshot_id"`
	Source            hangar.VolumeID   `json:"source_volume_id"`
	UniqueZone        *bool             `json:"require_unique_zone"`
	UniqueZoneAppWide bool              `json:"unique_zone_app_wide"`
	Compute           *hangar.Guest     `json:"compute"`
	// The following are accepted and ignored.
	ComputeImage string `json:"compute_image"`
	MachinesOnly bool   `json:"machines_only"`
}

// extendRequest is the body of extend.
type extendRequest struct {
	SizeGB int `json:"size_gb" schema:"required"`
}

// volumeRef reads the volume of a path. It answers VolumeNotFound for an id that no volume can have.
func volumeRef(r *http.Request) (hangar.VolumeRef, error) {
	app, err := appName(r)
	if err != nil {
		return hangar.VolumeRef{}, err
	}
	id := hangar.VolumeID(r.PathValue("volume"))
	if !id.Valid() {
		return hangar.VolumeRef{}, hangar.VolumeNotFound(hangar.VolumeID(input.Clip(string(id))))
	}
	return hangar.VolumeRef{App: app, ID: id}, nil
}

func (s *server) listVolumes(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	q.Bool("summary")
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	list, err := s.Volumes.Volumes(r.Context(), app)
	return router.AnswerOf(view.OfVolumes(list), err)
}

func (s *server) createVolume(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[volumeRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	settings := hangar.VolumeUpdate{SnapshotRetention: in.SnapshotRetention}
	if err := settings.Validate(); err != nil {
		return router.Answer{}, err
	}
	retention := 0 // the default
	if in.SnapshotRetention != nil {
		retention = *in.SnapshotRetention
	}
	return oneVolume(s.Volumes.CreateVolume(r.Context(), app, hangar.VolumeCreate{
		Name: in.Name, Region: in.Region, SizeGB: in.SizeGB, Encrypted: in.Encrypted, FSType: in.FSType,
		SnapshotRetention: retention, AutoBackup: in.AutoBackup, Snapshot: in.Snapshot, Source: in.Source,
		UniqueZone: in.UniqueZone, UniqueZoneAppWide: in.UniqueZoneAppWide, Compute: in.Compute,
	}))
}

// oneVolume answers with a single volume.
func oneVolume(v *hangar.Volume, err error) (router.Answer, error) {
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(view.OfOneVolume(v))
}

func (s *server) getVolume(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return oneVolume(s.Volumes.Volume(r.Context(), ref))
}

func (s *server) updateVolume(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[hangar.VolumeUpdate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return oneVolume(s.Volumes.UpdateVolume(r.Context(), ref, in))
}

func (s *server) extendVolume(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[extendRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	done, err := s.Volumes.ExtendVolume(r.Context(), ref, in.SizeGB)
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(view.Extended{Volume: view.OfOneVolume(done.Volume), NeedsRestart: done.NeedsRestart})
}

func (s *server) destroyVolume(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return oneVolume(s.Volumes.DestroyVolume(r.Context(), ref))
}

func (s *server) undeleteVolume(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return oneVolume(s.Volumes.UndeleteVolume(r.Context(), ref))
}

func (s *server) listDestroyedVolumes(r *http.Request) (router.Answer, error) {
	list, err := s.Volumes.DestroyedVolumes(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	return router.AnswerOf(view.OfVolumes(list), err)
}

func (s *server) purgeVolume(r *http.Request) (router.Answer, error) {
	return oneVolume(s.Volumes.PurgeVolume(r.Context(), hangar.OrgSlug(r.PathValue("org")), hangar.VolumeID(r.PathValue("volume"))))
}

func (s *server) listVolumeEvents(r *http.Request) (router.Answer, error) {
	ref, err := volumeRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	events, err := s.Volumes.VolumeEvents(r.Context(), ref)
	return router.AnswerOf(view.OrEmpty(events), err)
}
