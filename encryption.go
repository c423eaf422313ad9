package hangar

import "context"

// KeyRotation is what the replacement of the encryption key did.
type KeyRotation struct {
	Key      uint32 `json:"key_id"`       // of the new key, which is no secret
	Resealed int    `json:"resealed"`     // values that were encrypted anew
	Dropped  int    `json:"dropped_keys"` // keys that are gone
}

// EncryptionService is about the key with which a server encrypts the secrets that
// it keeps.
type EncryptionService interface {
	// RotateEncryptionKey makes a new key, encrypts everything with it, and drops the
	// old one. Only an administrator may do that. One that was interrupted goes on,
	// also by itself when the server starts again; until then both keys are in use.
	RotateEncryptionKey(ctx context.Context) (KeyRotation, error)
}

// Resealer keeps values that are encrypted.
type Resealer interface {
	// Reseal encrypts anew what is not encrypted with the newest key, and returns
	// how many values that were. It may be repeated.
	Reseal(ctx context.Context) (int, error)
}
