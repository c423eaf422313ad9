package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
)

const hostA = hangar.HostID("aaaaaaaa")

func row(id hangar.MachineID, seq uint64, s hangar.MachineState) hangar.MachineRow {
	return hangar.MachineRow{
		Machine: hangar.Machine{ID: id, Name: "name-of-" + string(id), App: "web", Host: hostA, State: s, Events: []hangar.Event{{ID: "e"}}},
		Org:     hangar.OrgPersonal, Network: 7, Seq: seq,
	}
}

func machineID(n int) hangar.MachineID { return hangar.MachineID(fmt.Sprintf("%014x", n)) }

func TestPublishKeepsTheNewest(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		rows := control.NewRows(store, quiet)
		ctx := t.Context()
		states := map[uint64]hangar.MachineState{1: hangar.MachineCreated, 2: hangar.MachineStarted, 3: hangar.MachineStopped}
		for _, seq := range []uint64{2, 1, 2, 3, 2} {
			if err := rows.PublishMachine(ctx, row(machineID(1), seq, states[seq])); err != nil {
				t.Fatal(err)
			}
		}
		published, err := rows.PublishedMachines(ctx, hostA)
		if err != nil || !maps.Equal(published, map[hangar.MachineID]uint64{machineID(1): 3}) {
			t.Fatalf("published %v, %v", published, err)
		}
		// Also when publishers race.
		var wg sync.WaitGroup
		for seq := range uint64(30) {
			wg.Go(func() {
				if err := rows.PublishMachine(ctx, row(machineID(2), seq+1, hangar.MachineStarted)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if published, _ = rows.PublishedMachines(ctx, hostA); published[machineID(2)] != 30 {
			t.Errorf("after a race row %d stays, want 30", published[machineID(2)])
		}
		if other, err := rows.PublishedMachines(ctx, "bbbbbbbb"); err != nil || len(other) != 0 {
			t.Errorf("of another host: %v, %v", other, err)
		}
		for range 2 {
			if err := rows.RetractMachine(ctx, hostA, hangar.MachineRef{ID: machineID(1)}); err != nil {
				t.Fatal(err)
			}
		}
		if published, _ = rows.PublishedMachines(ctx, hostA); len(published) != 1 {
			t.Errorf("after a retraction: %v", published)
		}
	})
}

// TestConfigsInRows publishes a config as it is written, and reads it also from a row
// in which json.Marshal has escaped some of it.
func TestConfigsInRows(t *testing.T) {
	store := state.NewMemory()
	rows := control.NewRows(store, quiet)
	fresh := row(machineID(1), 1, hangar.MachineStarted)
	config, err := hangar.ParseMachineConfig([]byte(`{"image":"a","init":{"cmd":["sh","-c","a && b <in >out"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	fresh.Machine.Config = config
	document, err := config.Document()
	if err != nil {
		t.Fatal(err)
	}
	publish(t, rows, fresh)
	items, _, err := state.All(t.Context(), store, "/hosts/", false)
	if err != nil || len(items) != 1 || !bytes.Contains(items[0].Value, document) {
		t.Fatalf("rows %v, %v; want one with %s", items, err, document)
	}
	escaped := row(machineID(2), 1, hangar.MachineStarted)
	escaped.Machine.Config = config
	old, err := json.Marshal(escaped)
	if err != nil {
		t.Fatal(err)
	}
	put := state.Put("/hosts/aaaaaaaa/machines/"+string(machineID(2)), old)
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for c, err := range rows.WatchMachines(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Synced {
			break
		}
		seen++
		if got, err := c.Row.Machine.Config.Document(); err != nil || !bytes.Equal(got, document) {
			t.Errorf("%s has the config %s, %v; want %s", c.ID, got, err, document)
		}
	}
	if seen != 2 {
		t.Errorf("%d rows", seen)
	}
}

// view is what a watcher has received so far.
type view map[hangar.MachineID]uint64

func TestFeed(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		rows := control.NewRows(store, quiet)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for n := range 3 {
			if err := rows.PublishMachine(ctx, row(machineID(n), 1, hangar.MachineStarted)); err != nil {
				t.Fatal(err)
			}
		}
		seen, step := view{}, 0
		for c, err := range rows.WatchMachines(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.Synced:
				if len(seen) != 3 {
					t.Fatalf("synced after %v", seen)
				}
				publish(t, rows, row(machineID(1), 2, hangar.MachineStopped))
			case c.Row == nil:
				delete(seen, c.ID)
			default:
				if c.ID != c.Row.Machine.ID || c.Row.Network != 7 || c.Row.Org != hangar.OrgPersonal || c.Row.Machine.Events != nil {
					t.Errorf("row %+v", c.Row)
				}
				seen[c.ID] = c.Row.Seq
			}
			switch {
			case step == 0 && seen[machineID(1)] == 2:
				step++
				if err := rows.RetractMachine(ctx, hostA, hangar.MachineRef{ID: machineID(2)}); err != nil {
					t.Fatal(err)
				}
			case step == 1 && len(seen) == 2:
				step++
				publish(t, rows, row(machineID(9), 1, hangar.MachineCreated))
			case step == 2 && seen[machineID(9)] == 1:
				step++
				cancel()
			}
		}
		if step != 3 || !maps.Equal(seen, view{machineID(0): 1, machineID(1): 2, machineID(9): 1}) {
			t.Errorf("after step %d: %v", step, seen)
		}
	})
}

func publish(t *testing.T, rows *control.Rows, r hangar.MachineRow) {
	t.Helper()
	if err := rows.PublishMachine(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// TestFeedAfterCompaction changes rows while the watcher is busy and compacts them
// away from under its watch.
func TestFeedAfterCompaction(t *testing.T) {
	store := &interrupted{Memory: state.NewMemory()}
	rows := control.NewRows(store, quiet)
	for n := range 4 {
		publish(t, rows, row(machineID(n), 1, hangar.MachineStarted))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, told, synced := view{}, map[hangar.MachineID]int{}, 0
	for c, err := range rows.WatchMachines(ctx) {
		switch {
		case err != nil:
			t.Fatal(err)
		case c.Synced:
			synced++
			publish(t, rows, row(machineID(1), 5, hangar.MachineStopped))
			publish(t, rows, row(machineID(7), 6, hangar.MachineCreated))
			if err := rows.RetractMachine(ctx, hostA, hangar.MachineRef{ID: machineID(2)}); err != nil {
				t.Fatal(err)
			}
			store.compact(t)
		case c.Row == nil:
			delete(seen, c.ID)
			told[c.ID]++
		default:
			seen[c.ID] = c.Row.Seq
			told[c.ID]++
		}
		if maps.Equal(seen, view{machineID(0): 1, machineID(1): 5, machineID(3): 1, machineID(7): 6}) {
			cancel()
		}
	}
	if synced != 1 || len(seen) != 4 {
		t.Errorf("synced %d times, saw %v", synced, seen)
	}
	if told[machineID(0)] != 1 || told[machineID(3)] != 1 || told[machineID(2)] != 2 {
		t.Errorf("received %v: an unchanged row is sent once", told)
	}
}

// interrupted is a memory whose history can be cut.
type interrupted struct{ *state.Memory }

var _ statetest.Store = (*interrupted)(nil)

func (s *interrupted) compact(t *testing.T) {
	t.Helper()
	page, err := s.List(t.Context(), "/", state.ListOptions{Limit: 1})
	if err == nil {
		err = s.Compact(t.Context(), page.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestFeedEndsWithTheStore(t *testing.T) {
	store := state.NewMemory()
	rows := control.NewRows(store, quiet)
	var last error
	for c, err := range rows.WatchMachines(t.Context()) {
		if last = err; c.Synced {
			_ = store.Close()
		}
	}
	if hangar.CodeOf(last) != hangar.CodeUnavailable || !errors.Is(last, state.ErrClosed) {
		t.Errorf("ends with %v, want unavailable", last)
	}
	n := 0
	for range rows.WatchMachines(t.Context()) {
		n++
	}
	if n != 1 {
		t.Errorf("a feed of a closed store yields %d times", n)
	}
	for range control.NewRows(state.NewMemory(), quiet).WatchMachines(t.Context()) {
		break // a caller that breaks off is not called again
	}
}

func TestUnreadableRows(t *testing.T) {
	store := state.NewMemory()
	rows := control.NewRows(store, quiet)
	publish(t, rows, row(machineID(1), 1, hangar.MachineStarted))
	bad := map[string]string{
		"/hosts/aaaaaaaa/machines/" + string(machineID(2)): `{`,
		"/hosts/aaaaaaaa/machines/" + string(machineID(3)): `{"machine":{"id":"00000000000003","host_id":"aaaaaaaa","app_name":"web","state":"hibernating"}}`,
		"/hosts/aaaaaaaa/machines/" + string(machineID(4)): `{"machine":{"id":"00000000000005","host_id":"aaaaaaaa","app_name":"web","state":"started"}}`,
		"/hosts/aaaaaaaa/machines/" + string(machineID(6)): `{"machine":{"id":"00000000000006","host_id":"bbbbbbbb","app_name":"web","state":"started"}}`,
		"/hosts/aaaaaaaa/machines/" + string(machineID(7)): `{"machine":{"id":"00000000000007","host_id":"aaaaaaaa","app_name":"../x","state":"started"}}`,
		"/hosts/aaaaaaaa/machines/x":                       `{}`,
		"/hosts/aaaaaaaa/other":                            `{}`,
	}
	for key, value := range bad {
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(value))}}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for c, err := range rows.WatchMachines(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Synced {
			break
		}
		if n++; c.ID != machineID(1) {
			t.Errorf("yields %+v", c)
		}
	}
	if n != 1 || rows.Unreadable() != uint64(len(bad)) {
		t.Errorf("%d rows read and %d counted, want 1 and %d", n, rows.Unreadable(), len(bad))
	}
	published, err := rows.PublishedMachines(t.Context(), hostA)
	if err != nil || len(published) != 6 || published[machineID(1)] != 1 || published[machineID(2)] != 0 {
		t.Errorf("published %v, %v; what cannot be read is at 0", published, err)
	}
	publish(t, rows, row(machineID(2), 1, hangar.MachineStarted)) // the host repairs its row
	if published, _ = rows.PublishedMachines(t.Context(), hostA); published[machineID(2)] != 1 {
		t.Errorf("an unreadable row was not replaced: %v", published)
	}
	if err := rows.RetractMachine(t.Context(), hostA, hangar.MachineRef{ID: machineID(3)}); err != nil {
		t.Error(err)
	}
}

func BenchmarkPublish(b *testing.B) {
	store, err := state.OpenEtcd(b.Context(), state.EtcdConfig{Dir: b.TempDir(), Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	rows := control.NewRows(store, quiet)
	seq := uint64(0)
	for b.Loop() {
		seq++
		if err := rows.PublishMachine(b.Context(), row(machineID(1), seq, hangar.MachineStarted)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRowThatIsTooLarge is refused as one that no repetition helps, so that its host
// can go on with the next.
func TestRowThatIsTooLarge(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		large := row(machineID(1), 1, hangar.MachineStarted)
		large.Machine.Config.Env = map[string]string{"LARGE": strings.Repeat("x", state.MaxTxnBytes)}
		if err := control.NewRows(store, quiet).PublishMachine(t.Context(), large); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("a row that is too large = %v, want an invalid one", err)
		}
	})
}

// TestMachineOfAnotherAppIsNotAdopted: a Machine without a reservation, as after the state was
// restored from a backup, is given back to its own App and to no other one of that name.
func TestMachineOfAnotherAppIsNotAdopted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		app := p.app(t, "web")
		mine, theirs := row(machineID(1), 1, hangar.MachineStarted), row(machineID(2), 1, hangar.MachineStarted)
		mine.Machine.AppID, theirs.Machine.AppID = app.ID, "0123456789abcdef"
		rows := control.NewRows(store, quiet)
		for _, r := range []hangar.MachineRow{mine, theirs} {
			if err := rows.PublishMachine(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		p.restart(t) // which gives Machines back, too
		want := "/machines/" + string(app.ID) + "/" + string(mine.Machine.ID)
		if got := p.records(t, "/machines/"); len(got) != 1 || got[0] != want {
			t.Errorf("reserved are %v, want %s alone", got, want)
		}
		if got := p.records(t, "/machine-names/"); len(got) != 1 {
			t.Errorf("names are %v", got)
		}
	})
}
