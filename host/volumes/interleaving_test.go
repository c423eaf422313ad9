package volumes

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// ledger notes what is claimed.
type ledger struct {
	hangar.VolumePublisher

	claimed []int // GiB
}

func (l *ledger) ClaimVolume(_ context.Context, row hangar.VolumeRow) error {
	l.claimed = append(l.claimed, row.Volume.SizeGB)
	return nil
}

// oneVolume is a Store with one volume.
func oneVolume(t *testing.T) (*Store, *volume, *ledger) {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "journal.db"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	l := &ledger{}
	s := New(Options{Journal: j, Publisher: l, Now: time.Now})
	v, err := s.record(t.Context(), hangar.VolumeSpec{ID: "vol_0000000000000001", App: "web", AppID: "app_1", SizeGB: 1}, hangar.Filling{})
	if err != nil {
		t.Fatal(err)
	}
	return s, v, l
}

// TestForgottenVolumeStaysSo: who still has a volume that was forgotten does not bring its record back.
func TestForgottenVolumeStaysSo(t *testing.T) {
	s, v, _ := oneVolume(t)
	if err := s.forget(v); err != nil {
		t.Fatal(err)
	}
	if err := v.recordEvents(hangar.VolumeEvent{Type: hangar.VolumeEventDrill}); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("an event of a volume that was forgotten: %v", err)
	}
	if list, err := s.o.Journal.VolumeIDs(); err != nil || len(list) != 0 {
		t.Errorf("the journal has %d volumes, %v", len(list), err)
	}
}

// TestGivenUpClaimIsUndone: a volume that changes again and again while it is claimed is counted as it is.
func TestGivenUpClaimIsUndone(t *testing.T) {
	_, v, l := oneVolume(t)
	err := v.claiming(t.Context(), func(rec *journal.VolumeRecord) (*hangar.VolumeRow, error) {
		wanted := rowOf(rec)
		wanted.Volume.SizeGB = 5
		return &wanted, nil
	}, func(*journal.VolumeRecord) error { return errVolumeChanged })
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("it answers %v", err)
	}
	if last := l.claimed[len(l.claimed)-1]; last != 1 {
		t.Errorf("%d GB stay counted of a volume of 1", last)
	}
}

// TestDrillThatAnotherRunHasDone: a run that finds nothing left to do, or no record any more, does nothing.
func TestDrillThatAnotherRunHasDone(t *testing.T) {
	s, _, _ := oneVolume(t)
	s.drills.run(t.Context(), "app_1")
	done := &drillRecord{Latest: hangar.VolumeDrill{FinishedAt: time.Now()}}
	s.drills.byApp["app_1"] = done
	s.drills.run(t.Context(), "app_1")
	if s.drills.byApp["app_1"] != done || len(s.drills.progress) != 0 {
		t.Errorf("it changed the record: %+v", s.drills.byApp["app_1"])
	}
}
