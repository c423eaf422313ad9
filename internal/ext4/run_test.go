package ext4

import "testing"

// TestProgramsAreExposed: what checks, makes or grows a tenant's file system does not inherit the
// protection of the daemon from the kernel's shortage of memory.
func TestProgramsAreExposed(t *testing.T) {
	const untilExposed = `until grep -qx 500 /proc/$$/oom_score_adj; do :; done; echo exposed`
	if said, err := run(t.Context(), "sh", "-c", untilExposed); err != nil || said != "exposed" {
		t.Errorf("%q, %v", said, err)
	}
	if said, err := run(t.Context(), "sh", "-c", "echo why >&2; exit 3"); err == nil || said != "why" {
		t.Errorf("one that fails: %q, %v", said, err)
	} else if code, ok := exitCode(err); !ok || code != 3 {
		t.Errorf("it ended with %d", code)
	}
}
