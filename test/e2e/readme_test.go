package e2e

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/gobuild"
)

// TestReadme types what the terminal of the README shows, and compares what it is answered.
func TestReadme(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "```\n$ ")
	terminal, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("the README has no terminal")
	}
	d := start(t).d
	program := filepath.Join(t.TempDir(), "hello")
	if err := gobuild.Build(t.Context(), program, "../../examples/hello"); err != nil {
		t.Fatal(err)
	}
	image := d.Push(program, "hello")
	d.Run("apps", "create", "hello")
	edge, _ := d.Edge()
	client := http.Client{Transport: &viaEdge{edge, &http.Transport{DisableKeepAlives: true}}}
	for step := range strings.SplitSeq(terminal, "\n$ ") {
		line, shown, _ := strings.Cut(step, "\n")
		line, _, _ = strings.Cut(line, "  #")
		words := strings.Fields(strings.ReplaceAll(line, "$IMAGE", image))
		var got string
		switch {
		case words[0] == "curl":
			res, err := client.Get(words[1])
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || res.Body.Close() != nil {
				t.Fatal(err)
			}
			got = string(body)
		case strings.HasPrefix(line, "hangar machine list"):
			d.Run("machine", "wait", "hello", "--state", "suspended") // the reader has waited, too
			got = d.Run(words[1:]...)
		default:
			got = d.Run(words[1:]...)
		}
		answered := bufio.NewScanner(strings.NewReader(got))
		for want := range strings.Lines(shown) {
			if strings.TrimSpace(want) == "…" {
				break
			}
			answered.Scan()
			if alike(answered.Text()) != alike(want) {
				t.Errorf("%s: answered %q, the README has %q", line, answered.Text(), strings.TrimSpace(want))
			}
		}
	}
}

// alike is a line without what differs from run to run.
func alike(line string) string {
	for _, differs := range []*regexp.Regexp{
		regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:]+Z`), regexp.MustCompile(`\bfd[0-9a-f]{2}:[0-9a-f:]+`), regexp.MustCompile(`\b[0-9a-f]{14}\b`),
		regexp.MustCompile(`\b[a-z]+-[a-z]+-\d+\b`), regexp.MustCompile(`\b[\d.]+ ?(ms|s)( ago)?\b|just now`),
	} {
		line = differs.ReplaceAllString(line, "#")
	}
	return strings.Join(strings.Fields(line), " ")
}
