package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func TestParseMount(t *testing.T) {
	t.Parallel()
	const id = "vol_0000000000000001"
	for text, want := range map[string]hangar.Mount{
		id + ":/data":        {Volume: id, Path: "/data"},
		"data:/data":         {Name: "data", Path: "/data"},
		"vol_short:/var/lib": {Name: "vol_short", Path: "/var/lib"},
		"data:/data:extend_threshold_percent=80:add_size_gb=1:size_gb_limit=10": {
			Name: "data", Path: "/data", ExtendThresholdPercent: 80, AddSizeGB: 1, SizeGBLimit: 10,
		},
		"data:/data:extend_threshold_percent=80,add_size_gb=2": {Name: "data", Path: "/data", ExtendThresholdPercent: 80, AddSizeGB: 2},
	} {
		if got, err := parseMount(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "data", ":/data", "data:", "data:data", "data:/data:ro", "data:/data:add_size_gb", "data:/data:add_size_gb=-1", "data:/d:size_gb=x"} {
		_, err := parseMount(text)
		if _, ok := errors.AsType[cli.UsageError](err); !ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPickVolume(t *testing.T) {
	t.Parallel()
	volume := func(id, name string, state hangar.VolumeState, machine hangar.MachineID) *hangar.Volume {
		return &hangar.Volume{ID: hangar.VolumeID(id), Name: name, State: state, AttachedMachine: machine, Region: "loc"}
	}
	volumes := []*hangar.Volume{
		volume("gone", "data", hangar.VolumePendingDestroy, ""), volume("busy", "data", hangar.VolumeCreated, "m1"),
		volume("filled", "data", hangar.VolumeRestoring, ""), volume("free", "data", hangar.VolumeCreated, ""),
		volume("free2", "data", hangar.VolumeExtending, ""), volume("held", "logs", hangar.VolumeCreated, "m1"),
	}
	for _, test := range []struct {
		name   string
		region hangar.Region
		own    hangar.MachineID
		taken  map[hangar.VolumeID]bool
		want   hangar.VolumeID
		code   hangar.Code
	}{
		{name: "data", want: "free"},
		{name: "data", own: "m1", want: "busy"},
		{name: "data", own: "m2", want: "free"},
		{name: "data", taken: map[hangar.VolumeID]bool{"free": true}, want: "free2"},
		{name: "data", region: "loc", want: "free"},
		{name: "data", region: "ams", code: hangar.CodeNotFound},
		{name: "logs", code: hangar.CodeConflict},
		{name: "none", code: hangar.CodeNotFound},
	} {
		v, err := pickVolume(volumes, "hello", test.region, test.own, test.name, test.taken)
		if test.code != "" {
			if hangar.CodeOf(err) != test.code || !strings.Contains(cli.HintFor(err), "hangar volumes create hello "+test.name) {
				t.Errorf("%+v: %v; %s", test, err, cli.HintFor(err))
			}
		} else if err != nil || v.ID != test.want {
			t.Errorf("%+v: %+v, %v", test, v, err)
		}
	}
}
