package platform

import (
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/platform/hostcheck"
)

func TestServersCheck(t *testing.T) {
	now := time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)
	host := func(id hangar.HostID, state hangar.HostState, heard time.Time) hangar.Host {
		return hangar.Host{ID: id, State: state, MeshKey: "key", MeshAddress: "10.0.0.2:51821", MeshHandshake: heard}
	}
	self := host("0a7b7df0", hangar.HostAlive, now)
	for name, c := range map[string]struct {
		other  hangar.Host
		status hostcheck.Status
	}{
		"all is well":                {host("5eedbed5", hangar.HostAlive, now.Add(-2*time.Minute)), hostcheck.OK},
		"no handshake yet":           {host("5eedbed5", hangar.HostAlive, time.Time{}), hostcheck.Warn},
		"none for long":              {host("5eedbed5", hangar.HostAlive, now.Add(-6*time.Minute)), hostcheck.Warn},
		"of one that is dead anyway": {host("5eedbed5", hangar.HostDead, time.Time{}), ""},
		"of one that has no mesh":    {hangar.Host{ID: "5eedbed5", State: hangar.HostAlive}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got hostcheck.Check
			for _, got = range serversCheck([]hangar.Host{self, c.other}, now) {
			}
			if got.Status != c.status || strings.Contains(got.Detail, "5eedbed5 at 10.0.0.2:51821") != (c.status == hostcheck.Warn) {
				t.Errorf("got %+v, want %q", got, c.status)
			}
		})
	}
}
