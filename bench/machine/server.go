package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// idleShare is how idle the server must be before a measurement.
	idleShare = 0.8
	idleProbe = 50 * time.Millisecond
	// idlePatience bounds the waiting for it: a server that is never idle is
	// measured as it is.
	idlePatience = 3 * time.Second
)

// quiet waits until the server does little else, such as taking down what the
// measurement before has left.
func (b *bench) quiet(ctx context.Context) error {
	if b.options.busyOK {
		return ctx.Err()
	}
	for deadline := time.Now().Add(idlePatience); time.Now().Before(deadline); {
		idle, total, err := processorTime()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleProbe):
		}
		idleThen, totalThen, err := processorTime()
		if err != nil {
			return err
		}
		if float64(idleThen-idle) >= idleShare*float64(totalThen-total) {
			return nil
		}
	}
	b.waited++
	return nil
}

// processorTime is what the processors have spent so far, in ticks.
func processorTime() (idle, total uint64, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, word := range strings.Fields(line)[1:] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		if i < 8 { // the rest is part of what comes before
			total += n
		}
		if i == 3 || i == 4 { // idle, and waiting for a disk
			idle += n
		}
	}
	return idle, total, nil
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
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // cannot fail
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // cannot fail
	cgroups := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "v2"
	}
	lines := []string{
		fmt.Sprintf("%s, %d cores of %s, %d GiB of memory, Linux %s, cgroups %s",
			time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), processor(),
			(info.Totalram*uint64(info.Unit)+1<<29)>>30, unix.ByteSliceToString(kernel.Release[:]), cgroups),
	}
	versions := []string{said(ctx, filepath.Join(b.options.bin, "hangar"), "version"), runtime.Version()}
	if b.stock != "" {
		versions = append(versions, "runsc of gvisor.dev/gvisor "+gvisorVersion(b.stock))
	}
	if b.podman == "" {
		versions = append(versions, said(ctx, "podman", "--version"), said(ctx, "crun", "--version"))
	}
	return append(lines, strings.Join(versions, "; "))
}

func processor() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
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

// said is the first line that a command prints.
func said(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return name + " of an unknown version"
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}
