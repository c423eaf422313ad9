package journal_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

func volumeRecord(id hangar.VolumeID) *journal.VolumeRecord {
	return &journal.VolumeRecord{Org: "personal", OrgID: "0b1c5f7e", Volume: hangar.Volume{ID: id, Name: "data", App: "app", AppID: "app", State: hangar.VolumeCreated, SizeGB: 3}}
}

// fullVolume is a record with every field set.
func fullVolume() *journal.VolumeRecord {
	at := time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)
	return &journal.VolumeRecord{
		Volume: hangar.Volume{
			ID: "vol_0123456789abcdef", Name: "data", App: "app", AppID: "app", State: hangar.VolumeExtending, SizeGB: 3, Region: "loc", Zone: "0a1b", Host: "0000aaaa",
			Filling: hangar.Filling{Snapshot: "vs_1", Progress: hangar.Progress{Done: 1, Total: 2}}, Encrypted: true, AttachedMachine: "m",
			CreatedAt: at, UpdatedAt: at, SnapshotRetention: 5, AutoBackup: true, HostStatus: "ok", Wanted: hangar.FSExt4,
			Usage: hangar.VolumeUsage{FSType: hangar.FSExt4, Blocks: 9, BlockSize: 4096, BlocksFree: 8, BlocksAvail: 7}, NeedsRestart: true, DestroyedAt: at,
		},
		Org: "personal", OrgID: "0b1c5f7e", Key: []byte{0, 1, 255}, Unfilled: true, Growing: 4, Formatted: true, Damaged: "why",
		Snapshots: []hangar.Snapshot{{ID: "vs_1", Volume: "vol_0123456789abcdef", State: hangar.SnapshotCreated, Size: 1, CreatedAt: at}},
		Discarded: []hangar.SnapshotID{"vs_2"},
		Events:    []hangar.VolumeEvent{{ID: "e", Type: hangar.VolumeEventCreate, Source: hangar.SourceUser, Timestamp: 1}},
	}
}

func unpublishedVolumes(tb testing.TB, j *journal.Journal) []journal.PendingVolume {
	tb.Helper()
	items, err := j.UnpublishedVolumes(0)
	if err != nil {
		tb.Fatal(err)
	}
	return items
}

func allVolumes(tb testing.TB, j *journal.Journal) (ids []hangar.VolumeID) {
	tb.Helper()
	err := j.Volumes(func(r *journal.VolumeRecord) error {
		ids = append(ids, r.Volume.ID)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return ids
}

func TestVolumeSurvivesReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	want := fullVolume()
	commit(t, j, func(tx *journal.Tx) error { return tx.PutVolume(want) })
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	got, err := j.Volume(want.Volume.ID)
	if err != nil || !reflect.DeepEqual(got, want) || got.Seq == 0 {
		t.Errorf("Volume = %+v, %v, want %+v", got, err, want)
	}
	if v := reflect.ValueOf(*want); true {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the test leaves out %s", v.Type().Field(i).Name)
			}
		}
	}
	select {
	case <-j.Changed():
	default:
		t.Error("there is no signal for an unpublished volume")
	}
	if _, err := j.Volume("vol_none"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Volume of none: %v", err)
	}
}

func TestVolumesWaitToBePublished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	one, two := volumeRecord("vol_1"), volumeRecord("vol_2")
	put(t, j, record("vol_1", "a Machine of the same id has an entry of its own"))
	for _, r := range []*journal.VolumeRecord{one, two, one} {
		commit(t, j, func(tx *journal.Tx) error { return tx.PutVolume(r) })
	}
	items := unpublishedVolumes(t, j)
	want := []journal.PendingVolume{{Ref: stored(two), Seq: two.Seq}, {Ref: stored(one), Seq: one.Seq}}
	if !reflect.DeepEqual(items, want) {
		t.Errorf("UnpublishedVolumes = %+v, want %+v", items, want)
	}
	commit(t, j, func(tx *journal.Tx) error { return tx.DeleteVolume(two.Volume.Ref()) })
	if err := j.PublishedVolumes(items); err != nil {
		t.Fatal(err)
	}
	items = unpublishedVolumes(t, j)
	if len(items) != 1 || items[0].Ref != stored(two) || !items[0].Deleted {
		t.Errorf("after publishing, UnpublishedVolumes = %+v", items)
	}
	if machines := unpublished(t, j, 0); len(machines) != 1 {
		t.Errorf("Unpublished = %+v", machines)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	if items := unpublishedVolumes(t, j); len(items) != 1 || !items[0].Deleted || items[0].Ref.AppID != "app" {
		t.Errorf("after reopening, UnpublishedVolumes = %+v", items)
	}
	if got := allVolumes(t, j); len(got) != 1 || got[0] != "vol_1" {
		t.Errorf("Volumes = %v", got)
	}
}

func TestManyVolumesAreReadInOrder(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const n = 600
	commit(t, j, func(tx *journal.Tx) error {
		for i := range n {
			if err := tx.PutVolume(volumeRecord(hangar.VolumeID(fmt.Sprintf("vol_%04d", i)))); err != nil {
				return err
			}
		}
		return nil
	})
	for i, id := range allVolumes(t, j) {
		if want := hangar.VolumeID(fmt.Sprintf("vol_%04d", i)); id != want {
			t.Fatalf("volume %d is %s", i, id)
		}
	}
	if got := len(allVolumes(t, j)); got != n {
		t.Errorf("%d volumes", got)
	}
	stop := errors.New("stop")
	if err := j.Volumes(func(*journal.VolumeRecord) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Volumes: %v", err)
	}
}

func TestVolumeOfNoKeyIsRefused(t *testing.T) {
	j := open(t, journal.Options{})
	for _, id := range []hangar.VolumeID{"", "a\x00b"} {
		if err := j.Commit(func(tx *journal.Tx) error { return tx.PutVolume(volumeRecord(id)) }); err == nil {
			t.Errorf("volume %q was stored", id)
		}
	}
}

func TestUnreadableVolumeIsSkippedAndNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	commit(t, j, func(tx *journal.Tx) error {
		return errors.Join(tx.PutVolume(volumeRecord("vol_1")), tx.PutVolume(volumeRecord("vol_2")))
	})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("volumes")).Put([]byte("vol_1"), []byte("{")) })
	j = reopen(t, path, journal.Options{})
	if got := allVolumes(t, j); len(got) != 1 || got[0] != "vol_2" {
		t.Errorf("Volumes = %v", got)
	}
	if ids, err := j.VolumeIDs(); err != nil || len(ids) != 2 {
		t.Errorf("VolumeIDs = %v, %v", ids, err)
	}
	if n := j.Stats().Unreadable; n != 1 {
		t.Errorf("%d unreadable", n)
	}
	if _, err := j.Volume("vol_1"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Volume = %v", err)
	}
}

func TestJournalOfBeforeThereWereVolumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record("m", "m"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bolt.Tx) error {
		var errs []error
		for _, name := range []string{"volumes", "volume outbox", "volume outbox latest"} {
			errs = append(errs, tx.DeleteBucket([]byte(name)))
		}
		return errors.Join(errs...)
	})
	j = reopen(t, path, journal.Options{})
	commit(t, j, func(tx *journal.Tx) error { return tx.PutVolume(volumeRecord("vol_1")) })
	if len(allVolumes(t, j)) != 1 || len(unpublishedVolumes(t, j)) != 1 || len(all(t, j)) != 1 {
		t.Error("the journal was not completed")
	}
}

// edit changes the file of a journal that is closed.
func edit(tb testing.TB, path string, change func(tx *bolt.Tx) error) {
	tb.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(db.Update(change), db.Close()); err != nil {
		tb.Fatal(err)
	}
}

// The key of a volume needs the same protection as a secret: no second keyset is created.
func TestVolumeKeyIsASecret(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	plain, encrypted := volumeRecord("vol_0000000000000001"), fullVolume()
	for _, tt := range []struct {
		put  *journal.VolumeRecord
		want bool
	}{{plain, false}, {encrypted, true}} {
		commit(t, j, func(tx *journal.Tx) error { return tx.PutVolume(tt.put) })
		if has, err := j.HasSecrets(); err != nil || has != tt.want {
			t.Errorf("with volume %s it has secrets: %t, %v", tt.put.Volume.ID, has, err)
		}
	}
}

// stored returns the volume's name in the outbox.
func stored(r *journal.VolumeRecord) hangar.VolumeRef {
	return hangar.VolumeRef{AppID: r.Volume.AppID, ID: r.Volume.ID}
}
