package gvisor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestRoot finds on the server what a Machine has written, immediately and without a sync: new
// files, and files that became longer or shorter.
func TestRoot(t *testing.T) {
	d, _ := newDriver(t)
	defer d.Close()
	spec := newSpec(t, "sleep")
	h, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := d.Root(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"new", strings.Repeat("longer ", 10_000), "short", ""} {
		var out strings.Builder
		result, err := d.Exec(t.Context(), h, command("write", "/page", text), hangar.ExecStreams{Stdout: &out, Stderr: &out})
		if err != nil || result.ExitCode != 0 {
			t.Fatalf("%+v, %v: %s", result, err, out.String())
		}
		if b, err := os.ReadFile(filepath.Join(dir, "page")); err != nil || string(b) != text {
			t.Errorf("%d bytes that were written are %d on the server, %v", len(text), len(b), err)
		}
	}
	if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Root(t.Context(), h); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("the root of what is gone: %v", err)
	}
}
