package machines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// secrets encrypts the secrets of Machines for the journal.
type secrets struct {
	journal *journal.Journal
	keys    *keyset.Keyset
	log     *slog.Logger
}

// labelOf binds sealed values to their Machine and its version.
func labelOf(id hangar.MachineID, version hangar.InstanceID) []string {
	return []string{"journal", string(id), string(version)}
}

// sealing runs commit with the encrypted secrets of a version of a Machine, or nil if it has none.
func (s *secrets) sealing(
	id hangar.MachineID, version hangar.InstanceID, secrets hangar.SecretValues, commit func(*journal.SealedSecrets) error,
) error {
	if secrets.Version == 0 {
		return commit(nil)
	}
	plain := make(map[string]string, len(secrets.Values))
	for name, value := range secrets.Values {
		plain[name] = value.Reveal()
	}
	raw, err := json.Marshal(plain)
	if err != nil {
		return err
	}
	return s.keys.Use(func(keys keyset.Keys) error {
		sealed, err := keys.Seal(raw, labelOf(id, version)...)
		if err != nil {
			return fmt.Errorf("encrypt the secrets of machine %s: %w", id, err)
		}
		return commit(&journal.SealedSecrets{Machine: id, Version: version, Sealed: sealed})
	})
}

func putSecrets(tx *journal.Tx, secrets *journal.SealedSecrets) error {
	if secrets == nil {
		return nil
	}
	return tx.PutSecrets(*secrets)
}

// keepSecrets keeps in the journal the secrets that a Machine may still boot with: those of its
// version and, during an update, of the previous one.
func keepSecrets(tx *journal.Tx, rec *journal.Record) error {
	switch {
	case rec.Previous != nil:
		return tx.KeepSecrets(rec.Machine.ID, rec.Machine.InstanceID, rec.Previous.InstanceID)
	default:
		return tx.KeepSecrets(rec.Machine.ID, rec.Machine.InstanceID)
	}
}

// reveal returns the secrets in the environment of a Machine's current version.
func (s *secrets) reveal(m *hangar.Machine) (map[string]string, error) {
	if m.SecretsVersion == 0 {
		return nil, nil
	}
	var values map[string]string
	err := s.keys.Use(func(keys keyset.Keys) error {
		sealed, err := s.journal.Secrets(m.ID, m.InstanceID)
		if err != nil {
			return err
		}
		raw, err := keys.Open(sealed, labelOf(m.ID, m.InstanceID)...)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &values)
	})
	if err != nil {
		return nil, &hangar.Error{
			Code: hangar.CodeInternal, Message: "The secrets of this version of the machine cannot be read on its host; update the machine to set its secrets again",
			Err: fmt.Errorf("secrets of machine %s: %w", m.ID, err),
		}
	}
	return values, nil
}

// Reseal implements hangar.Resealer. A value that no key opens is kept and logged.
func (s *secrets) Reseal(ctx context.Context) (resealed int, err error) {
	err = s.journal.AllSecrets(func(batch []journal.SealedSecrets) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return s.keys.Use(func(keys keyset.Keys) error {
			n, err := s.reseal(keys, batch)
			resealed += n
			return err
		})
	})
	return resealed, err
}

// reseal seals some of the values of the journal again, in one commit.
func (s *secrets) reseal(keys keyset.Keys, batch []journal.SealedSecrets) (int, error) {
	type pair struct {
		before []byte
		after  journal.SealedSecrets
	}
	var pairs []pair
	for _, before := range batch {
		if keys.Current(before.Sealed) {
			continue
		}
		label := labelOf(before.Machine, before.Version)
		raw, err := keys.Open(before.Sealed, label...)
		if err != nil {
			s.log.Error("secrets of a machine skipped", keyMachine, before.Machine, keyError, err)
			continue
		}
		after := before
		if after.Sealed, err = keys.Seal(raw, label...); err != nil {
			return 0, err
		}
		pairs = append(pairs, pair{before.Sealed, after})
	}
	if len(pairs) == 0 {
		return 0, nil
	}
	return len(pairs), s.journal.Commit(func(tx *journal.Tx) error {
		var errs []error
		for _, p := range pairs {
			errs = append(errs, tx.ReplaceSecrets(p.before, p.after))
		}
		return errors.Join(errs...)
	})
}
