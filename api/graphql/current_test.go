package graphql

import (
	"context"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// counted are an App and its releases, which count how often they are read.
type counted struct {
	hangar.AppService
	hangar.ReleaseService

	reads int
}

func (c *counted) App(context.Context, hangar.AppName) (*hangar.App, error) {
	return &hangar.App{Name: "web", ID: "app_1"}, nil
}

func (c *counted) CurrentRelease(context.Context, hangar.AppName) (*hangar.Release, error) {
	c.reads++
	return &hangar.Release{Version: 6 + c.reads}, nil
}

func (c *counted) UpdateRelease(context.Context, hangar.ReleaseID, hangar.ReleaseUpdate) (*hangar.Release, error) {
	return &hangar.Release{App: "web"}, nil
}

// Fields with a part of the current release read it once, and again after a change.
func TestCurrentReleaseIsReadOnce(t *testing.T) {
	const fields = "version currentRelease { version } config { definition } currentReleaseUnprocessed { version }"
	for query, want := range map[string]int{
		`{ app(name: "web") { ` + fields + ` } other: app(name: "web") { ` + fields + ` } }`:              1,
		`mutation { updateRelease(input: {releaseId: "r", status: "complete"}) { release { version } } }`: 0,
	} {
		c := &counted{}
		ask := &asking{area: &area{Services: Services{Apps: c, Releases: c}}, current: map[hangar.AppID]*hangar.Release{}}
		answer := newSchema().Execute(t.Context(), ask, execute.Request{Query: query}, func(err error) { t.Error(err) })
		if len(answer.Errors) > 0 {
			t.Errorf("%s: %+v", query, answer.Errors)
		}
		if c.reads != want {
			t.Errorf("%s reads the release %d times, not %d", query, c.reads, want)
		}
		if len(ask.current) != want {
			t.Errorf("%s remembers %d releases", query, len(ask.current))
		}
	}
}
