package machines_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

func TestLife(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStarted)
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)

	want := "launch/created start/starting start/started stop/stopping exit/stopped start/starting start/started " +
		"suspend/suspending suspend/suspended start/starting start/started " +
		"restart/restarting exit/restarting start/starting start/started destroy/destroying destroy/destroyed"
	if got := r.history(ref); got != want {
		t.Errorf("history:\n got %s\nwant %s", got, want)
	}
	running, err := r.world.Running()
	if err != nil || len(running) > 0 {
		t.Errorf("still running: %v %v", running, err)
	}
	for _, dir := range []string{"machines", "layers"} {
		if left, err := os.ReadDir(filepath.Join(r.dir, dir)); err != nil || len(left) > 0 {
			t.Errorf("left behind in %s: %v %v", dir, left, err)
		}
	}
}

func TestExitsAndPolicies(t *testing.T) {
	policy := func(p hangar.RestartPolicy, retries int) func(*hangar.MachineSpec) {
		return func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: p, MaxRetries: retries} }
	}
	for name, tc := range map[string]struct {
		exit  string
		edit  func(*hangar.MachineSpec)
		state hangar.MachineState
		code  int
		sig   int
		oom   bool
		lines []string
	}{
		"no restart":            {"7@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 7, -1, false, []string{"Main child exited normally with code: 7"}},
		"on-failure, success":   {"0@10ms", policy(hangar.RestartOnFailure, 3), hangar.MachineStopped, 0, -1, false, []string{"Main child exited normally with code: 0"}},
		"on-failure, exhausted": {"3@10ms", policy(hangar.RestartOnFailure, 1), hangar.MachineStopped, 3, -1, false, []string{"Main child exited normally with code: 3", "machine has reached its max restart count of 1"}},
		"killed":                {"signal:9@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 137, 9, false, []string{"Main child exited with signal (with signal 'SIGKILL', core dumped? false)"}},
		"out of memory":         {"oom@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 137, 9, true, []string{"Main child was killed: out of memory"}},
		"auto destroy":          {"1@10ms", func(s *hangar.MachineSpec) { s.Config.AutoDestroy = true }, hangar.MachineDestroyed, 1, -1, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(map[string]string{fake.EnvExit: tc.exit}, tc.edit)
			r.wait(ref, tc.state)
			events, err := r.MachineEvents(t.Context(), ref, 50)
			r.must(err)
			for _, e := range events {
				if e.Type != hangar.EventExit {
					continue
				}
				x := e.Request.ExitEvent
				for _, line := range tc.lines {
					if !slices.Contains(r.said(ref), line) {
						t.Errorf("the log lacks %q: %q", line, r.said(ref))
					}
				}
				if x.ExitCode != tc.code || x.Signal != tc.sig || x.OOMKilled != tc.oom || x.RequestedStop || x.ExitedAt.IsZero() {
					t.Errorf("exit event = %+v", x)
				}
				return
			}
			t.Errorf("no exit event in %s", r.history(ref))
		})
	}
}

// said is what the platform wrote into the Machine's log.
func (r *rig) said(ref hangar.MachineRef) []string {
	r.Helper()
	page, err := r.Logs(r.Context(), ref.AppID, hangar.LogQuery{Instance: ref.ID})
	r.must(err)
	var lines []string
	for _, e := range page.Entries {
		if e.Provider == hangar.LogRunner {
			lines = append(lines, e.Message)
		}
	}
	return lines
}

// TestRestartWindow simulates crash loops of a day.
func TestRestartWindow(t *testing.T) {
	onFailure := func(retries int) *hangar.RestartConfig {
		return &hangar.RestartConfig{Policy: hangar.RestartOnFailure, MaxRetries: retries}
	}
	for name, test := range map[string]struct {
		restart  *hangar.RestartConfig
		code     int
		runs     time.Duration
		restarts int // -1: endless
		after    time.Duration
	}{
		// The first restart is immediate; the pauses are 1, 2, 4, 8 and then 10 seconds.
		"nothing said":        {nil, 1, 0, hangar.DefaultMaxRetries, 65 * time.Second},
		"no policy":           {&hangar.RestartConfig{}, 1, 0, hangar.DefaultMaxRetries, 65 * time.Second},
		"on-failure":          {onFailure(0), 1, time.Second, hangar.DefaultMaxRetries, 76 * time.Second},
		"three":               {onFailure(3), 1, 0, 3, 3 * time.Second},
		"success":             {onFailure(3), 0, 0, 0, 0},
		"seldom":              {onFailure(10), 1, 40 * time.Second, -1, 0},
		"as often as allowed": {onFailure(10), 1, 20 * time.Second, hangar.DefaultMaxRetries, 285 * time.Second},
		"always":              {&hangar.RestartConfig{Policy: hangar.RestartAlways, MaxRetries: 3}, 0, 0, -1, 0},
		"no":                  {&hangar.RestartConfig{Policy: hangar.RestartNo}, 1, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			restarts, after := machines.Crashes(hangar.MachineConfig{Restart: test.restart}, test.code, test.runs)
			if test.restarts < 0 && restarts > 1000 {
				restarts = -1
			}
			if restarts != test.restarts || after != test.after {
				t.Errorf("%d restarts, given up after %s; want %d and %s", restarts, after, test.restarts, test.after)
			}
		})
	}
}

func TestRestartAlwaysStartsAgain(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@10ms"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.wait(ref, hangar.MachineRestarting)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
}

func TestExitWhileTheDaemonWasDown(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "9@300ms"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.until(func() bool { return strings.Contains(r.history(ref), "start/started") })
	r.close()
	r.until(func() bool { return !r.isRunning(ref) })
	r.open()
	r.wait(ref, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), ref, 1)
	r.must(err)
	if x := events[0].Request.ExitEvent; x == nil || x.ExitCode != 9 {
		t.Errorf("newest event = %+v, want an exit with code 9", events[0])
	}
}

// TestRestartOfTheDaemon stops the agent in every state and finds the Machine in the same state, or
// in the one it was changing to.
func TestRestartOfTheDaemon(t *testing.T) {
	r := newRig(t)
	started := r.create(nil)
	stopped := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	suspended := r.create(nil)
	destroyed := r.create(nil)
	r.wait(started, hangar.MachineStarted)
	r.wait(stopped, hangar.MachineStopped)
	r.wait(suspended, hangar.MachineStarted)
	r.must(r.SuspendMachine(t.Context(), suspended))
	r.wait(suspended, hangar.MachineSuspended)
	r.must(r.DestroyMachine(t.Context(), destroyed, hangar.MachineDestroy{Force: true}))
	r.wait(destroyed, hangar.MachineDestroyed)
	before := r.history(started)

	r.restart()
	for ref, want := range map[hangar.MachineRef]hangar.MachineState{
		started: hangar.MachineStarted, stopped: hangar.MachineStopped,
		suspended: hangar.MachineSuspended, destroyed: hangar.MachineDestroyed,
	} {
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		if m.State != want {
			t.Errorf("machine is %s after the restart, want %s", m.State, want)
		}
	}
	if after := r.history(started); after != before {
		t.Errorf("the restart left traces:\n got %s\nwant %s", after, before)
	}
	r.start(suspended)
	m, err := r.Machine(t.Context(), suspended)
	r.must(err)
	if e := m.Events[0]; e.Request != nil {
		t.Errorf("the resume after a restart was not a resume: %+v", e.Request)
	}
}

func TestUpdate(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := before.Config
	config.Env = map[string]string{"V": "2"}

	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config, CurrentVersion: "stale"})
	if hangar.ReasonOf(err) != hangar.ReasonStaleVersion {
		t.Errorf("update with a stale version = %v", err)
	}
	after, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config, CurrentVersion: before.InstanceID})
	r.must(err)
	if after.InstanceID <= before.InstanceID {
		t.Errorf("version %s does not follow %s", after.InstanceID, before.InstanceID)
	}
	_, err = r.WaitMachine(t.Context(), ref, hangar.MachineWait{Instance: after.InstanceID, Timeout: patience})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)

	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.WaitSettled)
	if m, err := r.Machine(t.Context(), ref); err != nil || m.State != hangar.MachineStopped {
		t.Errorf("an update of a stopped machine left it %s (%v)", m.State, err)
	}
	versions, err := r.MachineVersions(t.Context(), ref)
	if err != nil || len(versions) != 3 {
		t.Errorf("versions = %v, %v; want 3", versions, err)
	}
}

func TestFailedUpdateKeepsTheOldVersionRunning(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := before.Config
	config.Image = "offline"
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
	after, err := r.Machine(t.Context(), ref)
	r.must(err)
	if after.InstanceID != before.InstanceID || after.Config.Image != "web" {
		t.Errorf("after the failed update: version %s image %s", after.InstanceID, after.Config.Image)
	}
	if e := after.Events[0]; e.Type != hangar.EventUpdate || e.Request == nil || e.Request.Error == "" {
		t.Errorf("newest event = %+v, want an update with its error", e)
	}
	if strings.Contains(r.history(ref), "exit/") {
		t.Errorf("the old version was touched: %s", r.history(ref))
	}
}

// TestColdBootHidesTheServer: the reason of a cold boot does not reveal paths of the server.
func TestColdBootHidesTheServer(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.must(os.RemoveAll(filepath.Join(r.dir, "machines", string(ref.ID), "snapshot")))
	r.start(ref)
	e := r.newest(ref)
	if e.Request == nil || !strings.Contains(e.Request.ColdBoot, "no such file") || strings.Contains(e.Request.ColdBoot, r.dir) {
		t.Errorf("newest event = %+v, want why the memory was not there, without %s", e.Request, r.dir)
	}
}

func TestUnusableSnapshotBootsCold(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvResumeError: "snapshot unusable"})
	r.wait(ref, hangar.MachineStarted)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	if e := m.Events[0]; e.Request == nil || e.Request.ColdBoot == "" {
		t.Errorf("newest event = %+v, want the reason of the cold boot", e)
	}
}

// TestImagesOfOthers: a Machine runs no image of another organization's part of the built-in
// registry, neither at its creation nor after an update.
func TestImagesOfOthers(t *testing.T) {
	r := newRig(t)
	spec := func(image string) hangar.MachineSpec {
		return hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", AppID: "web", Org: "acme", Config: hangar.MachineConfig{
			Image: image, Guest: &hangar.Guest{MemoryMB: 256},
		}}
	}
	_, err := r.CreateMachine(t.Context(), spec("registry.test/other/app"))
	if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
		t.Errorf("create with an image of others = %v", err)
	}
	for _, image := range []string{"registry.test/acme/app", "registry.test/shared"} {
		m, err := r.CreateMachine(t.Context(), spec(image))
		r.must(err)
		r.wait(m.Ref(), hangar.MachineStarted)
		_, err = r.UpdateMachine(t.Context(), m.Ref(), hangar.MachineUpdate{Config: spec("registry.test/other/app").Config})
		if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
			t.Errorf("update to an image of others = %v", err)
		}
	}
}

func TestFailures(t *testing.T) {
	r := newRig(t)
	_, err := r.CreateMachine(t.Context(), hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", AppID: "web", Config: hangar.MachineConfig{
		Image: "missing", Guest: &hangar.Guest{MemoryMB: 256},
	}})
	if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
		t.Errorf("create with a missing image = %v", err)
	}
	_, err = r.CreateMachine(t.Context(), hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", AppID: "web", Config: hangar.MachineConfig{
		Image: "web", Guest: &hangar.Guest{MemoryMB: 1 << 20},
	}})
	if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		t.Errorf("create of a huge machine = %v", err)
	}

	ref := r.create(map[string]string{fake.EnvStartError: "command not found"})
	r.wait(ref, hangar.MachineFailed)
	if err := r.SignalMachine(t.Context(), ref, 1); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("signal to a failed machine = %v", err)
	}
	if err := r.SuspendMachine(t.Context(), ref); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("suspend of a failed machine = %v", err)
	}
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{}))
	r.wait(ref, hangar.MachineDestroyed)
	if _, err := r.StartMachine(t.Context(), ref); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("start of a destroyed machine = %v", err)
	}

	running := r.create(nil)
	r.wait(running, hangar.MachineStarted)
	if err := r.DestroyMachine(t.Context(), running, hangar.MachineDestroy{}); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("destroy of a running machine without force = %v", err)
	}
	if _, err := r.WaitMachine(t.Context(), running, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, Timeout: 10 * time.Millisecond}); hangar.ReasonOf(err) != hangar.ReasonWaitTimeout {
		t.Errorf("wait that cannot come true in time = %v", err)
	}
}

func TestRowsFollowEvenWhenTheStateWasAway(t *testing.T) {
	r := newRig(t)
	r.rows.setAway(true)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.rows.setAway(false)
	for deadline := time.Now().Add(patience); r.rows.state(ref.ID) != hangar.MachineStarted; {
		if time.Now().After(deadline) {
			t.Fatalf("the row says %q", r.rows.state(ref.ID))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestWatchSeesEveryEvent(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	var seen []string
	for change, err := range r.WatchMachine(t.Context(), ref) {
		r.must(err)
		if change.Event == nil && len(seen) == 0 {
			_, err := r.StartMachine(t.Context(), ref)
			r.must(err)
			r.wait(ref, hangar.MachineStarted)
			r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		}
		if change.Event != nil {
			seen = append(seen, change.Event.Status)
		}
	}
	want := "starting started destroying destroyed"
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("watched %q, want %q", got, want)
	}
}

func TestWaitersFromEvent(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@10ms"}, func(s *hangar.MachineSpec) {
		s.SkipLaunch = true
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStopped)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	from := m.Events[0].ID
	_, err = r.StartMachine(t.Context(), ref)
	r.must(err)
	_, err = r.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, FromEvent: from, Timeout: patience})
	r.must(err)
	reached, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{FromEvent: from})
	if err != nil || reached.State != hangar.MachineStarted {
		t.Errorf("wait for a state that passed = %+v, %v", reached, err)
	}
}
