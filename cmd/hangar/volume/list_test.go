package volume

import (
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func TestVolumesAreJSONAsTheAPIHasThem(t *testing.T) {
	t.Parallel()
	print := func(v any) string {
		t.Helper()
		var out strings.Builder
		if err := (&cli.Streams{Stdout: &out}).PrintJSON(v); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	v := &hangar.Volume{
		ID: "vol_0000000000000001", State: hangar.VolumePendingDestroy, DestroyedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Usage: hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: 100, BlockSize: 4096, BlocksFree: 90},
	}
	free := print(volumeJSON(v))
	for _, want := range []string{
		`"attached_machine_id": null`, `"fstype": "ext4"`, `"blocks": 100`, `"bytes_used": 40960`, `"undelete_until": "2026-01-03T03:04:05Z"`,
	} {
		if !strings.Contains(free, want) {
			t.Errorf("lacks %s: %s", want, free)
		}
	}
	if strings.Contains(free, `"usage"`) || strings.Contains(free, `"attached_machine"`) {
		t.Error(free)
	}
	v.AttachedMachine = "3d8d413b29d089"
	if held := print(volumesJSON([]*hangar.Volume{v})); !strings.Contains(held, `"attached_machine_id": "3d8d413b29d089"`) || held[0] != '[' {
		t.Error(held)
	}
	if s := print(snapshotsJSON([]*hangar.Snapshot{{Frozen: 45 * time.Millisecond}})); !strings.Contains(s, `"frozen_ms": 45`) || strings.Contains(s, `"frozen":`) {
		t.Error(s)
	}
}
