package edge

import (
	"os"
	"path/filepath"
	"testing"
)

// Each run has another colour than the one before, however that has ended: it is recorded at the
// start.
func TestColours(t *testing.T) {
	file := filepath.Join(t.TempDir(), colourFile)
	for i, want := range []colour{blue, green, blue, green} {
		got, err := nextColour(file)
		if err != nil || got != want {
			t.Errorf("run %d is %s, %v, want %s", i, got, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("gre"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := nextColour(file); err != nil || got != blue {
		t.Errorf("after damage: %s, %v", got, err)
	}
	if _, err := nextColour(filepath.Join(file, "none")); err == nil {
		t.Error("a colour that cannot be recorded is none")
	}
}
