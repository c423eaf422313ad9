package logs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// The log of a Machine that is destroyed has the time of its newest record in the name of its
// directory, after this: so that Open need not look into it, however many there are.
const retiredMark = "."

func retiredName(id hangar.MachineID, last int64) string {
	return string(id) + retiredMark + strconv.FormatInt(last, 10)
}

// parseRetired is the inverse of retiredName. ok is false for the log of a Machine that is not
// destroyed.
func parseRetired(name string) (id hangar.MachineID, last int64, ok bool) {
	before, after, ok := strings.Cut(name, retiredMark)
	if !ok {
		return "", 0, false
	}
	last, err := strconv.ParseInt(after, 10, 64)
	return hangar.MachineID(strings.Clone(before)), last, err == nil // not a part of the name, which is longer
}

func (a *appLog) retiredDir(dir string, id hangar.MachineID) string {
	return filepath.Join(dir, string(a.id), retiredName(id, a.retired[id]))
}

// Retire does what Release does, and puts the log away for good: it can be read, and costs
// next to nothing until it is removed. It may be repeated, and does nothing for a Machine that
// has no log.
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
	a := m.app
	a.mu.Lock()
	defer a.mu.Unlock()
	switch err := os.Rename(m.dir, filepath.Join(s.dir, string(a.id), retiredName(id, m.last))); {
	case err == nil:
		a.retired[id] = m.last
	case !errors.Is(err, fs.ErrNotExist): // nothing was ever written
		return fmt.Errorf("retire the log of machine %s: %w", id, err)
	}
	delete(s.machines, id)
	delete(a.machines, id)
	s.dropAppLocked(a)
	return nil
}

// revive undoes what Retire did. The caller holds s.mu.
func (s *Store) revive(a *appLog, id hangar.MachineID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.retired[id]; !ok {
		return nil
	}
	if err := os.Rename(a.retiredDir(s.dir, id), filepath.Join(s.dir, string(a.id), string(id))); err != nil {
		return err
	}
	delete(a.retired, id)
	return nil
}

// removeRetired removes the log of a Machine that is destroyed. The caller holds s.mu.
func (s *Store) removeRetired(id hangar.MachineID) error {
	for _, a := range s.apps {
		a.mu.Lock()
		_, ok := a.retired[id]
		var err error
		if ok {
			if err = os.RemoveAll(a.retiredDir(s.dir, id)); err == nil {
				delete(a.retired, id)
				_ = os.Remove(filepath.Join(s.dir, string(a.id))) // fails while there are other logs, rightly
				s.dropAppLocked(a)
			}
		}
		a.mu.Unlock()
		if ok {
			return err
		}
	}
	return nil
}

// retiredViews are the logs of destroyed Machines that may have lines of a page: those with a
// record after a time, or as many as the page has lines, the newest. The caller holds a.mu.
func (a *appLog) retiredViews(s *Store, q hangar.LogQuery, after int64, limit int) ([]machineView, error) {
	var ids []hangar.MachineID
	for id, last := range a.retired {
		if last > after && (q.Instance == "" || q.Instance == id) {
			ids = append(ids, id)
		}
	}
	if q.Token == "" && len(ids) > limit {
		slices.SortFunc(ids, func(x, y hangar.MachineID) int { return cmp.Compare(a.retired[y], a.retired[x]) })
		ids = ids[:limit]
	}
	var views []machineView
	for _, id := range ids {
		m := &machineLog{store: s, app: a, id: id, dir: a.retiredDir(s.dir, id)}
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			return nil, err
		}
		v := machineView{machineLog: m, last: a.retired[id]}
		for _, e := range entries { // sorted by name, hence by time
			if first, ok := parseFileName(e.Name()); ok {
				v.files = append(v.files, first)
			}
		}
		views = append(views, v)
	}
	return views, nil
}
