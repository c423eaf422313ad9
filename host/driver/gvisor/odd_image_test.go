package gvisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestLinksForDirectories boots images that have a link to another place where the platform mounts
// or makes something. Such a Machine runs or is refused, and no link leads to a file of the server.
func TestLinksForDirectories(t *testing.T) {
	t.Parallel()
	d := open(t)
	for name, runs := range map[string]bool{"tmp": false, "proc": false, "sys": false, "dev": false, "etc": true, ".fly": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			victim, layer, source := t.TempDir(), t.TempDir(), t.TempDir()
			before, err := os.Stat(victim)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(layer, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(victim, filepath.Join(layer, name)); err != nil {
				t.Fatal(err)
			}
			hosts := filepath.Join(source, "hosts")
			if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			spec := newSpec(t, "echo", "alive")
			spec.Root.Layers = append(spec.Root.Layers, layer)
			spec.Mounts = []driver.Mount{{Source: hosts, Target: "/etc/hosts"}, {Source: source, Target: "/.fly"}}
			h, err := d.Start(t.Context(), spec)
			switch {
			case runs && err == nil:
				if exit, err := d.Wait(t.Context(), h); err != nil || exit.Code != 0 {
					t.Errorf("it ended with %+v, %v", exit, err)
				}
			case runs:
				t.Error(err)
			case hangar.ReasonOf(err) != hangar.ReasonBadConfig || !strings.Contains(err.Error(), "/"+name+" "):
				t.Errorf("the refusal does not say what is wrong: %v", err)
			}
			if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
				t.Error(err)
			}
			left, err := os.ReadDir(victim)
			after, err2 := os.Stat(victim)
			if err != nil || err2 != nil || len(left) > 0 || after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
				t.Errorf("the server's own directory has %v, %v, %v", left, err, err2)
			}
		})
	}
}
