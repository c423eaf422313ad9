package sim

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/test/daemon"
)

const sleeper = `package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	<-c
}
`

// pushSleeper pushes an image of a static program that waits for a signal.
func pushSleeper(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(sleeper), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "sleeper")
	build := exec.Command("go", "build", "-o", binary, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program of the image: %v\n%s", err, out)
	}
	return d.Push(binary, "sleeper:1")
}
