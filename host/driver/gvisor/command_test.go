package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
)

// plant makes a tree of files: names of directories end in "/", links are "-> TARGET", and every
// other text is the content of an executable file.
func plant(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, full)
		} else {
			err = os.WriteFile(full, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindCommand(t *testing.T) {
	t.Parallel()
	root, volume, tools := t.TempDir(), t.TempDir(), t.TempDir()
	plant(t, root, map[string]string{
		"bin/sh": "binary", "bin/data": "data", "usr/bin/app": "-> ../../bin/sh", "opt/current": "-> /opt/v1", "opt/v1/run": "binary",
		"app/run.sh": "#!/bin/sh\n", "app/env.sh": "#!/usr/bin/env python\n", "app/spaced.sh": "#! /bin/sh -e\n",
		"app/chain": "#!/app/run.sh\n", "app/self": "#!/app/self\n", "app/bin/tool": "binary",
		"start": "-> /data/start", "loop": "-> loop", "dangling": "-> nothing", "outside": "-> ../../../../../../../bin/sh",
		"var/run": "-> /run", "run/x": "x", "private": "binary", "escape": "-> /proc/1/root/bin/sh", "data/hidden": "binary",
		"app/dir/x": "x",
	})
	plant(t, volume, map[string]string{
		"start": "-> releases/7/start", "releases/7/start": "#!/bin/sh\n", "back": "-> /bin/sh", "up": "-> ../bin/sh", "lost": "#!/data/none\n",
	})
	plant(t, tools, map[string]string{"tool": "binary"})
	for name, mode := range map[string]os.FileMode{"bin/data": 0o644, "private": 0o700} {
		if err := os.Chmod(filepath.Join(root, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }()
	mounts := []driver.Mount{
		{Source: volume, Target: "/data"},
		{Source: tools, Target: "/not/there/yet"},
		{Source: filepath.Join(tools, "tool"), Target: "/var/run/tool"},
		{Source: filepath.Join(tools, "none"), Target: "/broken"},
	}
	const notFound = "command not found: "
	for _, tt := range []struct {
		command string
		path    string
		dir     string
		uid     uint32
		want    string // the error; empty: it is there
	}{
		{command: "/bin/sh"},
		{command: "sh"},
		{command: "sh", path: "/none:/bin"},
		{command: "sh", path: "/app", want: notFound + "sh"},
		{command: "/usr/bin/app"},
		{command: "/opt/current/run"},
		{command: "run", path: "/opt/current"},
		{command: "./run.sh", dir: "/app"},
		{command: "bin/tool", dir: "/app"},
		{command: "tool", dir: "/app", path: "/usr/bin:bin"},
		{command: "sh", dir: "/bin", path: ""},
		{command: "sh", dir: "/bin", path: "/none::/other"},
		{command: "../bin/sh", dir: "/app"},
		{command: "/app/../bin/sh"},
		{command: "/none/../bin/sh", want: notFound + "/none/../bin/sh"},
		{command: "/bin/sh/x", want: notFound + "/bin/sh/x"},
		{command: "/none", want: notFound + "/none"},
		{command: "none", want: notFound + "none"},
		{command: "/app/dir", want: notFound + "/app/dir: permission denied"},
		{command: "/bin/data", want: notFound + "/bin/data: permission denied"},
		{command: "data", path: "/bin:/usr/bin", want: notFound + "/bin/data: permission denied"},
		{command: "/private"},
		{command: "/private", uid: 1000, want: notFound + "/private: permission denied"},
		{command: "/bin/sh", uid: 1000},
		{command: "/loop", want: notFound + "/loop: too many levels of symbolic links"},
		{command: "/dangling", want: notFound + "/dangling"},
		{command: "/outside"},
		{command: "/escape", want: notFound + "/escape"},
		{command: "/app/run.sh"},
		{command: "/app/spaced.sh"},
		{command: "/app/chain"},
		{command: "/app/env.sh", want: notFound + "/app/env.sh: interpreter /usr/bin/env: no such file or directory"},
		{command: "/app/self", want: "too many levels of symbolic links"},
		{command: "/start"},
		{command: "/data/releases/7/start"},
		{command: "/data/back"},
		{command: "/data/up"},
		{command: "/data/hidden", want: notFound + "/data/hidden"},
		{command: "/data/lost", want: notFound + "/data/lost: interpreter /data/none: no such file or directory"},
		{command: "/not/there/yet/tool"},
		{command: "/not/there/other", want: notFound + "/not/there/other"},
		{command: "/run/tool"},
		{command: "/var/run/tool"},
		{command: "/broken", want: notFound + "/broken"},
	} {
		cmd := driver.Command{Args: []string{tt.command}, Dir: tt.dir, UID: tt.uid, GID: tt.uid}
		if tt.path != "" || tt.command == "sh" && tt.dir != "" {
			cmd.Env = []string{"PATH=" + tt.path}
		}
		err := findCommands(dir, &driver.Spec{Command: cmd, Mounts: mounts})
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%+v: %v", tt, err)
		case tt.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tt.want) || !errors.Is(err, driver.ErrCommandNotFound)):
			t.Errorf("%+v: error %v", tt, err)
		}
	}
	if err := findCommands(dir, &driver.Spec{}); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("no command: %v", err)
	}
}

// TestLongSearch: neither a link through a very deep directory nor a very long PATH is followed to its end.
func TestLongSearch(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	deep := strings.Repeat("a/", 800)
	plant(t, root, map[string]string{"start": "-> " + deep + "start", deep + "start": "binary", "bin/sh": "binary"})
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }()
	err = findCommands(dir, &driver.Spec{Command: driver.Command{Args: []string{"/start"}}})
	if !errors.Is(err, driver.ErrCommandNotFound) || !errors.Is(err, errLongWay) {
		t.Errorf("deep directory: %v", err)
	}
	long := driver.Command{Args: []string{"sh"}, Env: []string{"PATH=" + strings.Repeat("/none:", 10_000) + "/bin"}}
	if err := findCommands(dir, &driver.Spec{Command: long}); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("long PATH: %v", err)
	}
	if err := findCommands(dir, &driver.Spec{Command: driver.Command{Args: []string{"sh"}}}); err != nil {
		t.Errorf("a command of another search: %v", err)
	}
}

// TestInterpreterOfBinary: a binary names its dynamic linker, which an image for
// another C library lacks.
func TestInterpreterOfBinary(t *testing.T) {
	t.Parallel()
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(host) }()
	shell := newTree(host, nil)
	linker, err := shell.interpreter("/usr/bin/env")
	if err != nil || linker == "" {
		t.Skipf("no dynamic program here: %q, %v", linker, err)
	}
	program, err := os.ReadFile("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	plant(t, root, map[string]string{"app": string(program)})
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }()
	spec := driver.Spec{Command: driver.Command{Args: []string{"/app"}}}
	err = findCommands(dir, &spec)
	if want := "/app: interpreter " + linker + ": no such file or directory"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want ... %s", err, want)
	}
	plant(t, root, map[string]string{linker: "linker"})
	if err := findCommands(dir, &spec); err != nil {
		t.Errorf("with its linker: %v", err)
	}
}
