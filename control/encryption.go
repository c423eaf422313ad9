package control

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Encryption implements hangar.EncryptionService.
type Encryption struct{ *Control }

var _ hangar.EncryptionService = (*Encryption)(nil)

// rotateTimeout bounds a rotation, which writes every secret of the platform anew.
const rotateTimeout = 30 * time.Minute

// RotateEncryptionKey implements hangar.EncryptionService.
func (e *Encryption) RotateEncryptionKey(ctx context.Context) (hangar.KeyRotation, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err != nil {
		return hangar.KeyRotation{}, err
	}
	if !p.Admin {
		return hangar.KeyRotation{}, hangar.Errorf(hangar.CodeForbidden, "", "Only an administrator may replace the encryption key")
	}
	// Half a rotation helps nobody, so it goes on when the caller goes away.
	ctx, cancel := finish.Within(ctx, rotateTimeout)
	defer cancel()
	return e.rotate(ctx)
}

func (c *Control) rotate(ctx context.Context) (hangar.KeyRotation, error) {
	reseal := []func(context.Context) (int, error){c.vault.Reseal}
	for _, r := range c.sealed {
		reseal = append(reseal, r.Reseal)
	}
	done, err := c.vault.keys.Rotate(ctx, reseal...)
	if err != nil {
		return hangar.KeyRotation{}, &hangar.Error{
			Code: hangar.CodeUnavailable, Err: err,
			Message: "The encryption key was not replaced everywhere, so that the old one is still in use too; try again to go on",
		}
	}
	c.log.Info("encryption key replaced", "key", done.Key, "resealed", done.Resealed, "dropped", done.Dropped)
	return hangar.KeyRotation{Key: done.Key, Resealed: done.Resealed, Dropped: done.Dropped}, nil
}

// healRotation ends a rotation that a crash has interrupted. Until it can be ended
// both keys stay in use, so that a failure does no harm.
func (c *Control) healRotation(ctx context.Context) {
	if !c.vault.keys.Interrupted() {
		return
	}
	if _, err := c.rotate(ctx); err != nil {
		c.log.Warn("the rotation of the encryption key is not finished yet", keyError, err)
	}
}
