package machines

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
)

func TestDatabaseMounts(t *testing.T) {
	want := []driver.Mount{{Source: "/srv/bin/hangar-db-1", Target: "/.hangar/bin/hangar-db", ReadOnly: true}}
	for _, c := range []struct {
		what    string
		program string
		args    [][]string
		want    []driver.Mount
	}{
		{"its command", "/srv/bin/hangar-db-1", [][]string{{hangar.DatabaseProgram, "mount", "--", "app"}}, want},
		{"a shell", "/srv/bin/hangar-db-1", [][]string{{"sh", "-c", "exec " + hangar.DatabaseProgram + " mount"}}, want},
		{"one of several", "/srv/bin/hangar-db-1", [][]string{{"app"}, {hangar.DatabaseProgram}}, want},
		{"none", "/srv/bin/hangar-db-1", [][]string{{"app", "/usr/bin/hangar-db"}, {}}, nil},
		{"a host without it", "", [][]string{{hangar.DatabaseProgram}}, nil},
	} {
		var processes []guest.Process
		for _, args := range c.args {
			processes = append(processes, guest.Process{Args: args})
		}
		got, err := databaseMounts(func() (string, error) { return c.program, nil }, processes)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v", c.what, got, err)
		}
	}
}
