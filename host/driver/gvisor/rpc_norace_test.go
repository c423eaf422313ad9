//go:build !race

package gvisor

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/boot/procfs"
)

// TestWireTypes: gVisor's types decode the driver's messages to the same fields, and the driver's
// types decode gVisor's.
func TestWireTypes(t *testing.T) {
	if methodExec != boot.ContMgrExecuteAsync || methodWaitPID != boot.ContMgrWaitPID ||
		methodSignal != boot.ContMgrSignal || methodProcesses != boot.ContMgrProcesses ||
		methodProcfs != boot.ContMgrProcfsDump || methodRestored != boot.ContMgrWaitRestore ||
		methodCat != reflect.TypeFor[control.Fs]().Name()+".Cat" {
		t.Error("the name of a method changed")
	}
	if toProcess != int(boot.DeliverToProcess) || toProcessGroup != int(boot.DeliverToProcessGroup) {
		t.Error("a signal delivery mode changed")
	}

	var exec control.ExecArgs
	through(t, execArgs{
		Filename: "f", Argv: []string{"a"}, Envv: []string{"e"}, WorkingDirectory: "/w",
		KUID: 1, KGID: 2, ExtraKGIDs: []uint32{3}, GuestFDs: []int{0, 1}, ContainerID: "c",
		Capabilities: &taskCapabilities{1, 2, 3, 4, 5},
	}, &exec)
	if exec.Filename != "f" || exec.Argv[0] != "a" || exec.Envv[0] != "e" || exec.WorkingDirectory != "/w" ||
		exec.KUID != 1 || exec.KGID != 2 || exec.ExtraKGIDs[0] != 3 || len(exec.GuestFDs) != 2 || exec.ContainerID != "c" {
		t.Errorf("exec arguments arrive as %+v", exec)
	}
	if want := (auth.TaskCapabilities{PermittedCaps: 1, InheritableCaps: 2, EffectiveCaps: 3, BoundingCaps: 4, AmbientCaps: 5}); *exec.Capabilities != want {
		t.Errorf("capabilities arrive as %+v", exec.Capabilities)
	}
	var wait boot.WaitPIDArgs
	if through(t, waitPIDArgs{7, "c"}, &wait); wait != (boot.WaitPIDArgs{PID: 7, CID: "c"}) {
		t.Errorf("wait arguments arrive as %+v", wait)
	}
	var signal boot.SignalArgs
	if through(t, signalArgs{"c", 9, 2, 3}, &signal); signal != (boot.SignalArgs{CID: "c", Signo: 9, PID: 2, Mode: 3}) {
		t.Errorf("signal arguments arrive as %+v", signal)
	}

	var p guestProcess
	if through(t, control.Process{PID: 3}, &p); p.PID != 3 {
		t.Errorf("process arrives as %+v", p)
	}
	var e procfsEntry
	through(t, procfs.ProcessProcfsDump{
		Args: []string{"a"}, CWD: "/w", StartTime: 5, Status: procfs.Status{Comm: "c", PID: 3, PPID: 2, VMRSS: 9},
		FDs: []procfs.FDInfo{{Number: 4, Path: "socket:[1]"}},
	}, &e)
	if e.Args[0] != "a" || e.CWD != "/w" || e.StartTime != 5 || e.Status.Comm != "c" || e.Status.PID != 3 || e.Status.PPID != 2 || e.Status.VMRSS != 9 ||
		!slices.Equal(e.FDs, []fdEntry{{4, "socket:[1]"}}) {
		t.Errorf("process details arrive as %+v", e)
	}
	var cat control.CatOpts
	if through(t, catArgs{Files: []string{"/a", "/b"}}, &cat); !slices.Equal(cat.Files, []string{"/a", "/b"}) {
		t.Errorf("files to read arrive as %+v", cat)
	}
}

func through(t *testing.T, from, to any) {
	t.Helper()
	raw, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, to); err != nil {
		t.Fatal(err)
	}
}
