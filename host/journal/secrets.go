package journal

import (
	"bytes"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// SealedSecrets are the secrets of one version of a Machine, encrypted; the journal cannot decrypt
// them. They are separate from the record, which every step of a Machine rewrites.
type SealedSecrets struct {
	Machine hangar.MachineID
	Version hangar.InstanceID
	Sealed  []byte
}

// secretsPrefix begins all keys of a Machine.
func secretsPrefix(id hangar.MachineID) []byte { return append([]byte(id), 0) }

func secretsKey(id hangar.MachineID, version hangar.InstanceID) []byte {
	return append(secretsPrefix(id), version...)
}

// PutSecrets stores the secrets of a version of a Machine, replacing earlier ones.
func (t *Tx) PutSecrets(s SealedSecrets) error {
	if _, err := machineKey(s.Machine); err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	if err := t.tx.Bucket(bucketSecrets).Put(secretsKey(s.Machine, s.Version), s.Sealed); err != nil {
		return fmt.Errorf("write secrets of machine %s: %w", s.Machine, err)
	}
	return nil
}

// ReplaceSecrets is PutSecrets, but only if before is the stored value of the version.
func (t *Tx) ReplaceSecrets(before []byte, s SealedSecrets) error {
	if t.tx == nil {
		return errTxEnded
	}
	if !bytes.Equal(t.tx.Bucket(bucketSecrets).Get(secretsKey(s.Machine, s.Version)), before) {
		return nil
	}
	return t.PutSecrets(s)
}

// KeepSecrets removes the secrets of all versions of a Machine except for those given.
func (t *Tx) KeepSecrets(id hangar.MachineID, versions ...hangar.InstanceID) error {
	if t.tx == nil {
		return errTxEnded
	}
	b := t.tx.Bucket(bucketSecrets)
	prefix := secretsPrefix(id)
	var gone [][]byte
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if !slices.Contains(versions, hangar.InstanceID(k[len(prefix):])) {
			gone = append(gone, bytes.Clone(k))
		}
	}
	for _, k := range gone {
		if _, err := t.begin(); err != nil {
			return err
		}
		if err := b.Delete(k); err != nil {
			return fmt.Errorf("delete secrets of machine %s: %w", id, err)
		}
	}
	return nil
}

// Secrets returns the secrets of a version of a Machine, or ErrNotFound.
func (j *Journal) Secrets(id hangar.MachineID, version hangar.InstanceID) ([]byte, error) {
	var sealed []byte
	err := j.view(func(tx *bolt.Tx) error {
		sealed = bytes.Clone(tx.Bucket(bucketSecrets).Get(secretsKey(id, version)))
		return nil
	})
	if err == nil && sealed == nil {
		err = ErrNotFound
	}
	return sealed, err
}

// secretsPerRead bounds how many secrets AllSecrets holds in memory.
const secretsPerRead = 64

// AllSecrets yields the secrets of all Machines in batches, until yield fails, and returns its error.
// yield may use the Journal.
func (j *Journal) AllSecrets(yield func([]SealedSecrets) error) error {
	var after []byte
	for {
		var batch []SealedSecrets
		err := j.view(func(tx *bolt.Tx) error {
			c := tx.Bucket(bucketSecrets).Cursor()
			k, v := c.Seek(after)
			if after != nil && bytes.Equal(k, after) {
				k, v = c.Next()
			}
			for ; k != nil && len(batch) < secretsPerRead; k, v = c.Next() {
				after = bytes.Clone(k)
				if id, version, ok := bytes.Cut(k, []byte{0}); ok {
					batch = append(batch, SealedSecrets{hangar.MachineID(id), hangar.InstanceID(version), bytes.Clone(v)})
				}
			}
			return nil
		})
		if err != nil || len(batch) == 0 {
			return err
		}
		if err := yield(batch); err != nil {
			return err
		}
	}
}

// HasSecrets reports whether the journal has the secrets of any Machine, or the key of any volume.
func (j *Journal) HasSecrets() (found bool, err error) {
	err = j.view(func(tx *bolt.Tx) error {
		k, _ := tx.Bucket(bucketSecrets).Cursor().First()
		if found = k != nil; found {
			return nil
		}
		volumes := tx.Bucket(bucketVolumes).Cursor()
		for k, v := volumes.First(); k != nil && !found; k, v = volumes.Next() {
			r, err := decodeVolume(v)
			found = err != nil || len(r.Key) > 0 // an unreadable record may have a key
		}
		return nil
	})
	return found, err
}
