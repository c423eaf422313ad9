package logs

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestRemove(t *testing.T) {
	s := open(t, Options{})
	must(s.Capture(ref, fifoOf(t)))
	s.Append(ref, hangar.LogRunner, "info", "one")
	for range 2 {
		must(s.Remove(ref.ID))
	}
	if page := read(t, s, hangar.LogQuery{}); len(page.Entries) != 0 {
		t.Errorf("after Remove: %+v", page)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if len(s.apps)+len(s.machines) != 0 {
		t.Errorf("remembered: %v %v", s.apps, s.machines)
	}
	must(s.Capture(ref, fifoOf(t)))
	s.Append(ref, hangar.LogRunner, "info", "two")
	wantMessages(t, readAll(t, s, 10), "two")
}

// TestAppendBesideRemoval: a line that is written while the log is removed or retired is in a log that
// the Store knows, and so is removed later.
func TestAppendBesideRemoval(t *testing.T) {
	s := open(t, Options{})
	for name, remove := range map[string]func(hangar.MachineID) error{"remove": s.Remove, "retire": s.Retire} {
		for _, before := range []string{"", "one"} { // without a line, a log has no files
			s.Append(ref, hangar.LogRunner, "info", before)
			s.mu.Lock()
			found, err := s.machine(ref)
			s.mu.Unlock()
			must(err)
			must(remove(ref.ID))
			if err := found.appendMessage(hangar.LogRunner, "info", "two"); !errors.Is(err, errGone) {
				t.Errorf("%s after %q: a write to the removed log: %v", name, before, err)
			}
			if _, err := os.Stat(found.dir); !os.IsNotExist(err) {
				t.Errorf("%s after %q: a log that is not known has files: %v", name, before, err)
			}
			s.Append(ref, hangar.LogRunner, "info", "two")
			must(s.Remove(ref.ID))
			if _, err := os.Stat(found.dir); !os.IsNotExist(err) {
				t.Errorf("%s after %q: a late line is not removed: %v", name, before, err)
			}
		}
	}
}

// TestRetire: the log of a destroyed Machine reads as before, by itself and among others, even
// after a restart that does not scan it.
func TestRetire(t *testing.T) {
	s := open(t, Options{})
	id := func(i int) hangar.MachineRef {
		return hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	const n = 5
	for line := range 2 {
		for i := range n {
			s.Append(id(i), hangar.LogRunner, "info", fmt.Sprintf("%d of %d", line, i))
		}
	}
	page := func(q hangar.LogQuery) []hangar.LogEntry {
		t.Helper()
		page, err := s.Read(ref.AppID, q)
		must(err)
		return page.Entries
	}
	before, newest, one := page(hangar.LogQuery{}), page(hangar.LogQuery{Limit: 3}), page(hangar.LogQuery{Instance: id(1).ID})
	token := formatToken(before[3].Time.UnixNano())
	rest := page(hangar.LogQuery{Token: token})
	if len(before) != 2*n || len(newest) != 3 || len(one) != 2 || len(rest) != 2*n-4 {
		t.Fatalf("%d, %d, %d, %d lines", len(before), len(newest), len(one), len(rest))
	}
	same := func(when string) {
		t.Helper()
		for what, c := range map[string]struct {
			q    hangar.LogQuery
			want []hangar.LogEntry
		}{
			"all": {hangar.LogQuery{}, before}, "the newest": {hangar.LogQuery{Limit: 3}, newest}, "the rest": {hangar.LogQuery{Token: token}, rest},
			"those of one": {hangar.LogQuery{Instance: id(1).ID}, one},
		} {
			if got := page(c.q); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, %s: %v, want %v", when, what, got, c.want)
			}
		}
	}
	for i := range n - 1 {
		must(s.Retire(id(i).ID))
		must(s.Retire(id(i).ID))
	}
	must(s.Retire("ffffffffffffff"))
	if len(s.machines) != 1 {
		t.Errorf("%d logs are in memory", len(s.machines))
	}
	same("retired")
	must(s.Close())
	must(s.Open(t.Context()))
	if len(s.machines) != 1 {
		t.Errorf("%d logs are in memory after a restart", len(s.machines))
	}
	same("after a restart")
	s.Append(id(1), hangar.LogRunner, "info", "late")
	wantMessages(t, page(hangar.LogQuery{Instance: id(1).ID}), "0 of 1", "1 of 1", "late")
	for i := range n {
		must(s.Remove(id(i).ID))
		must(s.Remove(id(i).ID))
	}
	must(s.Forget(time.Now()))
	wantMessages(t, page(hangar.LogQuery{Instance: id(0).ID}), "0 of 0", "1 of 0")
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 || len(s.apps) != 0 {
		t.Errorf("left: %v, %v; in memory %d Apps", left, err, len(s.apps))
	}
}

// TestRetiredOverTime: a page has the newest lines, in whatever order Machines were destroyed, and
// forgotten lines are older than all others.
func TestRetiredOverTime(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	s := open(t, Options{Now: func() time.Time { return now }})
	id := func(i int) hangar.MachineRef {
		return hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	const n, step = 12, 7 * time.Minute
	var want []string
	for i := range n {
		s.Append(id(i), hangar.LogRunner, "info", fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
		now = now.Add(step)
	}
	for _, i := range []int{5, 0, 11, 7, 2, 9, 1, 10, 3, 8, 6, 4} { // long after their last line
		now = now.Add(step)
		must(s.Retire(id(i).ID))
	}
	page := func(q hangar.LogQuery) []hangar.LogEntry {
		t.Helper()
		page, err := s.Read(ref.AppID, q)
		must(err)
		return page.Entries
	}
	all := page(hangar.LogQuery{})
	wantMessages(t, all, want...)
	for limit := 1; limit < n; limit++ {
		wantMessages(t, page(hangar.LogQuery{Limit: limit}), want[n-limit:]...)
		wantMessages(t, page(hangar.LogQuery{Token: formatToken(all[limit-1].Time.UnixNano())}), want[limit:]...)
	}
	must(s.Close())
	must(s.Open(t.Context()))
	s.Append(id(n), hangar.LogRunner, "info", "later")
	if got := page(hangar.LogQuery{Limit: 1}); len(got) != 1 || !got[0].Time.After(all[n-1].Time) {
		t.Errorf("the newest line is %v", got)
	}
	must(s.Forget(now.Add(-5 * step))) // 1 was destroyed after that
	wantMessages(t, page(hangar.LogQuery{}), "1", "3", "4", "6", "8", "10", "later")
	must(s.Forget(now.Add(time.Hour)))
	wantMessages(t, page(hangar.LogQuery{}), "later")
}

// TestRetiredWhileRead: a page that is being read while a Machine is destroyed has its lines once.
func TestRetiredWhileRead(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "last words")
	a := s.apps[ref.AppID]
	v, err := a.view(s, hangar.LogQuery{}, 0, 10)
	must(err)
	must(s.Retire(ref.ID))
	if entries, err := v.newest(10); err != nil || len(entries) != 0 || !v.moved {
		t.Errorf("%v, %v, moved %t", entries, err, v.moved)
	}
	page, err := s.Read(ref.AppID, hangar.LogQuery{})
	must(err)
	wantMessages(t, page.Entries, "last words")
}

// TestRegroup: logs that an earlier version retired are readable, and forgotten after their time.
func TestRegroup(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "long ago")
	m := s.machines[ref.ID]
	must(s.Close())
	must(os.Rename(m.dir, m.dir+retiredMark+strconv.FormatInt(m.last, 10)))
	must(s.Open(t.Context()))
	page, err := s.Read(ref.AppID, hangar.LogQuery{})
	must(err)
	wantMessages(t, page.Entries, "long ago")
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
