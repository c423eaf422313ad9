package machines_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
)

func scheduled(s hangar.Schedule) func(*hangar.MachineSpec) {
	return func(spec *hangar.MachineSpec) { spec.Config.Schedule = s }
}

func skipLaunch(spec *hangar.MachineSpec) { spec.SkipLaunch = true }

// countBoots counts the boots of every Machine from now on.
func (r *rig) countBoots() *atomic.Int64 {
	var n atomic.Int64
	r.inject(func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if op == fake.OpStartDone {
			n.Add(1)
		}
		return 0, nil
	})
	return &n
}

// missed returns the missed runs in the events of a Machine.
func (r *rig) missed(ref hangar.MachineRef) []hangar.ScheduledRun {
	r.Helper()
	events, err := r.MachineEvents(r.Context(), ref, 50)
	r.must(err)
	var list []hangar.ScheduledRun
	for _, e := range slices.Backward(events) {
		if e.Request != nil && e.Request.Schedule != nil && e.Request.Schedule.Missed > 0 {
			list = append(list, *e.Request.Schedule)
		}
	}
	return list
}

// job is a Machine that ends at once.
func job() map[string]string { return map[string]string{fake.EnvExit: "0"} }

// TestAYearOfSchedules lets the clock run for a year, from the first of January 2000.
func TestAYearOfSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var mu sync.Mutex
		boots := make(map[hangar.MachineID]int)
		r.inject(func(op fake.Op, id hangar.MachineID) (time.Duration, error) {
			if op == fake.OpStartDone {
				mu.Lock()
				defer mu.Unlock()
				boots[id]++
			}
			return 0, nil
		})
		days, want := 365, map[hangar.Schedule]int{hangar.Daily: 366, hangar.Weekly: 53, hangar.Monthly: 12}
		if testing.Short() { // to the end of a February of 29 days
			days, want = 60, map[hangar.Schedule]int{hangar.Daily: 61, hangar.Weekly: 9, hangar.Monthly: 3}
		}
		refs := make(map[hangar.Schedule]hangar.MachineRef)
		for schedule := range want {
			refs[schedule] = r.create(job(), scheduled(schedule))
		}
		time.Sleep(time.Duration(days)*24*time.Hour + time.Minute)
		synctest.Wait()
		for schedule, ref := range refs {
			if got := boots[ref.ID]; got != want[schedule] {
				t.Errorf("%s: %d runs in %d days, want %d", schedule, got, days, want[schedule])
			}
			if state, missed := r.state(ref), r.missed(ref); state != hangar.MachineStopped || len(missed) > 0 {
				t.Errorf("%s: machine is %s, missed %v: %s", schedule, state, missed, r.history(ref))
			}
		}
	})
}

// TestScheduleCountsFromCreation creates a Machine without a launch, and starts it manually:
// neither moves the periods.
func TestScheduleCountsFromCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		boots := r.countBoots()
		ref := r.create(job(), scheduled(hangar.Hourly), skipLaunch)
		r.wait(ref, hangar.MachineStopped)
		for _, step := range []struct {
			after time.Duration
			by    string
			want  int64
		}{
			{59 * time.Minute, "", 0},
			{2 * time.Minute, "", 1},
			{30 * time.Minute, "hand", 2},
			{28 * time.Minute, "", 2},
			{2 * time.Minute, "", 3},
		} {
			time.Sleep(step.after)
			if step.by == "hand" {
				_, err := r.StartMachine(t.Context(), ref)
				r.must(err)
			}
			synctest.Wait()
			if got := boots.Load(); got != step.want {
				t.Fatalf("%d runs, want %d: %s", got, step.want, r.history(ref))
			}
		}
	})
}

// TestScheduleMissesWhatItCannotRun keeps the Machine running beyond its time, and then the daemon
// down.
func TestScheduleMissesWhatItCannotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		boots := r.countBoots()
		ref := r.create(job(), scheduled(hangar.Hourly), skipLaunch)
		r.wait(ref, hangar.MachineStopped)
		created := time.Now()
		r.close()
		time.Sleep(5*time.Hour + 20*time.Minute)
		r.open()
		synctest.Wait()
		missed := r.missed(ref)
		if boots.Load() != 1 || len(missed) != 1 || missed[0].Missed != 4 || missed[0].Reason != "the server was down" ||
			!missed[0].Since.Equal(created.Add(time.Hour)) || !missed[0].Due.Equal(created.Add(5*time.Hour)) {
			t.Fatalf("%d runs, missed %+v: %s", boots.Load(), missed, r.history(ref))
		}
		time.Sleep(30 * time.Minute) // the sixth hour has not begun
		r.restart()
		synctest.Wait()
		if boots.Load() != 1 {
			t.Fatalf("%d runs in the fifth hour: %s", boots.Load(), r.history(ref))
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if boots.Load() != 2 {
			t.Fatalf("%d runs in the sixth hour: %s", boots.Load(), r.history(ref))
		}
	})
}

// TestScheduleLeavesARunningMachineAlone also lets the Machine end: the period remains missed.
func TestScheduleLeavesARunningMachineAlone(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, scheduled(hangar.Hourly))
	r.wait(ref, hangar.MachineStarted)
	boot := r.world.Boot(ref.ID)
	r.ahead.Add(int64(time.Hour))
	r.restart()
	reached, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}})
	r.must(err)
	r.until(func() bool { return len(r.missed(ref)) == 1 })
	if missed := r.missed(ref)[0]; missed.Missed != 1 || missed.Reason != "the machine is still started" {
		t.Errorf("missed %+v", missed)
	}
	if e := r.newest(ref); e.Type != hangar.EventSchedule || e.Status != "started" || reached.State != hangar.MachineStarted || r.world.Boot(ref.ID) != boot {
		t.Errorf("newest event is %+v: %s", e, r.history(ref))
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.must(machines.RunSchedules(t.Context(), r.machines()))
	if got := r.state(ref); got != hangar.MachineStopped {
		t.Errorf("machine is %s after its period was missed: %s", got, r.history(ref))
	}
}

// TestScheduledRunsOnceAcrossACrash kills the daemon before and after the sandbox of a scheduled
// start exists, and before that is recorded. A job may have ended by the time the next daemon
// checks.
func TestScheduledRunsOnceAcrossACrash(t *testing.T) {
	for name, test := range map[string]struct {
		op    fake.Op
		env   map[string]string
		boots int64 // after the crash
	}{
		"before":            {fake.OpStart, nil, 1},
		"after":             {fake.OpStartDone, nil, 0},
		"before, short job": {fake.OpStart, job(), 1},
		"after, short job":  {fake.OpStartDone, job(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(test.env, scheduled(hangar.Daily), skipLaunch)
			r.wait(ref, hangar.MachineStopped)
			r.ahead.Add(int64(25 * time.Hour))
			reached := r.hangAt(test.op)
			r.restart()
			<-reached
			r.crash()
			boots := r.countBoots()
			r.open()
			if test.env == nil {
				r.wait(ref, hangar.MachineStarted)
				r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
			}
			r.wait(ref, hangar.MachineStopped)
			r.must(machines.RunSchedules(t.Context(), r.machines()))
			if state := r.state(ref); state != hangar.MachineStopped || boots.Load() != test.boots {
				t.Errorf("machine is %s after %d boots, want %d: %s", state, boots.Load(), test.boots, r.history(ref))
			}
			told := 0
			events, err := r.MachineEvents(t.Context(), ref, 50)
			r.must(err)
			for _, e := range events {
				if e.Request != nil && e.Request.Schedule != nil {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%d events tell of the run: %s", told, r.history(ref))
			}
		})
	}
}

func TestNewScheduleBeginsWhenItIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		boots := r.countBoots()
		ref := r.create(job(), skipLaunch)
		r.wait(ref, hangar.MachineStopped)
		time.Sleep(100*time.Hour + 10*time.Minute)
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		config := m.Config
		config.Schedule = hangar.Hourly
		_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
		r.must(err)
		r.wait(ref, hangar.MachineStopped)
		time.Sleep(49 * time.Minute)
		synctest.Wait()
		if boots.Load() != 0 {
			t.Fatalf("%d runs before the first period: %s", boots.Load(), r.history(ref))
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if missed := r.missed(ref); boots.Load() != 1 || len(missed) > 0 {
			t.Fatalf("%d runs, missed %v: %s", boots.Load(), missed, r.history(ref))
		}
	})
}

// TestStandbysAreStartedByHandOnly creates, updates and starts one.
func TestStandbysAreStartedByHandOnly(t *testing.T) {
	r := newRig(t)
	standby := func(s *hangar.MachineSpec) { s.Config.Standbys = []hangar.MachineID{hangar.NewMachineID()} }
	ref := r.create(nil, standby)
	r.wait(ref, hangar.MachineStopped)
	if got := r.history(ref); got != "launch/created launch/stopped" {
		t.Errorf("history is %s", got)
	}
	r.start(ref)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: m.Config})
	r.must(err)
	r.wait(ref, hangar.MachineStopped)
	config := m.Config
	config.Standbys = nil
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
}
