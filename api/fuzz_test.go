package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

// FuzzQuery: each value that is read from a query is within its bounds, or an error names the
// parameter.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"", "name=x", "flag=true&number=5", "duration=10s", "duration=300", "state=started,stopped&state=settled", "signal=TERM",
		"metadata.a=1&metadata.b=2", "%zz", "a;b", "number=99999999999999999999", "duration=-1s", "flag=%00", "duration=1e3s", "state=,,",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/", RawQuery: raw}}
		q := input.QueryOf(r)
		text, number := q.Text("name"), q.Int("number", 1, 50)
		flag, duration := q.BoolOr("flag", true), q.Duration("duration", time.Minute)
		states, signal := q.States("state", hangar.WaitSettled), q.Signal("signal")
		metadata := metadataOf(q)
		_ = flag
		if q.Err != nil {
			if hangar.CodeOf(q.Err) != hangar.CodeInvalid {
				t.Fatalf("refused with %s: %v", hangar.CodeOf(q.Err), q.Err)
			}
			if s := q.Err.Error(); !strings.HasPrefix(s, "invalid parameter ") && !strings.HasPrefix(s, "invalid query: ") || len(s) > 4<<10 {
				t.Fatalf("the error names no parameter, or is too long: %q", s)
			}
			return
		}
		switch {
		case len(text) > input.MaxText, number < 0 || number > 50, duration < 0 || duration > time.Minute, signal < 0 || signal > 64:
			t.Fatalf("out of bounds: %q, %d, %s, %d", text, number, duration, signal)
		case slices.ContainsFunc(states, func(s hangar.MachineState) bool { return !s.Valid() && s != hangar.WaitSettled }):
			t.Fatalf("no states: %q", states)
		}
		if _, empty := metadata[""]; empty {
			t.Fatal("a key is empty")
		}
	})
}
