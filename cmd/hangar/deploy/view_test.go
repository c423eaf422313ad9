package deploy

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
)

// events are those of a short deploy.
func events() []rollout.Event {
	return []rollout.Event{
		{Text: "Release v2 of web: nginx"},
		{Stage: 1, Stages: 1, Group: "app", Machine: "00000000000001", Text: "updated"},
		{Stage: 1, Stages: 1, Group: "app", Machine: "00000000000002", Text: "updated"},
		{Stage: 1, Stages: 1, Group: "app", Machine: "00000000000001", Text: "healthy", Done: true},
		{Stage: 1, Stages: 1, Text: "a word between"},
		{Stage: 1, Stages: 1, Group: "app", Machine: "00000000000002", Text: "it is failed", Done: true, Failed: true},
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		live bool
		want string
	}{
		"lines": {false, "Release v2 of web: nginx\nStage 1 of 1\n  00000000000001 app: updated\n  00000000000002 app: updated\n" +
			"  00000000000001 app: ✓ healthy\na word between\n  00000000000002 app: ✗ it is failed\n"},
		"terminal": {true, "Release v2 of web: nginx\nStage 1 of 1\n  00000000000001 app: updated\n  00000000000002 app: updated\n" +
			"\x1b[2A\r\x1b[2K  00000000000001 app: ✓ healthy\x1b[2B\ra word between\n  00000000000002 app: ✗ it is failed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			v := newView(&cli.Streams{Stdout: &out}, false)
			v.live = test.live
			for _, e := range events() {
				v.event(e)
			}
			v.close()
			if out.String() != test.want {
				t.Errorf("got\n%q\nwant\n%q", out.String(), test.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for directory, want := range map[string]string{"My Shop": "my-shop", "shop_2": "shop-2", "--": "app", "/": "app"} {
		if got := nameOf(directory); got != want {
			t.Errorf("%q is named %q, not %q", directory, got, want)
		}
	}
}
