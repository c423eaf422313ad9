package main

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md")

// commandLine runs a command line in this process and returns its output.
func commandLine(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, func(string) string { return "" })
	c.Build.Version = "v1.2.3"
	if code := run(t.Context(), c, args); code != cli.ExitOK {
		t.Fatalf("hangar %s: exit code %d\n%s", strings.Join(args, " "), code, &stderr)
	}
	return stdout.String()
}

// TestReference compares docs/cli.md with the commands. -update rewrites it.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	want := commandLine(t, "reference", "markdown")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("docs/cli.md is not what the commands say (%v); rewrite it with: go test ./cmd/hangar -run TestReference -update", err)
	}
	for _, one := range []string{"\n## hangar machine\n", "\n### hangar machine run\n", "(#hangar-machine-run)", "--autostop-after duration", "\n## hangar up\n"} {
		if !strings.Contains(want, one) {
			t.Errorf("the manual lacks %q", one)
		}
	}
	for _, hidden := range []string{"guard-volume", "signal-ready", "hangar reference", "Not offered"} {
		if strings.Contains(want, hidden) {
			t.Errorf("the manual shows %q", hidden)
		}
	}
}

// TestManPages generates the pages. groff, where it is installed, formats them without a warning.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	commandLine(t, "reference", "man", dir)
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 100 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "hangar-machine-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`.TH "HANGAR-MACHINE-RUN" 1 "" "hangar v1.2.3"`, "\n.SH SYNOPSIS\n", `\-\-autostop`, "\n.SH EXAMPLES\n", `hangar\-machine(1)`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the page of machine run lacks %q", part)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		return
	}
	out, err := exec.CommandContext(t.Context(), "groff", append([]string{"-man", "-Tutf8", "-K", "utf8", "-ww", "-z"}, pages...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%.2000s", err, out)
	}
}
