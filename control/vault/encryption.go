package vault

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Encryption implements hangar.EncryptionService.
type Encryption struct {
	vault *Vault
	sole  func(context.Context) error // may be nil
}

var _ hangar.EncryptionService = (*Encryption)(nil)

// NewEncryption returns the service of the key of a Vault. sole refuses to replace the key where
// other servers have it, too; nil: none has.
func NewEncryption(v *Vault, sole func(context.Context) error) *Encryption {
	return &Encryption{v, sole}
}

// rotateTimeout bounds a rotation, which rewrites every secret of the platform.
const rotateTimeout = 30 * time.Minute

// RotateEncryptionKey implements hangar.EncryptionService.
func (e *Encryption) RotateEncryptionKey(ctx context.Context) (hangar.KeyRotation, error) {
	if err := tenants.NeedAdministrator(ctx, "replace the encryption key"); err != nil {
		return hangar.KeyRotation{}, err
	}
	if e.sole != nil {
		if err := e.sole(ctx); err != nil {
			return hangar.KeyRotation{}, err
		}
	}
	// It continues when the caller goes away: half a rotation is useless.
	ctx, cancel := finish.Within(ctx, rotateTimeout)
	defer cancel()
	return e.vault.rotate(ctx)
}

func (v *Vault) rotate(ctx context.Context) (hangar.KeyRotation, error) {
	reseal := []func(context.Context) (int, error){v.Reseal}
	for _, r := range v.others {
		reseal = append(reseal, r.Reseal)
	}
	done, err := v.keys.Rotate(ctx, reseal...)
	if err != nil {
		return hangar.KeyRotation{}, &hangar.Error{
			Code: hangar.CodeUnavailable, Err: err,
			Message: "The encryption key was not replaced everywhere, so that the old one is still in use too; try again to go on",
		}
	}
	v.log.Info("encryption key replaced", "key", done.Key, "resealed", done.Resealed, "dropped", done.Dropped)
	return hangar.KeyRotation{Key: done.Key, Resealed: done.Resealed, Dropped: done.Dropped}, nil
}

// ResumeRotation ends a rotation that a crash has interrupted. Until it can be ended
// both keys stay in use, so that a failure does no harm.
func (v *Vault) ResumeRotation(ctx context.Context) {
	if !v.keys.Interrupted() {
		return
	}
	if _, err := v.rotate(ctx); err != nil {
		v.log.Warn("the rotation of the encryption key is not finished yet", keyError, err)
	}
}
