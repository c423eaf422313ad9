package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

func open(tb testing.TB, o journal.Options) *journal.Journal {
	tb.Helper()
	return reopen(tb, filepath.Join(tb.TempDir(), "journal"), o)
}

func reopen(tb testing.TB, path string, o journal.Options) *journal.Journal {
	tb.Helper()
	j, err := journal.Open(path, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := j.Close(); err != nil {
			tb.Error(err)
		}
	})
	return j
}

func commit(tb testing.TB, j *journal.Journal, fn func(tx *journal.Tx) error) {
	tb.Helper()
	if err := j.Commit(fn); err != nil {
		tb.Fatal(err)
	}
}

func machineID(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

func record(id hangar.MachineID, name string) *journal.Record {
	return &journal.Record{Machine: hangar.Machine{ID: id, Name: name, App: "app", AppID: "app", State: hangar.MachineCreated}}
}

func put(tb testing.TB, j *journal.Journal, r *journal.Record) {
	tb.Helper()
	commit(tb, j, func(tx *journal.Tx) error { return tx.PutMachine(r) })
}

func all(tb testing.TB, j *journal.Journal) map[hangar.MachineID]*journal.Record {
	tb.Helper()
	got := make(map[hangar.MachineID]*journal.Record)
	err := j.Machines(func(r *journal.Record) error {
		got[r.Machine.ID] = r
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func unpublished(tb testing.TB, j *journal.Journal, limit int) []journal.Pending {
	tb.Helper()
	items, err := j.Unpublished(limit)
	if err != nil {
		tb.Fatal(err)
	}
	return items
}

// full is a record with every field set.
func full() *journal.Record {
	at := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	return &journal.Record{
		Machine: hangar.Machine{
			ID: "0123456789abcd", Name: "name", App: "app", AppID: "app", State: hangar.MachineStarted, Region: "loc",
			InstanceID: "01J00000000000000000000000", CreatedAt: at, UpdatedAt: at,
		},
		Org: "personal", Network: 7, Number: 9,
		Prepared: true, SkipLaunch: true, Handle: []byte{0, 1, 255}, Snapshot: true, HasRoot: true, KeepRoot: true,
		Stop:     &journal.Stop{Signal: 15, Grace: 5 * time.Second},
		Previous: &journal.Previous{InstanceID: "01H00000000000000000000000", State: hangar.MachineStopped},
		Restarts: []time.Time{at}, RestartAt: at.Add(time.Second), DestroyedAt: at.Add(time.Minute),
		Since: at.Add(time.Nanosecond), Scheduled: at.Add(time.Hour),
	}
}

func TestRecordSurvivesReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	want := full()
	want.Machine.Events = []hangar.Event{{ID: "e"}}
	put(t, j, want)
	if want.Seq == 0 {
		t.Error("PutMachine set no Seq")
	}
	if len(want.Machine.Events) != 1 {
		t.Error("PutMachine altered the caller's events")
	}
	commit(t, j, func(tx *journal.Tx) error { return tx.SetSetting("host", []byte("h1")) })
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = reopen(t, path, journal.Options{})
	got, err := j.Machine(want.Machine.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Machine.Events) != 0 {
		t.Errorf("events were stored with the record: %v", got.Machine.Events)
	}
	again := full()
	again.Seq = want.Seq
	got.Machine.Config, again.Machine.Config = hangar.MachineConfig{}, hangar.MachineConfig{}
	got.Previous.Config, again.Previous.Config = hangar.MachineConfig{}, hangar.MachineConfig{}
	if !reflect.DeepEqual(got, again) {
		t.Errorf("read back\n%+v\nwant\n%+v", got, again)
	}
	if v, err := j.Setting("host"); err != nil || string(v) != "h1" {
		t.Errorf("Setting = %q, %v", v, err)
	}
	if items := unpublished(t, j, 0); len(items) != 1 || items[0].Seq != want.Seq {
		t.Errorf("Unpublished = %v", items)
	}
	select {
	case <-j.Changed():
	default:
		t.Error("Changed is silent, though a Machine was left unpublished")
	}
}

func TestConfigsAreKeptAsTheyAreWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	const config = `{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{"cmd":["sh","-c","a && b <in >out"]}}`
	r := full()
	if err := json.Unmarshal([]byte(config), &r.Machine.Config); err != nil {
		t.Fatal(err)
	}
	put(t, j, r)
	commit(t, j, func(tx *journal.Tx) error {
		return tx.PutVersion(r.Machine.ID, hangar.MachineVersion{Version: r.Machine.InstanceID, Config: r.Machine.Config})
	})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(kept, []byte(config)) < 2 || bytes.Contains(kept, []byte(`\u0026`)) {
		t.Error("the journal has another text of the config than the config itself")
	}
}

func TestNotFound(t *testing.T) {
	j := open(t, journal.Options{})
	if _, err := j.Machine("none"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Machine: %v", err)
	}
	if _, err := j.Setting("none"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Setting: %v", err)
	}
	if events, err := j.Events("none", 0); err != nil || len(events) != 0 {
		t.Errorf("Events = %v, %v", events, err)
	}
	if versions, err := j.Versions("none"); err != nil || len(versions) != 0 {
		t.Errorf("Versions = %v, %v", versions, err)
	}
	commit(t, j, func(tx *journal.Tx) error {
		if _, err := tx.Machine("none"); !errors.Is(err, journal.ErrNotFound) {
			t.Errorf("Tx.Machine: %v", err)
		}
		if _, err := tx.Setting("none"); !errors.Is(err, journal.ErrNotFound) {
			t.Errorf("Tx.Setting: %v", err)
		}
		return nil
	})
}

func TestBadMachineID(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	for _, id := range []hangar.MachineID{"", "a\x00b", hangar.MachineID(strings.Repeat("x", 65))} {
		for name, fn := range map[string]func(tx *journal.Tx) error{
			"PutMachine":      func(tx *journal.Tx) error { return tx.PutMachine(record(id, "n")) },
			"PutDestroyed":    func(tx *journal.Tx) error { return tx.PutDestroyed(record(id, "n")) },
			"ForgetDestroyed": func(tx *journal.Tx) error { return tx.ForgetDestroyed(id) },
			"AppendEvent":     func(tx *journal.Tx) error { return tx.AppendEvent(id, hangar.Event{}) },
			"PutVersion":      func(tx *journal.Tx) error { return tx.PutVersion(id, hangar.MachineVersion{}) },
		} {
			if err := j.Commit(fn); err == nil {
				t.Errorf("%s(%q) was accepted", name, id)
			}
		}
	}
}

func TestRecordThatCannotBeReadBackIsRefused(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	r := record(machineID(1), "m")
	r.Stop = &journal.Stop{Signal: 9999}
	err := j.Commit(func(tx *journal.Tx) error { return tx.PutMachine(r) })
	if err == nil || !strings.Contains(err.Error(), "does not survive") {
		t.Errorf("Commit: %v", err)
	}
	if got := all(t, j); len(got) != 0 {
		t.Errorf("Machines = %v", got)
	}
}

func TestSeqGrowsForEver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	var last uint64
	for range 3 {
		j := reopen(t, path, journal.Options{})
		for range 5 {
			r := record(machineID(1), "m")
			put(t, j, r)
			if r.Seq <= last {
				t.Fatalf("Seq %d after %d", r.Seq, last)
			}
			last = r.Seq
			commit(t, j, func(tx *journal.Tx) error { return tx.PutDestroyed(record(machineID(1), "m")) })
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNumbersAreNeverReused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	seen := make(map[uint64]bool)
	for range 3 {
		j := reopen(t, path, journal.Options{})
		for range 3 {
			var n uint64
			commit(t, j, func(tx *journal.Tx) (err error) {
				n, err = tx.NextNumber()
				return err
			})
			if n == 0 || seen[n] {
				t.Fatalf("number %d again", n)
			}
			seen[n] = true
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEvents(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	// Machines whose ids are adjacent in the order of keys; one is a prefix of another.
	ids := []hangar.MachineID{"a", "ab", "b"}
	const n = journal.MaxEvents + 30
	for i := range n {
		commit(t, j, func(tx *journal.Tx) error {
			for _, id := range ids {
				// Ids descend while events are appended, but events are listed in the order of
				// appending.
				e := hangar.Event{ID: hangar.EventID(fmt.Sprintf("%s-%04d", id, n-i)), Status: fmt.Sprint(i)}
				if err := tx.AppendEvent(id, e); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, id := range ids {
		events, err := j.Events(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != journal.MaxEvents {
			t.Fatalf("%s: %d events are kept, want %d", id, len(events), journal.MaxEvents)
		}
		for i, e := range events {
			if e.Status != fmt.Sprint(n-1-i) || !strings.HasPrefix(string(e.ID), string(id)+"-") {
				t.Fatalf("%s: event %d is %+v", id, i, e)
			}
		}
	}
	if events, err := j.Events("ab", 3); err != nil || len(events) != 3 || events[0].Status != fmt.Sprint(n-1) {
		t.Errorf("limited: %v, %v", events, err)
	}
	newest, err := j.Events("ab", 5)
	if err != nil {
		t.Fatal(err)
	}
	after, err := j.EventsAfter("ab", newest[4].ID)
	if err != nil || len(after) != 4 || after[0].ID != newest[3].ID || after[3].ID != newest[0].ID {
		t.Errorf("EventsAfter = %v, %v", after, err)
	}
	if after, err := j.EventsAfter("ab", newest[0].ID); err != nil || len(after) != 0 {
		t.Errorf("EventsAfter the newest = %v, %v", after, err)
	}
	if after, err := j.EventsAfter("ab", ""); err != nil || len(after) != journal.MaxEvents {
		t.Errorf("EventsAfter nothing = %d events, %v", len(after), err)
	}
}

func TestEventsAfterOneThatIsGone(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	commit(t, j, func(tx *journal.Tx) error {
		for _, id := range []hangar.EventID{"02", "04", "06"} {
			if err := tx.AppendEvent("m", hangar.Event{ID: id}); err != nil {
				return err
			}
		}
		return nil
	})
	after, err := j.EventsAfter("m", "03")
	if err != nil || len(after) != 2 || after[0].ID != "04" || after[1].ID != "06" {
		t.Errorf("EventsAfter = %v, %v", after, err)
	}
}

func TestVersions(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const n = journal.MaxVersions + 5
	for i := range n {
		commit(t, j, func(tx *journal.Tx) error {
			v := hangar.MachineVersion{Version: hangar.InstanceID(fmt.Sprint(i))}
			if err := tx.PutVersion("m", v); err != nil {
				return err
			}
			return tx.PutVersion("m", v) // the same again is the same version
		})
	}
	versions, err := j.Versions("m")
	if err != nil {
		t.Fatal(err)
	}
	if len(versions) != journal.MaxVersions {
		t.Fatalf("%d versions are kept", len(versions))
	}
	for i, v := range versions {
		if v.Version != hangar.InstanceID(fmt.Sprint(n-1-i)) {
			t.Errorf("version %d is %s", i, v.Version)
		}
	}
}

func TestDestroyed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{NoSync: true})
	began := time.Unix(1000, 0)
	const n = 300 // more than one read
	destroyed := func(i int) *journal.Record {
		r := record(machineID(i), "m")
		r.Machine.AppID, r.OrgID = hangar.AppID(fmt.Sprint("app", i%2)), "org"
		r.DestroyedAt = began.Add(time.Duration(n-i) * time.Second)
		return r
	}
	commit(t, j, func(tx *journal.Tx) error {
		for i := range n + 1 {
			r := destroyed(i)
			err := errors.Join(tx.PutMachine(r), tx.AppendEvent(r.Machine.ID, hangar.Event{ID: "1"}),
				tx.PutVersion(r.Machine.ID, hangar.MachineVersion{Version: "1"}), tx.PutLease(r.Machine.ID, &hangar.Lease{Nonce: "n"}))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := j.Published(unpublished(t, j, 0)); err != nil {
		t.Fatal(err)
	}
	commit(t, j, func(tx *journal.Tx) error {
		for i := range n {
			if err := tx.PutDestroyed(destroyed(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{NoSync: true})
	if got := all(t, j); len(got) != 1 || got[machineID(n)] == nil {
		t.Errorf("Machines = %v", got)
	}
	if lease, err := j.Lease(machineID(0)); lease != nil || err != nil {
		t.Errorf("lease: %v, %v", lease, err)
	}
	items := unpublished(t, j, 0)
	if len(items) != n || items[0] != (journal.Pending{ID: machineID(0), Seq: items[0].Seq, Deleted: true, AppID: "app0"}) {
		t.Errorf("%d unpublished, first %+v", len(items), items[0])
	}
	ids := func(of iter.Seq2[*journal.Record, error]) (ids []hangar.MachineID) {
		for r, err := range of {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, r.Machine.ID)
		}
		return ids
	}
	for limit, want := range map[int]int{n: n / 2, 2: 2} {
		got, err := j.DestroyedOfApp("app1", limit)
		if err != nil || len(got) != want || got[0].Machine.ID != machineID(1) || got[1].Machine.ID != machineID(3) {
			t.Errorf("%d of the app, %v", len(got), err)
		}
	}
	if got, err := j.DestroyedOfApp("app", n); err != nil || len(got) != 0 {
		t.Errorf("of an app whose id begins as theirs do: %v, %v", got, err)
	}
	if got := ids(j.DestroyedOfOrg("org", machineID(1))); len(got) != n-2 || got[0] != machineID(2) {
		t.Errorf("%d of the organization after the second, first %v", len(got), got)
	}
	if got := ids(j.DestroyedOfOrg("org", "")); len(got) != n || got[0] != machineID(0) || !slices.IsSorted(got) {
		t.Errorf("%d of the organization, first %v", len(got), got)
	}
	if got := ids(j.DestroyedOfOrg("or", "")); got != nil {
		t.Errorf("of an organization whose id begins as theirs do: %v", got)
	}
	old, err := j.DestroyedBefore(began.Add(3 * time.Second))
	if err != nil || !slices.Equal(old, []hangar.MachineID{machineID(n - 1), machineID(n - 2)}) {
		t.Errorf("DestroyedBefore = %v, %v", old, err)
	}
	commit(t, j, func(tx *journal.Tx) error { return tx.ForgetDestroyed(old[0]) })
	commit(t, j, func(tx *journal.Tx) error { return tx.ForgetDestroyed(machineID(n)) }) // which is not
	if _, err := j.Destroyed(old[0]); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("record: %v", err)
	}
	for id, want := range map[hangar.MachineID]int{old[0]: 0, old[1]: 1, machineID(n): 1} {
		events, err := j.Events(id, 0)
		versions, verr := j.Versions(id)
		if err != nil || verr != nil || len(events) != want || len(versions) != want {
			t.Errorf("of %s there are %d events and %d versions, %v, %v", id, len(events), len(versions), err, verr)
		}
	}
	if left, err := j.DestroyedBefore(began.Add(time.Hour)); err != nil || len(left) != n-1 || len(ids(j.DestroyedOfOrg("org", ""))) != n-1 {
		t.Errorf("%d are left, %v", len(left), err)
	}
}

func TestOutbox(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	for i := range 5 {
		put(t, j, record(machineID(i), "m"))
	}
	put(t, j, record(machineID(0), "again")) // to the end of the queue
	items := unpublished(t, j, 0)
	if len(items) != 5 || items[0].ID != machineID(1) || items[4].ID != machineID(0) {
		t.Fatalf("Unpublished = %+v", items)
	}
	if first := unpublished(t, j, 2); len(first) != 2 || first[0] != items[0] {
		t.Errorf("limited: %+v", first)
	}

	put(t, j, record(machineID(2), "changed meanwhile"))
	before := j.Stats().Transactions
	if err := j.Published(items); err != nil {
		t.Fatal(err)
	}
	left := unpublished(t, j, 0)
	if len(left) != 1 || left[0].ID != machineID(2) {
		t.Fatalf("after Published: %+v", left)
	}
	if n := j.Stats().Transactions; n != before {
		t.Errorf("Published made %d transactions", n-before)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	if again := unpublished(t, j, 0); len(again) != 1 || again[0] != left[0] {
		t.Errorf("after reopening: %+v", again)
	}
	if err := j.Published(left); err != nil {
		t.Fatal(err)
	}
	put(t, j, record(machineID(2), "again"))
	if again := unpublished(t, j, 0); len(again) != 1 || again[0].Seq <= left[0].Seq {
		t.Errorf("a change after Published: %+v", again)
	}
}

func TestPublishedManyIsFlushed(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const n = 1000
	commit(t, j, func(tx *journal.Tx) error {
		for i := range n {
			if err := tx.PutMachine(record(machineID(i), "m")); err != nil {
				return err
			}
		}
		return nil
	})
	before := j.Stats().Transactions
	if err := j.Published(unpublished(t, j, 0)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); j.Stats().Transactions == before; {
		if time.Now().After(deadline) {
			t.Fatal("a thousand published entries are never removed")
		}
		time.Sleep(time.Millisecond)
	}
	if left := unpublished(t, j, 0); len(left) != 0 {
		t.Errorf("%d left", len(left))
	}
}

func TestChanged(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	silent := func(what string) {
		t.Helper()
		select {
		case <-j.Changed():
			t.Errorf("%s signalled", what)
		default:
		}
	}
	silent("an empty journal")
	commit(t, j, func(tx *journal.Tx) error { return tx.AppendEvent("m", hangar.Event{ID: "1"}) })
	silent("an event alone")
	put(t, j, record("m", "m"))
	put(t, j, record("m", "m"))
	<-j.Changed()
	silent("one signal taken")
	commit(t, j, func(tx *journal.Tx) error { return tx.PutDestroyed(record("m", "m")) })
	<-j.Changed()
	if err := j.Published(unpublished(t, j, 0)); err != nil {
		t.Fatal(err)
	}
	silent("Published")
}

func TestMachinesMayWrite(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const n = 700 // more than one read
	commit(t, j, func(tx *journal.Tx) error {
		for i := range n {
			if err := tx.PutMachine(record(machineID(i), "m")); err != nil {
				return err
			}
		}
		return nil
	})
	var last hangar.MachineID
	count := 0
	err := j.Machines(func(r *journal.Record) error {
		if r.Machine.ID <= last {
			t.Errorf("%s after %s", r.Machine.ID, last)
		}
		last = r.Machine.ID
		count++
		if count%100 != 0 {
			return nil
		}
		r.Machine.Name = "seen"
		return j.Commit(func(tx *journal.Tx) error { return tx.PutMachine(r) })
	})
	if err != nil || count != n {
		t.Errorf("%d records, %v", count, err)
	}
	stop := errors.New("enough")
	if err := j.Machines(func(*journal.Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Machines: %v", err)
	}
}

func TestOpenTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	reopen(t, path, journal.Options{})
	_, err := journal.Open(path, journal.Options{LockTimeout: time.Millisecond})
	if !errors.Is(err, journal.ErrLocked) {
		t.Errorf("second Open: %v", err)
	}
}

func TestOpenWithoutDirectory(t *testing.T) {
	_, err := journal.Open(filepath.Join(t.TempDir(), "none", "journal"), journal.Options{})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open: %v", err)
	}
}

func TestClosed(t *testing.T) {
	j := open(t, journal.Options{})
	put(t, j, record("m", "m"))
	for range 2 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"Commit":    j.Commit(func(*journal.Tx) error { t.Error("fn ran"); return nil }),
		"Published": j.Published([]journal.Pending{{ID: "m", Seq: 1}}),
		"Machines":  j.Machines(func(*journal.Record) error { t.Error("yielded"); return nil }),
		"Machine":   second(j.Machine("m")),
		"Events":    second(j.Events("m", 0)),
		"Setting":   second(j.Setting("s")),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestTxAfterItsCommit(t *testing.T) {
	j := open(t, journal.Options{})
	var kept *journal.Tx
	commit(t, j, func(tx *journal.Tx) error {
		kept = tx
		return tx.PutMachine(record("m", "m"))
	})
	for name, err := range map[string]error{
		"PutMachine": kept.PutMachine(record("m", "m")),
		"NextNumber": second(kept.NextNumber()),
		"Machine":    second(kept.Machine("m")),
		"Setting":    second(kept.Setting("s")),
	} {
		if err == nil {
			t.Errorf("%s works after the commit", name)
		}
	}
}
