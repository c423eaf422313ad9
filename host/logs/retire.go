package logs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// The logs of an App's destroyed Machines are in a directory of their own, grouped by the time at
// which they were retired. The name of each contains the time of its newest record. Nothing about
// them is in memory, and a start reads the newest groups only, because a busy App leaves 100,000 logs
// a day.
const (
	retiredDir  = ".retired"
	retireSpan  = int64(10 * time.Minute) // the time of one group
	retiredMark = "."                     // between the id of a Machine and the time; never part of an id
)

// retiredGroup is the directory of logs that were retired within one retireSpan.
type retiredGroup struct {
	dir string
	end int64 // later than every record in it, unless the clock was set back
}

// retiredLog is the log of a destroyed Machine.
type retiredLog struct {
	dir  string
	id   hangar.MachineID
	last int64 // time of its newest record
}

func (s *Store) retiredRoot(a *appLog) string { return filepath.Join(s.dir, string(a.id), retiredDir) }

// retiredGroups returns the retired groups below a root, newest first.
func retiredGroups(root string) ([]retiredGroup, error) {
	entries, err := readDir(root)
	var groups []retiredGroup
	for _, e := range entries {
		if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil {
			groups = append(groups, retiredGroup{dir: filepath.Join(root, e.Name()), end: (n + 1) * retireSpan})
		}
	}
	slices.SortFunc(groups, func(x, y retiredGroup) int { return cmp.Compare(y.end, x.end) })
	return groups, err
}

// readDir is os.ReadDir for a directory that may have been removed.
func readDir(dir string) ([]os.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// retiredLogs returns the logs below a root that have a record after a time, newest first, of all
// Machines or of one. If there are more than limit, it returns the newest of them.
func retiredLogs(root string, after int64, only hangar.MachineID, limit int) ([]retiredLog, error) {
	groups, err := retiredGroups(root)
	if err != nil {
		return nil, err
	}
	var found []retiredLog
	for _, g := range groups {
		if g.end <= after || len(found) >= limit && found[limit-1].last >= g.end {
			break // this group and older ones are not needed
		}
		entries, err := readDir(g.dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			id, newest, _ := strings.Cut(e.Name(), retiredMark)
			last, err := strconv.ParseInt(newest, 10, 64)
			if err == nil && last > after && (only == "" || only == hangar.MachineID(id)) {
				found = append(found, retiredLog{dir: filepath.Join(g.dir, e.Name()), id: hangar.MachineID(id), last: last})
			}
		}
		slices.SortFunc(found, func(x, y retiredLog) int { return cmp.Compare(y.last, x.last) })
	}
	return found[:min(limit, len(found))], nil
}

// regroup moves a log that an earlier version retired as ID.TIME, beside the others, to a group. The
// caller holds s.mu.
func (s *Store) regroup(a *appLog, name string) error {
	id, newest, _ := strings.Cut(name, retiredMark)
	last, err := strconv.ParseInt(newest, 10, 64)
	if err != nil {
		return fmt.Errorf("no log is named %q", name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retired, a.lastRetired, a.last = true, max(a.lastRetired, last), max(a.last, last)
	return s.moveToGroup(a, filepath.Join(s.dir, string(a.id), name), hangar.MachineID(id), last)
}

// loadRetired determines whether an App has logs of destroyed Machines. The caller holds s.mu.
func (s *Store) loadRetired(a *appLog) error {
	newest, err := retiredLogs(s.retiredRoot(a), 0, "", 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retired = true
	if len(newest) > 0 {
		a.lastRetired = max(a.lastRetired, newest[0].last)
		a.last = max(a.last, a.lastRetired)
	}
	return err
}

// Retire releases a Machine's log and moves it to the retired ones: it can still be read, and costs
// almost nothing until Forget removes it. It may be repeated, and does nothing for a Machine without
// a log.
func (s *Store) Retire(id hangar.MachineID) error {
	if err := s.Release(id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[id]
	if !ok {
		return nil
	}
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if err := s.putAway(m); err != nil {
		return fmt.Errorf("retire the log of machine %s: %w", id, err)
	}
	s.forgetLocked(m)
	return nil
}

// putAway moves the directory of a log, if it exists, to the current group. If the disk is too full
// for that, it removes the log, because destroying a Machine must free space. The caller holds s.mu
// and the App's mu.
func (s *Store) putAway(m *machineLog) error {
	if _, err := os.Lstat(m.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m.app.retired = true
	m.app.lastRetired = max(m.app.lastRetired, m.last)
	err := s.moveToGroup(m.app, m.dir, m.id, m.last)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		s.log.Error("log of a destroyed machine is lost", slog.String("machine", string(m.id)), slog.Any("error", err))
		return os.RemoveAll(m.dir)
	}
	return err
}

// moveToGroup moves the directory of a Machine's log to the current group.
func (s *Store) moveToGroup(a *appLog, dir string, id hangar.MachineID, last int64) error {
	group := filepath.Join(s.retiredRoot(a), strconv.FormatInt(s.now().UnixNano()/retireSpan, 10))
	if err := os.MkdirAll(group, 0o700); err != nil {
		return err
	}
	return os.Rename(dir, filepath.Join(group, string(id)+retiredMark+strconv.FormatInt(last, 10)))
}

// Forget removes the logs that were retired before a time. It removes whole groups, so some logs stay
// up to ten minutes longer. It may be repeated.
func (s *Store) Forget(before time.Time) error {
	s.mu.Lock()
	apps := slices.Collect(maps.Values(s.apps))
	s.mu.Unlock()
	var errs []error
	for _, a := range apps {
		a.mu.Lock()
		retired := a.retired
		a.mu.Unlock()
		if retired {
			errs = append(errs, s.forgetOf(a, before.UnixNano()))
		}
	}
	return errors.Join(errs...)
}

// forgetOf is Forget for one App. Its logs are written and read meanwhile.
func (s *Store) forgetOf(a *appLog, before int64) error {
	groups, err := retiredGroups(s.retiredRoot(a))
	errs := []error{err}
	for _, g := range groups {
		if g.end <= before {
			errs = append(errs, os.RemoveAll(g.dir))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := os.Remove(s.retiredRoot(a)); err == nil || errors.Is(err, fs.ErrNotExist) { // fails while there is a group
		a.retired = false
		_ = os.Remove(filepath.Join(s.dir, string(a.id))) // fails as intended while there are other logs
		s.dropAppLocked(a)
	}
	return errors.Join(errs...)
}

// retiredViews returns the logs of destroyed Machines that may have lines of a page: with a token,
// all with a record after the time; without one, at least as many of the newest as the page has
// lines.
func (a *appLog) retiredViews(s *Store, q hangar.LogQuery, after int64, limit int) ([]machineView, error) {
	a.mu.Lock()
	none := !a.retired || a.lastRetired <= after
	a.mu.Unlock()
	if none {
		return nil, nil
	}
	if q.Token != "" {
		limit = math.MaxInt // any of them may have the oldest lines of the page
	}
	logs, err := retiredLogs(s.retiredRoot(a), after, q.Instance, limit)
	if err != nil {
		return nil, err
	}
	var views []machineView
	for _, l := range logs {
		entries, err := readDir(l.dir)
		if err != nil {
			return nil, err
		}
		v := machineView{machineLog: &machineLog{store: s, app: a, id: l.id, dir: l.dir}, last: l.last}
		for _, e := range entries { // sorted by name, hence by time
			if first, ok := parseFileName(e.Name()); ok {
				v.files = append(v.files, first)
			}
		}
		views = append(views, v)
	}
	return views, nil
}
