package rollout_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
)

// TestScaling: scaling does not touch other Machines, although there are new secrets and the image has a tag,
// and the Machines that it changes keep their image.
func TestScaling(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	two := "worker = 1\n[processes]\napp = \"serve\"\nworker = \"work\"\n"
	release, err := deploy(t.Context(), c, file(t, "1", two))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetSecrets(t.Context(), app, map[string]hangar.Sensitive{"KEY": hangar.NewSensitive("x")}); err != nil {
		t.Fatal(err)
	}
	active := func() map[hangar.MachineID]*hangar.Machine {
		t.Helper()
		list, err := rollout.Active(t.Context(), c, app)
		if err != nil {
			t.Fatal(err)
		}
		found := map[hangar.MachineID]*hangar.Machine{}
		for _, m := range list {
			found[m.ID] = m
		}
		return found
	}
	was, version := file(t, "1", two), release.Release.Version
	scale := func(change func(f *appconfig.File), region hangar.Region) error {
		t.Helper()
		f := file(t, "1", two)
		f.Scale["app"] = was.Scale["app"]
		change(f)
		d, err := deploy(t.Context(), c, f, func(o *rollout.Options) {
			o.Scaling = &rollout.Scaling{Version: version, File: was, Region: region}
		})
		if err == nil {
			was, version = f, d.Release.Version
		}
		return err
	}
	before := active()
	if len(before) != 4 {
		t.Fatalf("there are %d Machines", len(before))
	}
	digest := ""
	for _, m := range before {
		digest = m.ImageRef.Digest
	}
	same := func(m *hangar.Machine) bool {
		old := before[m.ID]
		return old != nil && old.InstanceID == m.InstanceID
	}
	for _, n := range []int{5, 2} {
		if err := scale(func(f *appconfig.File) { f.Scale["app"] = n }, "loc"); err != nil {
			t.Fatal(err)
		}
		now := active()
		if len(now) != n+1 {
			t.Errorf("there are %d Machines, not %d", len(now), n+1)
		}
		kept := 0
		for _, m := range now {
			if same(m) {
				kept++
			} else if m.ImageRef.Digest != digest || !strings.HasSuffix(m.Config.Image, "@"+digest) {
				t.Errorf("a new Machine runs %s", m.Config.Image)
			}
		}
		if want := min(n+1, 4); n == 5 && kept != want {
			t.Errorf("%d Machines are as they were, not %d", kept, want)
		}
		if n == 5 {
			before = now
		} else if kept != len(now) {
			t.Errorf("%d of %d Machines that stay are as they were", kept, len(now))
		}
	}
	before = active()
	if err := scale(func(f *appconfig.File) {
		if err := f.Resize("worker", func(vm *appconfig.VM) { vm.Memory = 512 }); err != nil {
			t.Fatal(err)
		}
	}, ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range active() {
		worker := rollout.GroupOf(m) == "worker"
		if same(m) == worker || (m.Config.Guest.MemoryMB == 512) != worker || m.ImageRef.Digest != digest {
			t.Errorf("Machine %s of %s: %d MB, image %s, as it was: %v", m.ID, rollout.GroupOf(m), m.Config.Guest.MemoryMB, m.Config.Image, same(m))
		}
		if worker && !strings.HasSuffix(m.Config.Image, "@"+digest) {
			t.Errorf("a changed Machine runs the image that %s names now", m.Config.Image)
		}
	}
	var usage cli.UsageError
	if err := scale(func(*appconfig.File) {}, "ams"); !errors.As(err, &usage) {
		t.Errorf("an unknown region: %v", err)
	}
}
