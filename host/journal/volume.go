package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// VolumeRecord is everything that a host knows of one volume: what others see of it, and what the
// host needs to continue after a kill at any moment. A record is written before its effect is caused.
type VolumeRecord struct {
	Volume hangar.Volume  `json:"volume"`
	Org    hangar.OrgSlug `json:"org"`
	OrgID  hangar.OrgID   `json:"org_id"`
	// Key encrypts the content of the volume. It is itself encrypted; the journal cannot decrypt it.
	// Empty: the volume is not encrypted, or its key was destroyed.
	Key []byte `json:"key,omitempty"`
	// Unfilled: the volume was in hangar.VolumeFailed, or not filled yet, when its user destroyed it.
	Unfilled bool `json:"unfilled,omitempty"`
	// Growing is the new size, in GiB, of a volume in hangar.VolumeExtending; 0: none.
	Growing int `json:"growing,omitempty"`
	// Formatted: the file system is complete.
	Formatted bool `json:"formatted,omitempty"`
	// Damaged is the reason why the volume cannot be opened or repaired; empty: none is known.
	Damaged string `json:"damaged,omitempty"`
	// Snapshots are newest first.
	Snapshots []hangar.Snapshot `json:"snapshots,omitempty"`
	// Discarded are snapshots that are not listed any more, but may still have content in the archive.
	Discarded []hangar.SnapshotID `json:"discarded,omitempty"`
	// Events are newest first, at most hangar.MaxVolumeEvents.
	Events []hangar.VolumeEvent `json:"events,omitempty"`
	// Seq is the number of the commit that wrote the record. PutVolume sets it.
	Seq uint64 `json:"seq"`
}

// PutVolume writes r, sets r.Seq to the number of this commit and marks the volume as unpublished. It
// refuses a record that could not be read back.
func (t *Tx) PutVolume(r *VolumeRecord) error {
	ref := r.Volume.Ref()
	key, err := keyOf("volume", string(ref.ID))
	if err != nil {
		return err
	}
	seq, err := t.begin()
	if err != nil {
		return err
	}
	stored := *r
	stored.Seq = seq
	value, err := json.Marshal(&stored)
	if err != nil {
		return fmt.Errorf("encode volume %s: %w", ref.ID, err)
	}
	if _, err := decodeVolume(value); err != nil {
		return fmt.Errorf("record of volume %s does not survive encoding: %w", ref.ID, err)
	}
	if err := t.tx.Bucket(bucketVolumes).Put(key, value); err != nil {
		return fmt.Errorf("write volume %s: %w", ref.ID, err)
	}
	r.Seq = seq
	return t.unpublished(ofVolume, string(ref.ID), seq, false, string(ref.AppID))
}

// DeleteVolume removes the record of a volume and marks a retraction as unpublished, even if there
// was no record.
func (t *Tx) DeleteVolume(ref hangar.VolumeRef) error {
	key, err := keyOf("volume", string(ref.ID))
	if err != nil {
		return err
	}
	seq, err := t.begin()
	if err != nil {
		return err
	}
	if err := t.tx.Bucket(bucketVolumes).Delete(key); err != nil {
		return fmt.Errorf("delete volume %s: %w", ref.ID, err)
	}
	return t.unpublished(ofVolume, string(ref.ID), seq, true, string(ref.AppID))
}

// Volume returns the record as this commit sees it, or ErrNotFound.
func (t *Tx) Volume(id hangar.VolumeID) (*VolumeRecord, error) {
	if t.tx == nil {
		return nil, errTxEnded
	}
	return readVolume(t.tx, id)
}

// Volume returns the record of a volume, or ErrNotFound. A record that does not parse is logged,
// counted and not found.
func (j *Journal) Volume(id hangar.VolumeID) (*VolumeRecord, error) {
	var r *VolumeRecord
	err := j.view(func(tx *bolt.Tx) (err error) {
		r, err = readVolume(tx, id)
		return err
	})
	if errors.Is(err, errUnreadable) {
		j.skippedVolume(id, err)
		return nil, fmt.Errorf("volume %s: %w", id, ErrNotFound)
	}
	return r, err
}

func (j *Journal) skippedVolume(id hangar.VolumeID, err error) {
	j.unreadable.Add(1)
	j.log.Error("journal entry is unreadable, skipped", "what", "volume", "volume", string(id), "error", err)
}

// volumesPerRead bounds how long Volumes keeps a read transaction open.
const volumesPerRead = 256

// Volumes yields every record, sorted by id, until yield fails, and returns its error. A record that
// does not parse is logged, counted and skipped; VolumeIDs still returns its id. yield may use the
// Journal.
func (j *Journal) Volumes(yield func(*VolumeRecord) error) error {
	var after []byte
	for more := true; more; {
		var batch []*VolumeRecord
		err := j.view(func(tx *bolt.Tx) error {
			c := tx.Bucket(bucketVolumes).Cursor()
			k, v := c.Seek(after)
			if after != nil && bytes.Equal(k, after) {
				k, v = c.Next()
			}
			n := 0
			for ; k != nil && n < volumesPerRead; k, v = c.Next() {
				n++
				after = bytes.Clone(k)
				r, err := decodeVolume(v)
				if err != nil {
					j.skippedVolume(hangar.VolumeID(k), err)
					continue
				}
				batch = append(batch, r)
			}
			more = k != nil
			return nil
		})
		if err != nil {
			return err
		}
		for _, r := range batch {
			if err := yield(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// VolumeIDs returns the ids of all volumes with a record, sorted. They include those whose record
// does not parse, because such a volume still owns resources on the host.
func (j *Journal) VolumeIDs() ([]hangar.VolumeID, error) {
	var ids []hangar.VolumeID
	err := j.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketVolumes).ForEach(func(k, _ []byte) error {
			ids = append(ids, hangar.VolumeID(k))
			return nil
		})
	})
	return ids, err
}

func readVolume(tx *bolt.Tx, id hangar.VolumeID) (*VolumeRecord, error) {
	v := tx.Bucket(bucketVolumes).Get([]byte(id))
	if v == nil {
		return nil, fmt.Errorf("volume %s: %w", id, ErrNotFound)
	}
	r, err := decodeVolume(v)
	if err != nil {
		return nil, fmt.Errorf("decode volume %s: %w: %w", id, errUnreadable, err)
	}
	return r, nil
}

func decodeVolume(value []byte) (*VolumeRecord, error) {
	r := new(VolumeRecord)
	if err := json.Unmarshal(value, r); err != nil {
		return nil, err
	}
	return r, nil
}
