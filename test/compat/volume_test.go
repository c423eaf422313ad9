package compat_test

import (
	"context"
	"net/http"
	"testing"
	"time"
)

// mount is what existing clients send of a mount, and read back.
type mount struct {
	Encrypted              bool   `json:"encrypted,omitempty"`
	Path                   string `json:"path,omitempty"`
	SizeGB                 int    `json:"size_gb,omitempty"`
	Volume                 string `json:"volume,omitempty"`
	Name                   string `json:"name,omitempty"`
	ExtendThresholdPercent int    `json:"extend_threshold_percent,omitempty"`
	AddSizeGB              int    `json:"add_size_gb,omitempty"`
	SizeGBLimit            int    `json:"size_gb_limit,omitempty"`
}

// createVolume is the wish for a volume as existing clients spell it: with nulls.
type createVolume struct {
	Name                string  `json:"name"`
	Region              string  `json:"region"`
	SizeGB              *int    `json:"size_gb"`
	Encrypted           *bool   `json:"encrypted"`
	RequireUniqueZone   *bool   `json:"require_unique_zone"`
	UniqueZoneAppWide   *bool   `json:"unique_zone_app_wide"`
	SnapshotRetention   *int    `json:"snapshot_retention"`
	AutoBackupEnabled   *bool   `json:"auto_backup_enabled"`
	FSType              *string `json:"fstype"`
	SnapshotID          *string `json:"snapshot_id"`
	SourceVolumeID      *string `json:"source_volume_id"`
	ComputeRequirements *guest  `json:"compute"`
	ComputeImage        string  `json:"compute_image,omitempty"`
	MachinesOnly        *bool   `json:"machines_only"`
}

type volume struct {
	ID                string    `json:"id"`
	State             string    `json:"state"`
	SizeGB            int       `json:"size_gb"`
	Region            string    `json:"region"`
	Zone              string    `json:"zone"`
	Encrypted         bool      `json:"encrypted"`
	AttachedMachine   *string   `json:"attached_machine_id"`
	AttachedAlloc     *string   `json:"attached_alloc_id"`
	CreatedAt         time.Time `json:"created_at"`
	HostDedicationKey string    `json:"host_dedication_key"`
	SnapshotRetention int       `json:"snapshot_retention"`
	AutoBackupEnabled bool      `json:"auto_backup_enabled"`
	HostStatus        string    `json:"host_status"`
	Name              string    `json:"name"`
	FSType            string    `json:"fstype"`
	Blocks            int       `json:"blocks"`
	BlockSize         int       `json:"block_size"`
	BlocksFree        int       `json:"blocks_free"`
	BlocksAvail       int       `json:"blocks_avail"`
	BytesUsed         uint64    `json:"bytes_used"`
	BytesTotal        uint64    `json:"bytes_total"`
}

type volumeSnapshot struct {
	ID            string    `json:"id"`
	Size          int       `json:"size"`
	VolumeSize    int       `json:"volume_size"`
	Digest        string    `json:"digest"`
	CreatedAt     time.Time `json:"created_at"`
	Status        string    `json:"status"`
	RetentionDays *int      `json:"retention_days"`
}

func volumes(app string, more ...string) string {
	path := "/v1/apps/" + app + "/volumes"
	for _, m := range more {
		path += "/" + m
	}
	return path
}

func (c *client) volume(ctx context.Context, method, path string, in any) (v volume, err error) {
	return v, c.call(ctx, method, path, in, &v)
}

// ready waits as clients do: by asking.
func (w world) ready(t *testing.T, id string) volume {
	t.Helper()
	for limit := time.Now().Add(patience); ; {
		v, err := w.volume(t.Context(), http.MethodGet, volumes(w.app, id), nil)
		must(t, "get volume", err)
		if v.State == "created" {
			return v
		}
		if time.Now().After(limit) {
			t.Fatalf("the volume stays %s", v.State)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// volumeLife follows a volume from its creation through a Machine, and a clone of that, to
// its end.
func (w world) volumeLife(t *testing.T) {
	v, err := w.volume(t.Context(), http.MethodPost, volumes(w.app), createVolume{
		Name: "data", Region: "loc", SizeGB: new(1), Encrypted: new(true), ComputeRequirements: &guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256},
		ComputeImage: w.image,
	})
	must(t, "create volume", err)
	if v.AttachedMachine != nil || v.AttachedAlloc != nil || v.FSType != "" || v.Blocks != 0 || v.HostStatus != "ok" || !v.Encrypted || len(v.Zone) != 4 ||
		v.SnapshotRetention != 5 || !v.AutoBackupEnabled || v.CreatedAt.IsZero() {
		t.Errorf("created %+v", v)
	}
	v = w.ready(t, v.ID)
	config := w.config()
	config.Services, config.Checks = nil, nil
	config.Mounts = []mount{{Volume: v.ID, Path: "/data"}}
	m := w.run(t, launch{Config: config, Region: "loc"})
	want := mount{Volume: v.ID, Path: "/data", Name: "data", SizeGB: 1, Encrypted: true}
	if got := w.look(t, m.ID).Config.Mounts; len(got) != 1 || got[0] != want {
		t.Errorf("the machine mounts %+v, want %+v", got, want)
	}
	v = w.ready(t, v.ID)
	if v.AttachedMachine == nil || *v.AttachedMachine != m.ID || v.AttachedAlloc != nil || v.FSType != "ext4" || v.BytesTotal == 0 || v.BlocksAvail > v.Blocks {
		t.Errorf("mounted %+v", v)
	}
	_, err = w.volume(t.Context(), http.MethodDelete, volumes(w.app, v.ID), nil)
	wantFailure(t, "destroy a mounted volume", err, http.StatusPreconditionFailed, "failed_precondition: volume is currently bound to machine: "+m.ID)
	_, err = w.launch(t.Context(), w.app, launch{Config: config})
	wantFailure(t, "mount it twice", err, http.StatusPreconditionFailed, "failed_precondition: volume already claimed by machine "+m.ID)

	w.cloneVolume(t, config, w.look(t, m.ID).Config.Mounts[0])
	w.growVolume(t, v)
	must(t, "destroy", w.destroy(t.Context(), w.app, m.ID, true))
	w.reach(t, m.ID, "destroyed")
	w.dropVolume(t, v.ID)
}

// cloneVolume does what clients do to clone a Machine: a volume as the config of the
// other one says.
func (w world) cloneVolume(t *testing.T, config *machineConfig, from mount) {
	t.Helper()
	v, err := w.volume(t.Context(), http.MethodPost, volumes(w.app), createVolume{Name: from.Name, Region: "loc", SizeGB: &from.SizeGB, Encrypted: &from.Encrypted})
	must(t, "create the volume of a clone", err)
	clone := *config
	clone.Mounts = []mount{{Volume: w.ready(t, v.ID).ID, Path: from.Path}}
	m := w.run(t, launch{Config: &clone})
	must(t, "destroy the clone", w.destroy(t.Context(), w.app, m.ID, true))
	w.reach(t, m.ID, "destroyed")
	w.dropVolume(t, v.ID)
}

func (w world) growVolume(t *testing.T, v volume) {
	t.Helper()
	var extended struct {
		Volume       volume `json:"volume"`
		NeedsRestart bool   `json:"needs_restart"`
	}
	must(t, "extend", w.call(t.Context(), http.MethodPut, volumes(w.app, v.ID, "extend"), map[string]int{"size_gb": 2}, &extended))
	if extended.Volume.SizeGB != 2 {
		t.Errorf("extended to %+v", extended)
	}
	err := w.call(t.Context(), http.MethodPut, volumes(w.app, v.ID, "extend"), map[string]int{"size_gb": 1}, nil)
	wantFailure(t, "shrink", err, http.StatusBadRequest, "size_gb")
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		updated, err := w.volume(t.Context(), method, volumes(w.app, v.ID), map[string]any{"snapshot_retention": 9, "auto_backup_enabled": nil})
		must(t, "update", err)
		if updated.SnapshotRetention != 9 || !updated.AutoBackupEnabled {
			t.Errorf("updated to %+v", updated)
		}
	}
	var list []volume
	must(t, "list", w.call(t.Context(), http.MethodGet, volumes(w.app)+"?summary=true", nil, &list))
	for _, listed := range list {
		if listed.ID == v.ID && (listed.SizeGB != 2 || listed.SnapshotRetention != 9) {
			t.Errorf("listed as %+v", listed)
		}
	}
}

// dropVolume destroys a volume that no Machine has any longer, or is about to have none.
func (w world) dropVolume(t *testing.T, id string) {
	t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		v, err := w.volume(t.Context(), http.MethodGet, volumes(w.app, id), nil)
		must(t, "get volume", err)
		if v.AttachedMachine == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the volume stays attached to %s", *v.AttachedMachine)
		}
	}
	v, err := w.volume(t.Context(), http.MethodDelete, volumes(w.app, id), nil)
	must(t, "destroy volume", err)
	if v.State != "destroyed" || v.SnapshotRetention != 0 {
		t.Errorf("destroyed %+v", v)
	}
	var list []volume
	must(t, "list", w.call(t.Context(), http.MethodGet, volumes(w.app), nil, &list))
	for _, listed := range list {
		if listed.ID == id && listed.State != "pending_destroy" {
			t.Errorf("listed as %+v", listed)
		}
	}
}

// volumeSnapshots takes one, restores it and forks a volume.
func (w world) volumeSnapshots(t *testing.T) {
	v, err := w.volume(t.Context(), http.MethodPost, volumes(w.app), createVolume{Name: "data", SizeGB: new(1)})
	must(t, "create volume", err)
	w.ready(t, v.ID)
	must(t, "create snapshot", w.call(t.Context(), http.MethodPost, volumes(w.app, v.ID, "snapshots"), nil, nil))
	var list []volumeSnapshot
	for limit := time.Now().Add(patience); len(list) == 0 || list[0].Status != "created"; time.Sleep(20 * time.Millisecond) {
		must(t, "list snapshots", w.call(t.Context(), http.MethodGet, volumes(w.app, v.ID, "snapshots"), nil, &list))
		if time.Now().After(limit) {
			t.Fatalf("the snapshots stay %+v", list)
		}
	}
	if s := list[0]; s.Digest == "" || s.VolumeSize != 1<<30 || s.RetentionDays == nil || *s.RetentionDays != 5 || s.CreatedAt.IsZero() {
		t.Errorf("listed %+v", s)
	}
	for what, in := range map[string]createVolume{
		"restore": {Name: "again", Region: "loc", SizeGB: new(1), SnapshotID: &list[0].ID}, "fork": {Name: "data", SourceVolumeID: &v.ID},
	} {
		made, err := w.volume(t.Context(), http.MethodPost, volumes(w.app), in)
		must(t, what, err)
		if made.ID == v.ID || made.Zone == v.Zone || made.SizeGB != 1 {
			t.Errorf("%s: %+v", what, made)
		}
		w.ready(t, made.ID)
		w.dropVolume(t, made.ID)
	}
	w.dropVolume(t, v.ID)
	must(t, "list snapshots of a destroyed volume", w.call(t.Context(), http.MethodGet, volumes(w.app, v.ID, "snapshots"), nil, &list))
	if len(list) != 1 {
		t.Errorf("a destroyed volume has the snapshots %+v", list)
	}
}
