package deploy

import (
	"io"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/test/platform"
)

// TestRollbackLeavesANewerRelease: after a deploy has failed, only what was complete before it is deployed again.
func TestRollbackLeavesANewerRelease(t *testing.T) {
	t.Parallel()
	const app = hangar.AppName("web")
	p := platform.Start(t, platform.Options{}).Client()
	if _, err := p.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	c := commands{cli.New(cli.Streams{Stdout: io.Discard, Stderr: io.Discard}, func(string) string { return "" })}
	record := func(status hangar.ReleaseStatus) *hangar.Release {
		t.Helper()
		r, err := p.CreateRelease(t.Context(), app, hangar.ReleaseCreate{Image: "nginx", Definition: []byte(`{"app":"web","scale":{"app":0}}`)})
		if err == nil {
			r, err = p.UpdateRelease(t.Context(), r.ID, hangar.ReleaseUpdate{Status: status})
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	newest := func() *hangar.Release {
		t.Helper()
		list, err := p.Releases(t.Context(), app, 1)
		if err != nil {
			t.Fatal(err)
		}
		return list[0]
	}
	failed := record(hangar.ReleaseFailed)
	if err := c.rollBackFrom(t.Context(), p, &flags{}, failed); hangar.ReasonOf(err) != hangar.ReasonReleaseNotFound {
		t.Errorf("without a complete release: %v", err)
	}
	taken := record(hangar.ReleaseComplete)
	if err := c.rollBackFrom(t.Context(), p, &flags{}, failed); err != nil || newest().Version != taken.Version {
		t.Errorf("%v, and release v%d, after v%d was complete", err, newest().Version, taken.Version)
	}
	failed = record(hangar.ReleaseFailed)
	err := c.rollBackFrom(t.Context(), p, &flags{}, failed)
	if now := newest(); err != nil || now.Status != hangar.ReleaseComplete || !strings.HasSuffix(now.Description, "v2") {
		t.Errorf("%v, and %+v", err, now)
	}
}
