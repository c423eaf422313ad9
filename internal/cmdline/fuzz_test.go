package cmdline_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/cmdline"
)

// FuzzSplit: splitting quoted words returns the same words.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"", "true", "a b", `sh -c "echo $A"`, "'", `\`, `"\"`, "a\tb\nc", `'a'"b"\ c`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, err := cmdline.Split(line)
		if err != nil {
			return
		}
		var quoted strings.Builder
		for _, w := range words {
			quoted.WriteString(" '" + strings.ReplaceAll(w, "'", `'\''`) + "'")
		}
		if again, err := cmdline.Split(quoted.String()); err != nil || !slices.Equal(again, words) {
			t.Fatalf("%q is split into %q, and those into %q, %v", line, words, again, err)
		}
	})
}
