package cli

import (
	"testing"
)

func TestParseMemory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"512": 512, "512mb": 512, "1gb": 1024, "2GiB": 2048, "256m": 256} {
		if got, err := ParseMemory(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"0", "-1", "x", "1.5", "100k", "1e30gb"} {
		if got, err := ParseMemory(text); err == nil {
			t.Errorf("%s: got %d", text, got)
		}
	}
}
