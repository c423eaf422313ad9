// Package gobuild builds programs of this module for tests to run, and makes their source an input
// of the cache of test results.
package gobuild

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Build builds the program of a package, which is an import path or ./directory, into the file out,
// linked statically. The test cache does not know the packages that the program imports, except for
// those that the test imports, too.
func Build(ctx context.Context, out, pkg string) error {
	dir, err := run(ctx, "list", "-f", "{{.Dir}}", pkg)
	if err != nil {
		return err
	}
	// go test records what a test opens, but not what its child processes open.
	if _, err := os.ReadDir(strings.TrimSpace(dir)); err != nil {
		return err
	}
	_, err = run(ctx, "build", "-trimpath", "-o", out, pkg)
	return err
}

func run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, said.String())
	}
	return string(out), nil
}
