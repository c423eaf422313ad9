package router

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestGuideHasEveryCode compares the table of errors that users read.
func TestGuideHasEveryCode(t *testing.T) {
	guide, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, status := range statuses {
		if row := "| `" + string(code) + "` | " + strconv.Itoa(status) + " |"; !strings.Contains(string(guide), row) {
			t.Errorf("docs/api.md has no row %q", row)
		}
	}
}
