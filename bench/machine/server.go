package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// quiet waits until the server does little else, such as taking down what the
// measurement before has left.
func (b *bench) quiet(ctx context.Context) error {
	if b.options.busyOK {
		return ctx.Err()
	}
	quiet, err := harness.Quiet(ctx)
	if err == nil && !quiet {
		b.waited++
	}
	return err
}

// usage is the memory of a process in bytes.
type usage struct{ rss, anonymous int64 }

func memoryOf(pid int) (usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return usage{}, err
	}
	var u usage
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		kb, _ := strconv.ParseInt(words[1], 10, 64) // the first line is no number
		switch words[0] {
		case "Rss:":
			u.rss = kb << 10
		case "Anonymous:":
			u.anonymous = kb << 10
		}
	}
	return u, nil
}

// environment says where and with what was measured, without naming the server.
func (b *bench) environment(ctx context.Context) []string {
	versions := []string{publish.Said(ctx, filepath.Join(b.options.bin, "hangar"), "version"), runtime.Version()}
	if b.stock != "" {
		versions = append(versions, "runsc of gvisor.dev/gvisor "+gvisorVersion(b.stock))
	}
	if b.podman == "" {
		versions = append(versions, publish.Said(ctx, "podman", "--version"), publish.Said(ctx, "crun", "--version"))
	}
	return []string{publish.Server(), strings.Join(versions, "; ")}
}

// gvisorVersion is the module version of gVisor in a program.
func gvisorVersion(program string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			return m.Version
		}
	}
	return "unknown"
}
