package journal_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// model is the journal in its simplest form.
type model struct {
	records map[hangar.MachineID]string
	gone    map[hangar.MachineID]string   // destroyed
	leases  map[hangar.MachineID]string   // nonces
	events  map[hangar.MachineID][]string // oldest first
	pending []journal.Pending
	number  uint64
}

func newModel() *model {
	return &model{
		records: make(map[hangar.MachineID]string), gone: make(map[hangar.MachineID]string), leases: make(map[hangar.MachineID]string), events: make(map[hangar.MachineID][]string),
	}
}

func (m *model) clone() *model {
	c := &model{
		records: maps.Clone(m.records), gone: maps.Clone(m.gone), leases: maps.Clone(m.leases), events: make(map[hangar.MachineID][]string),
		pending: slices.Clone(m.pending), number: m.number,
	}
	for id, e := range m.events {
		c.events[id] = slices.Clone(e)
	}
	return c
}

func (m *model) touch(id hangar.MachineID, seq uint64, deleted bool) {
	m.pending = slices.DeleteFunc(m.pending, func(p journal.Pending) bool { return p.ID == id })
	p := journal.Pending{ID: id, Seq: seq, Deleted: deleted}
	if deleted {
		p.AppID = "app"
	}
	m.pending = append(m.pending, p)
	slices.SortFunc(m.pending, byCommit)
}

var errModel = errors.New("asked to fail")

// TestAgainstModel compares the journal with the model over random commits,
// failures, publications and restarts.
func TestAgainstModel(t *testing.T) {
	base := t.TempDir()
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		path := filepath.Join(base, fmt.Sprint(count))
		o := journal.Options{NoSync: true}
		j, err := journal.Open(path, o)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = j.Close() }()
		m := newModel()
		ids := rapid.SampledFrom([]hangar.MachineID{"a", "ab", "abc", "b"})
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				next := m.clone()
				steps := rapid.SliceOfN(rapid.IntRange(0, 6), 1, 5).Draw(rt, "steps")
				targets := rapid.SliceOfN(ids, len(steps), len(steps)).Draw(rt, "ids")
				text := rapid.StringN(0, 20, -1).Draw(rt, "text")
				fail := rapid.IntRange(0, 5).Draw(rt, "fail") == 0
				err := j.Commit(func(tx *journal.Tx) error {
					next = m.clone()
					if err := replay(tx, next, steps, targets, text); err != nil {
						return err
					}
					if fail {
						return errModel
					}
					return nil
				})
				switch {
				case fail && errors.Is(err, errModel):
				case !fail && err == nil:
					m = next
				default:
					rt.Fatalf("Commit: %v, fail %t", err, fail)
				}
			},
			"publish": func(rt *rapid.T) {
				items, err := j.Unpublished(rapid.IntRange(1, 3).Draw(rt, "limit"))
				if err != nil {
					rt.Fatal(err)
				}
				if err := j.Published(items); err != nil {
					rt.Fatal(err)
				}
				m.pending = m.pending[len(items):]
			},
			"reopen": func(rt *rapid.T) {
				if err := j.Close(); err != nil {
					rt.Fatal(err)
				}
				if j, err = journal.Open(path, o); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) { compare(rt, j, m) },
		})
	})
}

func replay(tx *journal.Tx, m *model, steps []int, ids []hangar.MachineID, text string) error {
	for i, step := range steps {
		id := ids[i]
		switch step {
		case 0:
			r := record(id, text)
			if err := tx.PutMachine(r); err != nil {
				return err
			}
			m.records[id] = text
			m.touch(id, r.Seq, false)
		case 1:
			r := record(id, text)
			if err := tx.PutDestroyed(r); err != nil {
				return err
			}
			delete(m.records, id)
			delete(m.leases, id)
			m.gone[id] = text
			m.touch(id, r.Seq, true)
		case 2:
			if err := tx.AppendEvent(id, hangar.Event{Status: text}); err != nil {
				return err
			}
			m.events[id] = append(m.events[id], text)
		case 3:
			n, err := tx.NextNumber()
			if err != nil {
				return err
			}
			if n != m.number+1 {
				return fmt.Errorf("number %d after %d", n, m.number)
			}
			m.number = n
		case 4:
			if err := tx.PutLease(id, &hangar.Lease{Nonce: text}); err != nil {
				return err
			}
			m.leases[id] = text
		case 5:
			if err := tx.PutLease(id, nil); err != nil {
				return err
			}
			delete(m.leases, id)
		case 6:
			if err := tx.ForgetDestroyed(id); err != nil {
				return err
			}
			if _, ok := m.gone[id]; ok {
				delete(m.gone, id)
				delete(m.events, id)
			}
		}
	}
	return nil
}

func compare(rt *rapid.T, j *journal.Journal, m *model) {
	records := make(map[hangar.MachineID]string)
	err := j.Machines(func(r *journal.Record) error {
		records[r.Machine.ID] = r.Machine.Name
		return nil
	})
	if err != nil || !maps.Equal(records, m.records) {
		rt.Fatalf("records %v, %v, want %v", records, err, m.records)
	}
	for _, id := range []hangar.MachineID{"a", "ab", "abc", "b"} {
		events, err := j.EventsAfter(id, "")
		if err != nil {
			rt.Fatal(err)
		}
		switch r, err := j.Destroyed(id); {
		case errors.Is(err, journal.ErrNotFound):
			if text, ok := m.gone[id]; ok {
				rt.Fatalf("%s is not destroyed, want %q", id, text)
			}
		case err != nil || r.Machine.Name != m.gone[id]:
			rt.Fatalf("%s is destroyed as %+v, %v, want %q", id, r, err, m.gone[id])
		}
		lease, err := j.Lease(id)
		if nonce, ok := m.leases[id]; err != nil || (lease != nil) != ok || ok && lease.Nonce != nonce {
			rt.Fatalf("lease of %s: %+v, %v, want %q", id, lease, err, nonce)
		}
		var got []string
		for _, e := range events {
			got = append(got, e.Status)
		}
		if !slices.Equal(got, m.events[id]) {
			rt.Fatalf("events of %s: %q, want %q", id, got, m.events[id])
		}
	}
	pending, err := j.Unpublished(0)
	if err != nil {
		rt.Fatal(err)
	}
	if !slices.Equal(pending, m.pending) {
		rt.Fatalf("Unpublished %v, want %v", pending, m.pending)
	}
}

// byCommit orders the outbox; all entries of one commit have the same number.
func byCommit(a, b journal.Pending) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.ID, b.ID))
}
