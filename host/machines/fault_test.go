package machines_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

var errFault = errors.New("the host is in a bad mood")

// failing makes an operation fail n times, always if n is negative, and returns the number of
// failures.
func (r *rig) failing(at fake.Op, n int64) *atomic.Int64 {
	var failed atomic.Int64
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op != at || n >= 0 && failed.Load() >= n {
			return 0, nil
		}
		failed.Add(1)
		return 0, errFault
	})
	return &failed
}

// slow makes an operation hang until its context ends.
func (r *rig) slow(at fake.Op) {
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == at {
			return time.Hour, nil
		}
		return 0, nil
	})
}

func (r *rig) reopenWith(pace func(*machines.Limits)) {
	r.Helper()
	r.close()
	r.pace = pace
	r.open()
}

// TestStopThatHangsIsForced: a hanging sandbox is ended nevertheless.
func TestStopThatHangsIsForced(t *testing.T) {
	r := newRig(t)
	r.reopenWith(func(l *machines.Limits) { l.Stop = 20 * time.Millisecond })
	for name, fault := range map[string]func(){
		"hangs": func() { r.slow(fake.OpStop) },
		"fails": func() { r.failing(fake.OpStop, -1) },
	} {
		r.faults.Store(nil)
		ref := r.create(nil)
		r.wait(ref, hangar.MachineStarted)
		fault()
		r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{Timeout: time.Millisecond}))
		r.wait(ref, hangar.MachineStopped)
		if r.isRunning(ref) {
			t.Errorf("%s: the machine still runs", name)
		}
		if x := r.newest(ref).Request; x == nil || x.ExitEvent == nil || x.ExitEvent.ExitCode != 137 {
			t.Errorf("%s: newest event = %+v, want an exit", name, r.newest(ref))
		}
	}
}

// TestStopCanBeHurried: an impatient user need not wait for the grace period.
func TestStopCanBeHurried(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvStop: "ignore"})
	r.wait(ref, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{Timeout: time.Hour}))
	r.wait(ref, hangar.MachineStopping)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{})) // nothing new
	if got := r.state(ref); got != hangar.MachineStopping {
		t.Errorf("machine is %s after a stop that says nothing new", got)
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{Signal: 9}))
	r.wait(ref, hangar.MachineStopped)
	if x := r.newest(ref).Request.ExitEvent; x.Signal != 9 || !x.RequestedStop {
		t.Errorf("exit = %+v", x)
	}
}

// TestForceWorksWhateverHangs destroys Machines in the middle of a step that never ends.
func TestForceWorksWhateverHangs(t *testing.T) {
	for _, op := range []fake.Op{fake.OpStart, fake.OpStartDone, fake.OpSuspend, fake.OpStop, fake.OpResume} {
		r := newRig(t)
		ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
		r.wait(ref, hangar.MachineStopped)
		if op != fake.OpStart && op != fake.OpStartDone {
			r.start(ref)
		}
		if op == fake.OpResume {
			r.suspend(ref)
		}
		r.slow(op)
		switch op {
		case fake.OpSuspend:
			r.must(r.SuspendMachine(t.Context(), ref))
		case fake.OpStop:
			r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
		default:
			_, err := r.StartMachine(t.Context(), ref)
			r.must(err)
		}
		r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		r.wait(ref, hangar.MachineDestroyed)
		if r.isRunning(ref) {
			t.Errorf("%s: the machine still runs", op)
		}
	}
}

// TestSuspendThatCompletesLate: a suspend that was given up, but that the engine completes nevertheless,
// is no exit, which would lose the memory.
func TestSuspendThatCompletesLate(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.failing(fake.OpSuspend, 1)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.until(func() bool {
		return strings.HasSuffix(r.history(ref), "suspend/started") && r.state(ref) == hangar.MachineStarted
	})
	engine := fake.New(r.world, fake.Options{})
	handle, err := engine.Adopt(t.Context(), ref.ID, "")
	r.must(err)
	r.must(engine.Suspend(t.Context(), handle, filepath.Join(r.dir, "machines", string(ref.ID), "snapshot")))
	r.until(func() bool { return r.state(ref) != hangar.MachineStarted })
	r.wait(ref, hangar.WaitSettled)
	if got, history := r.state(ref), r.history(ref); got != hangar.MachineSuspended || strings.Contains(history, "exit/") {
		t.Fatalf("machine is %s: %s", got, history)
	}
	r.start(ref)
	if got := r.exec(ref, "memory"); got != "1" {
		t.Errorf("the machine counted to %s after the resume, want 1: %s", got, r.history(ref))
	}
}

// TestResumeThatNeverBegan: a resume that failed before anything ran can be tried again.
func TestResumeThatNeverBegan(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.suspend(ref)
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpResume {
			return 0, fmt.Errorf("%w: too many open files", driver.ErrNotBegun)
		}
		return 0, nil
	})
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	r.wait(ref, hangar.MachineFailed)
	r.inject(nil)
	r.start(ref)
	if got, e := r.exec(ref, "memory"), r.newest(ref); got != "1" || e.Request != nil && e.Request.ColdBoot != "" {
		t.Errorf("the machine counted to %s, want 1: %s %+v", got, r.history(ref), e.Request)
	}
}

// TestEndBeforeAResume: a resume that has not begun when the daemon ends is carried out by the next.
func TestEndBeforeAResume(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.suspend(ref)
	reached, ending := make(chan struct{}), machines.Ending(r.machines())
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op != fake.OpResume {
			return 0, nil
		}
		close(reached)
		<-ending
		return 0, fmt.Errorf("%w: too many open files", driver.ErrNotBegun)
	})
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	<-reached
	r.close()
	r.inject(nil)
	r.open()
	r.wait(ref, hangar.MachineStarted)
	if got, e := r.exec(ref, "memory"), r.newest(ref); got != "1" {
		t.Errorf("the machine counted to %s, want 1: %s %+v", got, r.history(ref), e.Request)
	}
}

// TestReleaseIsRepeated: the release of a sandbox is retried, and meanwhile the Machine reports
// what it is doing.
func TestReleaseIsRepeated(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	failed := r.failing(fake.OpDestroy, 2)
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)
	if failed.Load() != 2 {
		t.Errorf("failed %d times, want 2", failed.Load())
	}
	if got := r.history(ref); !strings.HasSuffix(got, "destroy/destroying destroy/destroyed") {
		t.Errorf("history: %s", got)
	}
}

// TestExitIsToldOnce: an exit is recorded once, even if the sandbox cannot be released before the
// next request.
func TestExitIsToldOnce(t *testing.T) {
	always := func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	}
	for name, ask := range map[string]func(*rig, hangar.MachineRef) error{
		"stop": func(r *rig, ref hangar.MachineRef) error {
			return r.StopMachine(r.Context(), ref, hangar.MachineStop{})
		},
		"update": func(r *rig, ref hangar.MachineRef) error {
			m, err := r.Machine(r.Context(), ref)
			r.must(err)
			config := m.Config
			config.Env = nil
			_, err = r.UpdateMachine(r.Context(), ref, hangar.MachineUpdate{Config: config})
			return err
		},
		"failed update": func(r *rig, ref hangar.MachineRef) error {
			m, err := r.Machine(r.Context(), ref)
			r.must(err)
			config := m.Config
			config.Image = "offline"
			_, err = r.UpdateMachine(r.Context(), ref, hangar.MachineUpdate{Config: config})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.failing(fake.OpDestroy, -1)
			ref := r.create(map[string]string{fake.EnvExit: "3@20ms"}, always)
			r.wait(ref, hangar.MachineRestarting)
			r.must(ask(r, ref))
			r.faults.Store(nil)
			want := hangar.MachineStarted
			if name == "stop" {
				want = hangar.MachineStopped
			}
			r.wait(ref, want)
			first := r.history(ref)
			if parts := strings.SplitAfterN(first, "start/started", 3); len(parts) == 3 {
				first = parts[0] + parts[1] // it may have ended again by now
			}
			if n := strings.Count(first, "exit/"); n != 1 {
				t.Errorf("%d exits, want 1: %s", n, r.history(ref))
			}
		})
	}
}

// TestUpdateOfASuspendedMachineTellsNoExit: no process of it runs that could exit.
func TestUpdateOfASuspendedMachineTellsNoExit(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.failing(fake.OpDestroy, -1)
	r.suspend(ref)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: m.Config})
	r.must(err)
	r.faults.Store(nil)
	r.wait(ref, hangar.MachineStopped)
	if got := r.history(ref); strings.Contains(got, "exit/") {
		t.Errorf("history: %s", got)
	}
}

// TestRestartOutlivesAFailedUpdate: a failed update does not cancel a requested restart.
func TestRestartOutlivesAFailedUpdate(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvStop: "ignore"})
	r.wait(ref, hangar.MachineStarted)
	before := r.exec(ref, "boot")
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{MachineStop: hangar.MachineStop{Timeout: time.Hour}}))
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := m.Config
	config.Image = "offline"
	config.StopConfig = &hangar.StopConfig{Signal: new(hangar.Signal)}
	*config.StopConfig.Signal = 9
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
	if r.exec(ref, "boot") == before {
		t.Errorf("the machine was not restarted: %s", r.history(ref))
	}
}

// TestPolicyRestartThatCannotBootIsRepeated: a fault of the host is no reason to give up a Machine
// that is to run always.
func TestPolicyRestartThatCannotBootIsRepeated(t *testing.T) {
	r := newRig(t)
	var starts atomic.Int64
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStart && starts.Add(1) == 3 { // after two exits
			return 0, errFault
		}
		return 0, nil
	})
	ref := r.create(map[string]string{fake.EnvExit: "3@30ms"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.until(func() bool {
		return strings.Contains(r.history(ref), "exit/restarting start/starting start/restarting start/starting start/started")
	})
	// A start that a user requested fails immediately, with the reason.
	r.failing(fake.OpStart, -1)
	other := r.create(nil, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.wait(other, hangar.MachineFailed)
}

// TestBackOffOutlivesTheDaemon: after a restart of the daemon, earlier restarts still count, and
// the Machine does not start early.
func TestBackOffOutlivesTheDaemon(t *testing.T) {
	r := newRig(t)
	var (
		ref hangar.MachineRef
		due time.Time
	)
	for due.IsZero() { // until it is seen in its pause
		ref = r.create(map[string]string{fake.EnvExit: "3@10ms"}, func(s *hangar.MachineSpec) {
			s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartOnFailure, MaxRetries: 3}
		})
		r.until(func() bool { return strings.Count(r.history(ref), "exit/restarting") >= 2 }) // the first one comes at once
		due = machines.RestartAt(r.machines(), ref)
	}
	r.crash()
	r.open()
	r.wait(ref, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), ref, 50)
	r.must(err)
	var exits []hangar.Event
	for _, e := range slices.Backward(events) {
		if e.Type == hangar.EventExit {
			exits = append(exits, e)
		}
		if at := time.UnixMilli(e.Timestamp); len(exits) == 2 && e.Status == string(hangar.MachineStarting) && at.Before(due.Truncate(time.Millisecond)) {
			t.Errorf("the machine started again at %s, its pause ends at %s", at, due)
		}
	}
	if len(exits) != 4 {
		t.Fatalf("%d exits, want 4: %s", len(exits), r.history(ref))
	}
	if n := exits[2].Request.RestartCount; n != 3 {
		t.Errorf("restart count %d, want 3", n)
	}
}

// TestRestartAfterTheClockWasSetBack: a restart waits no longer than the longest pause.
func TestRestartAfterTheClockWasSetBack(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for ahead, want := range map[time.Duration]time.Duration{
		time.Hour: 10 * time.Second, 4 * time.Second: 4 * time.Second, -time.Second: -time.Second,
	} {
		if got := machines.UntilRestart(now.Add(ahead), now); got != want {
			t.Errorf("due in %s, it waits %s, want %s", ahead, got, want)
		}
	}
}

// TestMachineWhoseImageCameLate: the Machine records its image, so that the image is not removed.
func TestMachineWhoseImageCameLate(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.Config.Image = "offline" })
	r.wait(ref, hangar.MachineFailed)
	r.images.mu.Lock()
	r.images.online = true
	r.images.mu.Unlock()
	r.start(ref)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	if m.ImageRef.Digest != digest || !r.ImagesInUse()[digest] {
		t.Errorf("image %+v, in use %v", m.ImageRef, r.ImagesInUse())
	}
	if got := r.exec(ref, "echo", "hello"); got != "hello" {
		t.Errorf("exec printed %q", got)
	}
}

// TestMachinesAtRestHoldNothing: they have no goroutine and no open file.
func TestMachinesAtRestHoldNothing(t *testing.T) {
	r := newRig(t)
	before := runtime.NumGoroutine()
	const n = 10
	for i := range n {
		env := map[string]string{}
		if i%3 == 2 {
			env[fake.EnvStartError] = "broken"
		}
		ref := r.create(env)
		switch i % 3 {
		case 0:
			r.wait(ref, hangar.MachineStarted)
			r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
			r.wait(ref, hangar.MachineStopped)
		case 1:
			r.wait(ref, hangar.MachineStarted)
			r.suspend(ref)
		default:
			r.wait(ref, hangar.MachineFailed)
		}
	}
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d without machines", runtime.NumGoroutine(), before)
		}
	}
}

// TestRefusedRowBlocksNoOther: a row that can never be published does not block the rows of other
// Machines.
func TestRefusedRowBlocksNoOther(t *testing.T) {
	for _, name := range []string{"poison", "unreadable"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.rows.setAway(true)
			refused := r.create(nil, func(s *hangar.MachineSpec) { s.Name = name })
			other := r.create(nil)
			r.wait(refused, hangar.MachineStarted)
			r.wait(other, hangar.MachineStarted)
			r.rows.setAway(false)
			r.published(other, hangar.MachineStarted)
			r.restart()
			r.must(r.StopMachine(t.Context(), other, hangar.MachineStop{}))
			r.published(other, hangar.MachineStopped)
			r.until(func() bool { n, err := r.machines().PublishSome(t.Context()); return n == 0 && err == nil })
			if got := r.rows.state(refused.ID); got != "" {
				t.Errorf("the row that is refused says %q: nothing was tested", got)
			}
		})
	}
}

// TestFaultOfPublisherEnds: a row that another fault of the platform has kept back is published once that has passed.
func TestFaultOfPublisherEnds(t *testing.T) {
	r := newRig(t)
	r.rows.setAway(true)
	m := r.create(nil, func(s *hangar.MachineSpec) { s.Name = "fault" })
	r.wait(m, hangar.MachineStarted)
	r.rows.faults = 2
	r.rows.setAway(false)
	r.published(m, hangar.MachineStarted)
}

// TestWaitersMissNothing: each waits for the state after the last event that it received, however
// short that state is.
func TestWaitersMissNothing(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@1ms"}, func(s *hangar.MachineSpec) {
		s.SkipLaunch = true
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStopped)
	for range 20 {
		after := r.newest(ref).ID
		var reached [4]chan error
		for i, state := range []hangar.MachineState{hangar.MachineStarting, hangar.MachineStarted, hangar.MachineStopped, hangar.WaitSettled} {
			reached[i] = make(chan error, 1)
			go func() {
				_, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{state}, FromEvent: after, Timeout: patience})
				reached[i] <- err
			}()
		}
		_, err := r.StartMachine(t.Context(), ref)
		r.must(err)
		for _, ch := range reached {
			r.must(<-ch)
		}
		r.wait(ref, hangar.MachineStopped)
	}
}
