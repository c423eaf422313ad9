package machines_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

// exec runs a command of the fake driver and returns its output.
func (r *rig) exec(ref hangar.MachineRef, args ...string) string {
	r.Helper()
	var out strings.Builder
	_, err := r.ExecMachine(r.Context(), ref, hangar.ExecRequest{Command: args}, hangar.ExecStreams{Stdout: &out})
	r.must(err)
	return strings.TrimSpace(out.String())
}

// newest returns the newest event.
func (r *rig) newest(ref hangar.MachineRef) hangar.Event {
	r.Helper()
	events, err := r.MachineEvents(r.Context(), ref, 1)
	r.must(err)
	return events[0]
}

func (r *rig) state(ref hangar.MachineRef) hangar.MachineState {
	r.Helper()
	m, err := r.Machine(r.Context(), ref)
	r.must(err)
	return m.State
}

func (r *rig) suspend(ref hangar.MachineRef) {
	r.Helper()
	r.must(r.SuspendMachine(r.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
}

func (r *rig) isRunning(ref hangar.MachineRef) bool {
	r.Helper()
	ids, err := r.world.Running()
	r.must(err)
	return slices.Contains(ids, ref.ID)
}

// TestCrashAroundEffects kills the agent right before and right after each effect of the driver,
// before its result could be recorded.
func TestCrashAroundEffects(t *testing.T) {
	type outcome struct {
		state hangar.MachineState
		count string // what the Machine counted in memory; "": not checked
		cold  bool   // its newest event says that memory was lost
	}
	for op, want := range map[fake.Op]outcome{
		fake.OpStart:       {hangar.MachineStarted, "0", false},
		fake.OpStartDone:   {hangar.MachineStarted, "0", false},
		fake.OpSuspend:     {hangar.MachineSuspended, "", false},
		fake.OpSuspendDone: {hangar.MachineSuspended, "", false},
		fake.OpResume:      {hangar.MachineStarted, "0", true},
		fake.OpResumeDone:  {hangar.MachineStarted, "2", false},
		fake.OpStop:        {hangar.MachineStopped, "", false},
		fake.OpDestroy:     {hangar.MachineDestroyed, "", false},
		fake.OpDestroyDone: {hangar.MachineDestroyed, "", false},
	} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t)
			ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
			r.wait(ref, hangar.MachineStopped)
			ask := func(do func() error) {
				t.Helper()
				reached := r.hangAt(op)
				r.must(do())
				<-reached
			}
			start := func() error {
				_, err := r.StartMachine(t.Context(), ref)
				return err
			}
			suspend := func() error { return r.SuspendMachine(t.Context(), ref) }
			if op != fake.OpStart && op != fake.OpStartDone {
				r.start(ref)
				r.exec(ref, "incr")
				r.exec(ref, "incr")
			}
			switch op {
			case fake.OpSuspend, fake.OpSuspendDone:
				ask(suspend)
			case fake.OpResume, fake.OpResumeDone:
				r.suspend(ref)
				ask(start)
			case fake.OpStop:
				ask(func() error { return r.StopMachine(t.Context(), ref, hangar.MachineStop{}) })
			case fake.OpDestroy, fake.OpDestroyDone:
				ask(func() error { return r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}) })
			default:
				ask(start)
			}
			var boots []string
			if r.isRunning(ref) && op == fake.OpStartDone {
				boots = append(boots, r.world.Boot(ref.ID))
			}
			r.crash()
			r.faults.Store(nil)
			r.open()
			r.wait(ref, hangar.WaitSettled)
			if got := r.state(ref); got != want.state {
				t.Fatalf("machine is %s, want %s: %s", got, want.state, r.history(ref))
			}
			if want.count != "" {
				if got := r.exec(ref, "memory"); got != want.count {
					t.Errorf("the machine counted to %s, want %s: %s", got, want.count, r.history(ref))
				}
			}
			if e := r.newest(ref); want.cold != (e.Request != nil && e.Request.ColdBoot != "") {
				t.Errorf("newest event = %+v %+v, want cold boot %t", e, e.Request, want.cold)
			}
			if len(boots) > 0 && r.exec(ref, "boot") != boots[0] {
				t.Error("the machine that ran was not taken over")
			}
			if _, err := os.Stat(filepath.Join(r.dir, "machines", string(ref.ID), "snapshot")); (err == nil) != (want.state == hangar.MachineSuspended) {
				t.Errorf("snapshot of a %s machine: %v", want.state, err)
			}
			if want.state == hangar.MachineSuspended {
				r.start(ref)
				if got := r.exec(ref, "memory"); got != "2" {
					t.Errorf("the machine counted to %s after the resume, want 2", got)
				}
			}
		})
	}
}

// TestColdBootIsToldAfterACrash: the reason of a cold boot survives the daemon that found it.
func TestColdBootIsToldAfterACrash(t *testing.T) {
	for _, op := range []fake.Op{fake.OpStart, fake.OpStartDone} {
		r := newRig(t)
		ref := r.create(map[string]string{fake.EnvResumeError: "snapshot unusable"})
		r.wait(ref, hangar.MachineStarted)
		r.suspend(ref)
		reached := r.hangAt(op)
		_, err := r.StartMachine(t.Context(), ref)
		r.must(err)
		<-reached
		r.crash()
		r.faults.Store(nil)
		r.open()
		r.wait(ref, hangar.MachineStarted)
		if e := r.newest(ref); e.Request == nil || !strings.Contains(e.Request.ColdBoot, "unusable") {
			t.Errorf("%s: newest event = %+v, want the reason of the cold boot", op, e)
		}
	}
}

// TestEndOfTheDaemonFinishesAResume: a step that cannot be repeated is not interrupted.
func TestEndOfTheDaemonFinishesAResume(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.suspend(ref)
	reached := make(chan struct{})
	hit := sync.OnceFunc(func() { close(reached) })
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op != fake.OpResume {
			return 0, nil
		}
		hit()
		return 200 * time.Millisecond, nil
	})
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	<-reached
	r.restart()
	r.wait(ref, hangar.MachineStarted)
	if got := r.exec(ref, "memory"); got != "1" {
		t.Errorf("the machine counted to %s, want 1: %+v", got, r.newest(ref).Request)
	}
}

// TestResumeThatCannotBeRecorded: a Machine that runs from its memory keeps it while the disk
// prevents the daemon from recording that.
func TestResumeThatCannotBeRecorded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a directory that cannot be removed takes a mount, which takes root")
	}
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.suspend(ref)
	used := filepath.Join(r.dir, "machines", string(ref.ID), "used")
	unmount := sync.OnceValue(func() error { return unix.Unmount(used, unix.MNT_DETACH) }) // the store may be looking into it
	again := make(chan struct{})
	hit := sync.OnceFunc(func() { close(again) })
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		switch op {
		case fake.OpResume: // no earlier, or the store may remove the directory meanwhile
			if err := errors.Join(os.Mkdir(used, 0o700), unix.Mount("tmpfs", used, "tmpfs", 0, "")); err != nil {
				return 0, err
			}
			t.Cleanup(func() { r.must(unmount()) })
		case fake.OpAdopt:
			hit()
		}
		return 0, nil
	})
	_, err := r.StartMachine(t.Context(), ref)
	r.must(err)
	select {
	case <-again:
	case <-time.After(patience):
		t.Error("the sandbox that runs is not taken over")
	}
	r.must(unmount())
	r.wait(ref, hangar.MachineStarted)
	if got := r.exec(ref, "memory"); got != "1" {
		t.Errorf("the machine counted to %s, want 1: %+v", got, r.newest(ref).Request)
	}
}

// TestStartThatHangs: a start that the daemon left, and that is not over in time, is cut off and repeated.
func TestStartThatHangs(t *testing.T) {
	r := newRig(t)
	reached := r.hangAt(fake.OpStartDone)
	ref := r.create(nil)
	<-reached
	r.crash()
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpAdopt {
			return time.Hour, nil
		}
		return 0, nil
	})
	r.pace = func(l *machines.Limits) { l.Boot = 300 * time.Millisecond }
	r.open()
	r.wait(ref, hangar.MachineStarted)
}

// TestEndOfTheDaemonIsBounded: it waits for effects, but not indefinitely.
func TestEndOfTheDaemonIsBounded(t *testing.T) {
	r := newRig(t)
	r.close()
	r.pace = func(l *machines.Limits) { l.Close = 50 * time.Millisecond }
	r.open()
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStart {
			return time.Hour, nil
		}
		return 0, nil
	})
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarting)
	r.close()
	r.faults.Store(nil)
	r.open()
	r.wait(ref, hangar.MachineStarted)
}

// TestLossOfPower: every sandbox is gone, and the daemon recovers what it can.
func TestLossOfPower(t *testing.T) {
	always := func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	}
	never := func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo} }
	r := newRig(t)
	restarted, stopped, suspended := r.create(nil, always), r.create(nil, never), r.create(nil)
	stopping := r.create(map[string]string{fake.EnvStop: "ignore"})
	ephemeral := r.create(nil, func(s *hangar.MachineSpec) { s.Config.AutoDestroy = true })
	for _, ref := range []hangar.MachineRef{restarted, stopped, suspended, stopping, ephemeral} {
		r.wait(ref, hangar.MachineStarted)
	}
	r.exec(suspended, "incr")
	r.suspend(suspended)
	r.must(r.StopMachine(t.Context(), stopping, hangar.MachineStop{Timeout: time.Hour}))
	r.crash()
	r.must(fake.NewWorld(filepath.Join(r.dir, "world")).Vanish())
	r.open()
	for ref, want := range map[hangar.MachineRef]hangar.MachineState{
		restarted: hangar.MachineStarted, stopped: hangar.MachineStopped, stopping: hangar.MachineStopped,
		suspended: hangar.MachineSuspended, ephemeral: hangar.MachineDestroyed,
	} {
		if ref == restarted { // it was started before as well
			r.until(func() bool { return strings.Contains(r.history(ref), "exit/restarting") })
		}
		r.wait(ref, want)
		if n := strings.Count(r.history(ref), "exit/"); n != 1 && want != hangar.MachineSuspended {
			t.Errorf("%d exits in %s, want 1", n, r.history(ref))
		}
	}
	r.start(suspended)
	if got := r.exec(suspended, "memory"); got != "1" {
		t.Errorf("the suspended machine counted to %s, want 1", got)
	}
}

func TestAutoDestroyOfAnExitWhileTheDaemonWasDown(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "4@100ms"}, func(s *hangar.MachineSpec) { s.Config.AutoDestroy = true })
	r.wait(ref, hangar.MachineStarted)
	r.crash()
	time.Sleep(150 * time.Millisecond) // the exit is planned by the wall clock
	r.open()
	r.wait(ref, hangar.MachineDestroyed)
	if got := r.history(ref); !strings.HasSuffix(got, "start/started exit/destroying destroy/destroyed") {
		t.Errorf("history: %s", got)
	}
}

// TestFaultWhileTakingBack: a Machine that cannot be adopted at first is not given up: it runs.
func TestFaultWhileTakingBack(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.exec(ref, "incr")
	r.crash()
	var mu sync.Mutex
	faults := 2
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		if op == fake.OpRecover && faults > 0 {
			faults--
			return 0, fmt.Errorf("too many open files")
		}
		return 0, nil
	})
	r.open()
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	if got := r.exec(ref, "memory"); got != "1" {
		t.Errorf("the machine counted to %s, want 1: %s", got, r.history(ref))
	}
}

// TestFaultWhileTakingOver: a resumed Machine that was never recorded is the only one that has its
// memory. It is not ended because it cannot be looked at, also not by a daemon that ends meanwhile.
func TestFaultWhileTakingOver(t *testing.T) {
	for name, adopt := range map[string]func(failed func()) (time.Duration, error){
		"fails": func(failed func()) (time.Duration, error) { failed(); return 0, errFault },
		"hangs": func(failed func()) (time.Duration, error) { failed(); return time.Hour, nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(nil)
			r.wait(ref, hangar.MachineStarted)
			r.exec(ref, "incr")
			r.suspend(ref)
			reached := r.hangAt(fake.OpResumeDone)
			_, err := r.StartMachine(t.Context(), ref)
			r.must(err)
			<-reached
			r.crash()
			r.pace = func(l *machines.Limits) { l.Close = 50 * time.Millisecond }
			tried := make(chan struct{})
			hit := sync.OnceFunc(func() { close(tried) })
			r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
				if op == fake.OpAdopt {
					return adopt(hit)
				}
				return 0, nil
			})
			r.open()
			<-tried
			if name == "hangs" {
				r.close()
			}
			r.faults.Store(nil)
			if name == "hangs" {
				r.open()
			}
			r.wait(ref, hangar.MachineStarted)
			if got := r.exec(ref, "memory"); got != "1" {
				t.Errorf("the machine counted to %s, want 1: %s", got, r.history(ref))
			}
		})
	}
}

// TestLeftoverThatCannotBeSweptIsNoReasonNotToServe: the agent serves despite it.
func TestLeftoverThatCannotBeSweptIsNoReasonNotToServe(t *testing.T) {
	r := newRig(t)
	kept, lost := r.create(nil), r.create(nil)
	r.wait(kept, hangar.MachineStarted)
	r.wait(lost, hangar.MachineStarted)
	r.crash()
	r.editJournal(func(machines *bolt.Bucket) error { return machines.Delete([]byte(lost.ID)) })
	r.inject(func(op fake.Op, id hangar.MachineID) (time.Duration, error) {
		if op == fake.OpDestroy && id == lost.ID {
			return 0, fmt.Errorf("device or resource busy")
		}
		return 0, nil
	})
	r.open()
	if got := r.state(kept); got != hangar.MachineStarted {
		t.Errorf("machine is %s, want started", got)
	}
	if !r.isRunning(lost) {
		t.Error("the leftover is gone: nothing was tested")
	}
	r.faults.Store(nil)
	r.restart()
	if r.isRunning(lost) {
		t.Error("the leftover was not swept by the next start")
	}
}

// TestUnreadableRecordKeepsWhatItHas: a Machine with a damaged record keeps its sandbox and its
// row.
func TestUnreadableRecordKeepsWhatItHas(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.published(ref, hangar.MachineStarted)
	r.crash()
	r.editJournal(func(machines *bolt.Bucket) error { return machines.Put([]byte(ref.ID), []byte("{")) })
	r.open()
	other := r.create(nil) // its row shows that publishing has begun
	r.published(other, hangar.MachineStarted)
	if !r.isRunning(ref) || r.rows.state(ref.ID) != hangar.MachineStarted {
		t.Errorf("runs %t, row %q", r.isRunning(ref), r.rows.state(ref.ID))
	}
}

// TestUnreadableRecordHoldsUpNoOther: other Machines' rows do not queue behind a damaged record.
func TestUnreadableRecordHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.rows.setAway(true)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.crash()
	r.editJournal(func(machines *bolt.Bucket) error { return machines.Put([]byte(ref.ID), []byte("{")) })
	r.open()
	r.rows.setAway(false)
	r.published(r.create(nil), hangar.MachineStarted)
	r.until(func() bool { n, err := r.machines().PublishSome(t.Context()); return n == 0 && err == nil })
}

// editJournal changes records without the agent, which must be closed.
func (r *rig) editJournal(edit func(machines *bolt.Bucket) error) {
	r.Helper()
	db, err := bolt.Open(filepath.Join(r.dir, "journal.db"), 0o600, nil)
	r.must(err)
	defer db.Close()
	r.must(db.Update(func(tx *bolt.Tx) error { return edit(tx.Bucket([]byte("machines"))) }))
}

// published waits for a row.
func (r *rig) published(ref hangar.MachineRef, want hangar.MachineState) {
	r.Helper()
	for deadline := time.Now().Add(patience); r.rows.state(ref.ID) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("the row says %q, want %s", r.rows.state(ref.ID), want)
		}
	}
}

// TestVerbsWhileTheDaemonEnds: the next daemon carries out acknowledged verbs; for others the error
// is that the server is shutting down.
func TestVerbsWhileTheDaemonEnds(t *testing.T) {
	for range 20 {
		r := newRig(t)
		ref := r.create(nil)
		r.wait(ref, hangar.MachineStarted)
		var group sync.WaitGroup
		agent := r.Agent
		var last hangar.MachineState
		ended := make(chan struct{})
		group.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				err := agent.StopMachine(t.Context(), ref, hangar.MachineStop{})
				if err == nil {
					last = hangar.MachineStopped
					_, err = agent.StartMachine(t.Context(), ref)
				}
				switch hangar.CodeOf(err) {
				case "":
					last = hangar.MachineStarted
				case hangar.CodeFailedPrecondition: // it is stopping
				case hangar.CodeUnavailable:
					return
				default:
					t.Errorf("a verb while the daemon ends: %v", err)
					return
				}
			}
		})
		time.Sleep(time.Millisecond)
		r.close()
		close(ended)
		group.Wait()
		r.open()
		r.wait(ref, hangar.WaitSettled)
		if got := r.state(ref); got != last && last != "" {
			t.Errorf("machine is %s, acknowledged was %s: %s", got, last, r.history(ref))
		}
		r.close()
	}
}
