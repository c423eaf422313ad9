package machines

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// Bounds of the pause between two checks of the schedules. The upper one is the delay in noticing a
// step of the clock.
const (
	minScheduleNap = 10 * time.Millisecond
	maxScheduleNap = 10 * time.Minute
	scheduleRetry  = 5 * time.Second // after a run that could not be journaled
)

// schedules starts Machines on their schedules.
type schedules struct {
	index   *index
	changed chan struct{} // buffered 1: a Machine has a new schedule
	now     func() time.Time
	log     *slog.Logger
}

// look requests a check of the schedules.
func (s *schedules) look() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// keep starts due Machines until ctx ends.
func (s *schedules) keep(ctx context.Context) {
	for {
		nap, err := s.run()
		if err != nil && ctx.Err() == nil {
			s.log.Error("start machines by their schedules", keyError, err)
			nap = scheduleRetry
		}
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-s.changed:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// run starts due Machines, and returns the time until the next is due.
func (s *schedules) run() (time.Duration, error) {
	nap := maxScheduleNap
	var errs []error
	for _, m := range s.index.scheduled() {
		next, err := m.runSchedule()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !next.IsZero() {
			nap = min(nap, next.Sub(s.now()))
		}
	}
	return max(nap, minScheduleNap), errors.Join(errs...)
}

// runSchedule starts the Machine if a period has begun for which it was not started yet, and
// returns when to check again. A past period is missed: it is logged, and not made up for. So is
// one that begins while the Machine still runs. A Machine in a transition is checked again soon.
//
// One commit records both that the period is done and that the Machine starts, so a crash cannot
// cause two runs in a period.
func (m *machine) runSchedule() (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	state := rec.Machine.State
	schedule, created := rec.Machine.Config.Schedule, rec.Machine.CreatedAt
	if schedule == "" || state == hangar.MachineDestroying || state == hangar.MachineDestroyed {
		return time.Time{}, nil
	}
	now := m.store.o.Now()
	done, current := schedule.Period(created, rec.Scheduled), schedule.Period(created, now)
	next := schedule.Start(created, max(done, current)+1)
	switch {
	case current <= done:
		return next, nil
	case !state.Settled():
		return now.Add(scheduleRetry), nil
	}
	starts := state == hangar.MachineStopped || state == hangar.MachineFailed
	run := m.scheduledRun(rec, done, current, starts)
	err := m.commitRun(run, starts)
	if hangar.NoRoom(err) {
		if !m.crowded {
			m.note("warn", "The %s run of %s waits for room on the server: %s", schedule, run.Due.Format(time.RFC3339), hangar.MessageOf(err))
		}
		m.crowded = true
		return now.Add(scheduleRetry), nil
	}
	if err != nil {
		return time.Time{}, err
	}
	m.crowded = false
	if run.Missed > 0 {
		m.note("warn", "Missed %d scheduled runs since %s: %s", run.Missed, run.Since.Format(time.RFC3339), run.Reason)
	}
	if starts {
		m.note("info", "Starting for the %s run of %s", schedule, run.Due.Format(time.RFC3339))
	}
	return next, nil
}

// scheduledRun describes the run of the current period, with the missed ones since the period done. If the Machine
// does not start, the current period is missed, too. m.mu is held.
func (m *machine) scheduledRun(rec *journal.Record, done, current int, starts bool) *hangar.ScheduledRun {
	schedule, created := rec.Machine.Config.Schedule, rec.Machine.CreatedAt
	run := &hangar.ScheduledRun{Due: schedule.Start(created, current), Missed: current - done}
	switch {
	case !starts:
		run.Reason = "the machine is still " + string(rec.Machine.State)
	case run.Missed > 1 && m.crowded:
		run.Missed, run.Reason = run.Missed-1, "the server had no room for the machine"
	case run.Missed > 1:
		run.Missed, run.Reason = run.Missed-1, "the server was down"
	default:
		run.Missed = 0
	}
	if run.Missed > 0 {
		run.Since = schedule.Start(created, done+1)
	}
	return run
}

// commitRun records that the period of a run is done and, if the Machine starts, its start, in one commit. m.mu is
// held.
func (m *machine) commitRun(run *hangar.ScheduledRun, starts bool) error {
	e := hangar.Event{Type: hangar.EventSchedule, Source: hangar.SourceAgent, Request: &hangar.EventRequest{Schedule: run}}
	if !starts {
		return m.annotate(func(next *journal.Record) []hangar.Event {
			next.Scheduled = run.Due
			return []hangar.Event{e}
		})
	}
	e.Type = hangar.EventStart
	_, err := m.ask(hangar.VerbStart, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarting
		next.Scheduled, next.Restarts = run.Due, nil
		return []hangar.Event{e}
	})
	return err
}
