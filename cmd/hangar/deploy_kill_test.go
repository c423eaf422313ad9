package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/platform"
)

// deployFile is an App of three Machines whose release command and checks take a moment, so that a kill can
// hit each part of a deploy.
const deployFile = `app = "killed"
[build]
image = "nginx"
[deploy]
strategy = %q
[env]
VERSION = %q
[scale]
app = 3
worker = 1
[standbys]
worker = 1
[processes]
app = ""
worker = ""
[http_service]
internal_port = 8080
processes = ["app"]
[[http_service.checks]]
path = "/"
interval = "1s"
`

// program returns a command that runs this test's binary as the program hangar.
func program(t *testing.T, p *platform.Platform, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("hangar") // put there by testscript.Main
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HANGAR_URL="+p.URL(), "HANGAR_TOKEN="+p.Token(), "HANGAR_CONFIG=/dev/null", "HANGAR_DIR=/nonexistent", "HOME="+t.TempDir())
	return cmd
}

// TestKilledDeploys kills the deploying program at its beginning and in its middle, and deploys again: all
// Machines are as in the file, and nothing is left of the killed deploy.
func TestKilledDeploys(t *testing.T) {
	t.Parallel()
	strategies := []string{"rolling", "bluegreen", "rolling_one", "canary", "immediate"}
	if testing.Short() {
		strategies = strategies[:2] // each waits for a minute
	}
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			p := platform.Start(t, platform.Options{})
			if _, err := p.Client().CreateApp(t.Context(), hangar.AppCreate{Name: "killed", Org: hangar.OrgPersonal}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "hangar.toml")
			write := func(version string) {
				if err := os.WriteFile(file, fmt.Appendf(nil, deployFile, strategy, version), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			deploy := []string{"deploy", "--config", file, "--json", "--smoke-time", "0", "--take-over", "--wait-lease", "1m"}
			write("0")
			if out, err := program(t, p, deploy...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// After a kill, the next deploy waits for the end of the killed one's leases.
			for i, events := range []int{2, 7} {
				write(fmt.Sprint(i + 1))
				killed := killAfter(t, program(t, p, deploy...), events)
				if out, err := program(t, p, deploy...).CombinedOutput(); err != nil {
					t.Fatalf("after a kill at event %d: %v\n%s", events, err, out)
				}
				settled(t, p.Client(), fmt.Sprint(i+1))
				t.Logf("killed after %d events: %t", events, killed)
			}
		})
	}
}

// killAfter kills a command after a number of events. It reports false if the command ended before.
func killAfter(t *testing.T, cmd *exec.Cmd, events int) bool {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for seen := 0; seen < events && lines.Scan(); {
		seen++
	}
	_ = cmd.Process.Kill() // SIGKILL, unless it has ended
	for lines.Scan() {
		continue
	}
	err = cmd.Wait()
	return err != nil && strings.Contains(err.Error(), "killed")
}

// settled fails the test unless the App is as in its file, and no release, lease or Machine is left over.
func settled(t *testing.T, c *client.Client, version string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := map[string]int{"app started": 3, "worker started": 1, "worker standby": 1}
	var got map[string]int
	for {
		machines, err := c.Machines(ctx, "killed", hangar.MachineFilter{})
		if err != nil {
			t.Fatalf("Machines are %v, not %v: %v", got, want, err)
		}
		got = map[string]int{}
		for _, m := range machines {
			if m.State == hangar.MachineDestroying || m.State == hangar.MachineDestroyed {
				continue
			}
			text := m.Config.Metadata["fly_process_group"] + " " + string(m.State)
			if m.Config.StandsBy() {
				text = m.Config.Metadata["fly_process_group"] + " standby"
			}
			if m.Config.Env["VERSION"] != version || m.Cordoned {
				text += fmt.Sprintf(" version %s, cordoned %t", m.Config.Env["VERSION"], m.Cordoned)
			}
			got[text]++
			if lease, err := c.MachineLease(ctx, m.Ref()); err == nil {
				t.Errorf("Machine %s is leased: %+v", m.ID, lease)
			}
		}
		if maps.Equal(got, want) {
			break
		}
		// "immediate" waits for nothing: Machines may still be starting.
		if err := waitForAny(ctx, c, machines); err != nil {
			t.Fatalf("Machines are %v, not %v", got, want)
		}
	}
	list, err := c.Releases(ctx, "killed", 1)
	if err != nil || list[0].Status != hangar.ReleaseComplete {
		t.Errorf("the newest release is %+v, %v", list, err)
	}
}

// waitForAny waits until a Machine in a transitional state has settled. It fails if there is none.
func waitForAny(ctx context.Context, c *client.Client, machines []*hangar.Machine) error {
	for _, m := range machines {
		if m.State == hangar.MachineStarted || m.State == hangar.MachineStopped || m.State == hangar.MachineDestroying {
			continue
		}
		_, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}, Timeout: time.Minute})
		return err
	}
	return hangar.Errorf(hangar.CodeFailedPrecondition, "", "all are at rest")
}
