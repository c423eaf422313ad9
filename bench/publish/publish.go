// Package publish writes the results of a benchmark into the common file, with a description of
// the server. Each benchmark owns one section of the file and keeps the others.
package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Section prints a section, which begins with its heading, and writes it into a file, if one is
// named: in the place of the one with the same heading, or at the end.
func Section(file, section string) error {
	fmt.Println(strings.TrimRight(section, "\n"))
	if file == "" {
		return nil
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(replace(string(old), section)), 0o644) //nolint:gosec // world-readable
}

func replace(document, section string) string {
	title, _, _ := strings.Cut(section, "\n")
	before, rest, found := strings.Cut(document, title+"\n")
	if !found {
		if document == "" {
			document = "# Results\n"
		}
		return strings.TrimRight(document, "\n") + "\n\n" + section
	}
	if _, after, more := strings.Cut(rest, "\n## "); more {
		section += "\n## " + after
	}
	return before + section
}

// Verdict says of a goal whether it is met.
func Verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

// Server describes the server and the day, without naming it.
func Server() string {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // cannot fail
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // cannot fail
	cgroups := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "v2"
	}
	return fmt.Sprintf("%s, %d cores of %s, %d GiB of memory, Linux %s, cgroups %s",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), processor(),
		(info.Totalram*uint64(info.Unit)+1<<29)>>30, unix.ByteSliceToString(kernel.Release[:]), cgroups)
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

// Said is the first line that a command prints, such as its version.
func Said(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return name + " of an unknown version"
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}
