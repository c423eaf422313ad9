package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// signals are what scripts send to daemons.
var signals = map[string]unix.Signal{"TERM": unix.SIGTERM, "KILL": unix.SIGKILL}

// TestDaemon runs scripts with real daemons in the background, whose Machines are
// pretended.
func TestDaemon(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/daemon",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			dirs := []string{filepath.Join(env.WorkDir, "a"), filepath.Join(env.WorkDir, "b")}
			env.Setenv("HANGAR_DIR", dirs[0])
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("UP", "up --driver fake --api 127.0.0.1:0 --http 127.0.0.1:0 --https 127.0.0.1:0")
			env.Defer(func() {
				for _, dir := range dirs {
					endDaemon(t, dir)
				}
			})
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": expectCode,
			"signal": func(ts *testscript.TestScript, _ bool, args []string) {
				d, err := findDaemon(ts.MkAbs(args[1]))
				ts.Check(err)
				defer d.close()
				ts.Check(d.signal(signals[args[0]]))
				ended, err := d.ended(context.Background(), time.Minute)
				ts.Check(err)
				if !ended {
					ts.Fatalf("the daemon survived %s", args[0])
				}
			},
		},
	})
}

// endDaemon ends a daemon that a failed script left behind.
func endDaemon(t *testing.T, dir string) {
	t.Helper()
	d, err := findDaemon(dir)
	if err != nil {
		return
	}
	defer d.close()
	if err := d.stop(context.Background(), time.Minute); err != nil {
		t.Error(err)
	}
}
