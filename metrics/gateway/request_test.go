package gateway

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestPaths: the gateway serves exactly the paths of the API.
func TestPaths(t *testing.T) {
	t.Parallel()
	kinds := map[kind]bool{}
	for _, path := range hangar.SeriesPaths() {
		e, err := endpointOf(strings.ReplaceAll(path, "{label}", "app"))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		kinds[e.kind] = true
	}
	if want := len(fixedPaths) + 1; len(kinds) != want {
		t.Errorf("there are %d kinds of queries, want %d", len(kinds), want)
	}
}
