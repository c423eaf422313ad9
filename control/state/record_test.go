package state_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func TestRecords(t *testing.T) {
	type thing struct {
		Size int `json:"size"`
	}
	store := state.NewMemory()
	if _, _, err := state.Read[thing](t.Context(), store, "/things/a"); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("a missing record is read with %v", err)
	}
	put, err := state.Write("/things/a", thing{Size: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put, state.Put("/things/b", []byte("{"))}}); err != nil {
		t.Fatal(err)
	}
	got, item, err := state.Read[thing](t.Context(), store, "/things/a")
	if err != nil || got.Size != 7 || item.Key != "/things/a" {
		t.Errorf("read %+v of %s, %v", got, item.Key, err)
	}
	if _, _, err := state.Read[thing](t.Context(), store, "/things/b"); hangar.CodeOf(err) != hangar.CodeInternal || hangar.ReasonOf(err) != hangar.ReasonRecordDamaged {
		t.Errorf("what is no record is read with %v", err)
	}
}

// TestNextNumber: one transaction claims a number, and the next one gets another.
func TestNextNumber(t *testing.T) {
	store := state.NewMemory()
	for want := uint64(1); want <= 3; want++ {
		n, unclaimed, claim, err := state.NextNumber(t.Context(), store, "/counters/things")
		if err != nil || n != want {
			t.Fatalf("number %d, %v; want %d", n, err, want)
		}
		txn := state.Txn{If: []state.Compare{unclaimed}, Then: []state.Op{claim}}
		if _, err := store.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Txn(t.Context(), txn); !errors.Is(err, state.ErrConflict) {
			t.Errorf("number %d is claimed twice: %v", n, err)
		}
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/counters/things", []byte("many"))}}); err != nil {
		t.Fatal(err)
	}
	if n, _, _, err := state.NextNumber(t.Context(), store, "/counters/things"); err == nil {
		t.Errorf("the number after %q is %d", "many", n)
	}
}

func TestHangarError(t *testing.T) {
	for err, want := range map[error]hangar.Code{
		state.ErrInvalid:                       hangar.CodeInvalid,
		fmt.Errorf("put: %w", state.ErrClosed): hangar.CodeUnavailable,
		hangar.AppNotFound():                   hangar.CodeNotFound,
	} {
		if got := hangar.CodeOf(state.HangarError(err)); got != want {
			t.Errorf("%v becomes %q, want %q", err, got, want)
		}
	}
	for _, err := range []error{nil, context.Canceled, context.DeadlineExceeded} {
		if got := state.HangarError(err); !errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
