package drivertest

import (
	"errors"
	"path/filepath"

	"github.com/hangar-platform/hangar/host/driver"
)

// usage: counters never decrease while a sandbox runs, and begin at 0 again with a resume.
func (t test) usage() {
	reader, ok := t.Driver.(driver.UsageReader)
	if !ok {
		t.Skip("this driver does not measure Machines")
	}
	m := t.prepare("count")
	m.spec.MemoryMB = 192
	m.start()
	m.out.expect("ready")
	read := func() driver.Usage {
		t.Helper()
		u, err := reader.Usage(m.context(), m.handle)
		if err != nil {
			t.Fatalf("Usage: %v", err)
		}
		if u.User < 0 || u.System < 0 || u.Throttled < driver.NotKnown {
			t.Errorf("times %+v", u)
		}
		if used := u.Memory.Used; used != driver.NotKnown && (used <= 0 || used > 192<<20) {
			t.Errorf("%d bytes of memory are used, of 192 MiB", used)
		}
		if u.Memory.SwapTotal > 0 && u.Memory.SwapUsed > u.Memory.SwapTotal {
			t.Errorf("swap %+v", u.Memory)
		}
		return u
	}
	before := read()
	for range 3 {
		m.signal(sigUSR1)
		m.out.line()
		after := read()
		if after.User < before.User || after.System < before.System || after.Throttled < before.Throttled {
			t.Errorf("a counter went back: %+v, then %+v", before, after)
		}
		before = after
	}
	gone := func() {
		t.Helper()
		if _, err := reader.Usage(m.context(), m.handle); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Usage of an ended sandbox: %v", err)
		}
	}
	if t.Driver.Capabilities().Suspend {
		dir := filepath.Join(t.TempDir(), "snapshot")
		m.suspend(dir)
		gone()
		m.resume(dir)
		read()
	}
	m.signal(sigKILL)
	m.wait()
	gone()
}
