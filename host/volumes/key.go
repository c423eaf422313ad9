package volumes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// keySize is the size of the key of a volume, in bytes.
const keySize = 32

// labelOfVolume binds a key to the volume that it opens.
func labelOfVolume(id hangar.VolumeID) []string { return []string{"volume", string(id)} }

// keys encrypts the keys of volumes for the journal.
type keys struct {
	index  *index
	keyset *keyset.Keyset
	log    *slog.Logger
}

// sealing runs commit with a new, encrypted key for a volume; nil for a volume that is not
// encrypted.
func (k *keys) sealing(id hangar.VolumeID, encrypted bool, commit func(sealed []byte) error) error {
	if !encrypted {
		return commit(nil)
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: crypto/rand.Read aborts the program instead
	return k.keyset.Use(func(keys keyset.Keys) error {
		sealed, err := keys.Seal(key, labelOfVolume(id)...)
		if err != nil {
			return fmt.Errorf("encrypt the key of volume %s: %w", id, err)
		}
		return commit(sealed)
	})
}

// spec returns the spec of a volume's image.
func (s *Store) spec(rec *journal.VolumeRecord) (devices.Spec, error) {
	id := rec.Volume.ID
	spec := devices.Spec{ID: id, Size: int64(rec.Volume.SizeGB) << 30, Allocate: s.o.Overcommit <= 1}
	if !rec.Volume.Encrypted {
		return spec, nil
	}
	err := s.keyset.Use(func(keys keyset.Keys) (err error) {
		spec.Key, err = keys.Open(rec.Key, labelOfVolume(id)...)
		return err
	})
	if err != nil {
		return spec, &hangar.Error{
			Code: hangar.CodeInternal, Reason: hangar.ReasonVolumeDamaged, Err: fmt.Errorf("key of volume %s: %w", id, err),
			Message: "the key of volume " + string(id) + " cannot be read on its host",
		}
	}
	return spec, nil
}

// Reseal implements hangar.Resealer for the keys of volumes.
func (k *keys) Reseal(ctx context.Context) (resealed int, err error) {
	for _, v := range k.index.all() {
		if err := ctx.Err(); err != nil {
			return resealed, err
		}
		done, err := k.reseal(v)
		if err != nil {
			return resealed, err
		}
		if done {
			resealed++
		}
	}
	if len(k.index.unread) > 0 {
		// The repair of the record needs the key that opens its content.
		return resealed, errors.New("the record of a volume cannot be read, so its key is not encrypted again")
	}
	return resealed, nil
}

func (k *keys) reseal(v *volume) (done bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.rec.Load().Key
	if len(before) == 0 {
		return false, nil
	}
	err = k.keyset.Use(func(keys keyset.Keys) error {
		if keys.Current(before) {
			return nil
		}
		key, err := keys.Open(before, labelOfVolume(v.id)...)
		if err != nil {
			k.log.Error("key of a volume skipped", keyVolume, v.id, keyError, err)
			return nil
		}
		sealed, err := keys.Seal(key, labelOfVolume(v.id)...)
		if err != nil {
			return err
		}
		_, err = v.commit(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
			next.Key = sealed
			return nil
		})
		done = err == nil
		return err
	})
	return done, err
}
