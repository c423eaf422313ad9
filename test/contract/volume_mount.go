package contract

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
)

// mounting is a wish for a Machine that mounts a volume.
func (h Harness) mounting(v *hangar.Volume) hangar.MachineCreate {
	config := h.config()
	config.Mounts = []hangar.Mount{{Volume: string(v.ID), Path: "/data"}}
	return hangar.MachineCreate{Config: config}
}

func volumeMount(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	m := h.create(t, app, h.mounting(v))
	h.wait(t, m.Ref(), hangar.MachineStarted)
	want := hangar.Mount{Volume: string(v.ID), Path: "/data", Name: v.Name, SizeGB: 1, Encrypted: true}
	if got := h.get(t, m.Ref()).Config.Mounts; len(got) != 1 || got[0] != want {
		t.Errorf("the machine mounts %+v, want %+v", got, want)
	}
	got := h.volume(t, v.Ref())
	if got.AttachedMachine != m.ID || got.Usage.FSType != hangar.FSExt4 || got.Usage.Total() < 900<<20 || got.Usage.Total() > 1<<30 {
		t.Errorf("a mounted volume is %+v", got)
	}
	_, err := h.Volumes.DestroyVolume(h.Context(t), v.Ref())
	wantError(t, "destroy a mounted volume", err, hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached)
	if err != nil && !strings.Contains(err.Error(), "volume is currently bound to machine: "+string(m.ID)) {
		t.Errorf("destroy a mounted volume: %v", err)
	}
	_, err = h.Machines.CreateMachine(h.Context(t), app, h.mounting(v))
	wantError(t, "mount it twice", err, hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached)
	if err != nil && !strings.Contains(err.Error(), "volume already claimed by machine "+string(m.ID)) {
		t.Errorf("mount it twice: %v", err)
	}

	// The volume of a Machine stays the same, and is its own while it is stopped.
	for what, mounts := range map[string][]hangar.Mount{
		"no volume":      nil,
		"another volume": {{Volume: string(h.newVolume(t, app, hangar.VolumeCreate{}).ID), Path: "/data"}},
	} {
		config := h.config()
		config.Mounts = mounts
		_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: config})
		wantError(t, "update to "+what, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), "config.mounts") {
			t.Errorf("update to %s: %v", what, err)
		}
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if got := h.volume(t, v.Ref()).AttachedMachine; got != m.ID {
		t.Errorf("the volume of a stopped machine is attached to %q", got)
	}
	extended, err := h.Volumes.ExtendVolume(h.Context(t), v.Ref(), 2)
	must(t, "extend", err)
	if extended.Volume.SizeGB != 2 {
		t.Errorf("extended to %+v", extended)
	}
	if got := h.get(t, m.Ref()).Config.Mounts[0].SizeGB; got != 2 {
		t.Errorf("after the extension the machine mounts %d GB", got)
	}
	config := h.config()
	config.Mounts = []hangar.Mount{{Volume: string(v.ID), Path: "/elsewhere"}}
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: config})
	must(t, "update the path", err)
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err = h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	if got := h.volume(t, v.Ref()); got.Usage.Total() < 1900<<20 || got.NeedsRestart {
		t.Errorf("after a restart the volume is %+v", got)
	}

	// Clients need not know that the end of a Machine takes a moment.
	must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{Force: true}))
	next := h.create(t, app, h.mounting(v))
	h.wait(t, next.Ref(), hangar.MachineStarted)
	defer func() {
		must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), next.Ref(), hangar.MachineDestroy{Force: true}))
		_, err := h.Volumes.DestroyVolume(h.Context(t), v.Ref())
		must(t, "destroy the volume", err)
	}()
	events, err := h.Volumes.VolumeEvents(h.Context(t), v.Ref())
	must(t, "events", err)
	var types []hangar.VolumeEventType
	for _, e := range events {
		types = append(types, e.Type)
	}
	slices.Reverse(types)
	for _, want := range []hangar.VolumeEventType{
		hangar.VolumeEventCreate, hangar.VolumeEventAttach, hangar.VolumeEventExtend, hangar.VolumeEventDetach, hangar.VolumeEventAttach,
	} {
		i := slices.Index(types, want)
		if i < 0 {
			t.Fatalf("no %s follows in the events %+v", want, events)
		}
		types = types[i+1:]
	}
}

func volumeBadMounts(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	foreign := h.newVolume(t, other, hangar.VolumeCreate{})
	missing := &hangar.Volume{ID: hangar.NewVolumeID()}
	for what, v := range map[string]*hangar.Volume{"no volume": missing, "the volume of another app": foreign} {
		_, err := h.Machines.CreateMachine(h.Context(t), app, h.mounting(v))
		wantError(t, "mount "+what, err, hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
		if err != nil && !strings.Contains(err.Error(), "volume not found") {
			t.Errorf("mount %s: %v", what, err)
		}
	}
	own := h.newVolume(t, app, hangar.VolumeCreate{})
	wish := h.mounting(own)
	wish.Region = "nowhere"
	_, err := h.Machines.CreateMachine(h.Context(t), app, wish)
	wantError(t, "mount in another region", err, hangar.CodeInvalid, "")
	wish = h.mounting(own)
	wish.Config.Mounts[0].Path = "data"
	_, err = h.Machines.CreateMachine(h.Context(t), app, wish)
	wantError(t, "mount at no path", err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	if list, err := h.Machines.Machines(h.Context(t), app, hangar.MachineFilter{}); err != nil || len(list) != 0 {
		t.Errorf("refused wishes left %v, %v", list, err)
	}
	if got := h.volume(t, own.Ref()).AttachedMachine; got != "" {
		t.Errorf("a refused wish left the volume attached to %s", got)
	}
}

// volumeAtOnce: of several Machines that are created at once, one gets the volume.
func volumeAtOnce(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	ctx := h.Context(t)
	const racers = 5
	made := make([]*hangar.Machine, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			wish := h.mounting(v)
			wish.SkipLaunch = true
			m, err := h.Machines.CreateMachine(ctx, app, wish)
			if err != nil {
				wantError(t, "create", err, hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached)
			}
			made[i] = m
		})
	}
	wg.Wait()
	made = slices.DeleteFunc(made, func(m *hangar.Machine) bool { return m == nil })
	if len(made) != 1 || h.volume(t, v.Ref()).AttachedMachine != made[0].ID {
		t.Errorf("%d machines got the volume, which is attached to %q", len(made), h.volume(t, v.Ref()).AttachedMachine)
	}
}
