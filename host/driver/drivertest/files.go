package drivertest

import (
	"path/filepath"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// files are written at each start, over the Machine's own changes, but not on a resume.
func (t test) files() {
	m := t.prepare("sleep")
	m.spec.Files = []driver.File{
		{Path: "/new/directory/file", Content: []byte("first"), Mode: 0o644},
		{Path: "/new/other", Content: []byte("overwritten"), Mode: 0o644},
		{Path: "/new/other", Content: []byte("second"), Mode: 0o600},
	}
	m.start()
	m.out.expect("ready")
	run := func(words ...string) string {
		t.Helper()
		var out strings.Builder
		if _, err := m.d.Exec(m.context(), m.handle, t.Command(words...), hangar.ExecStreams{Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(out.String(), "\n")
	}
	if got := run("read", "/new/directory/file") + run("read", "/new/other"); got != "firstsecond" {
		t.Errorf("files hold %q", got)
	}
	run("write", "/new/other", "changed")
	if _, ok := t.Driver.(driver.Suspender); ok {
		dir := filepath.Join(m.spec.Dir, "snapshot")
		m.suspend(dir)
		m.resume(dir)
		if got := run("read", "/new/other"); got != "changed" {
			t.Errorf("a file holds %q after the resume", got)
		}
	}
	m.destroy()
	m.start()
	m.out.expect("ready")
	if got := run("read", "/new/other"); got != "second" {
		t.Errorf("a file holds %q after another start", got)
	}
}
