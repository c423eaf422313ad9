package hangar

import "context"

// KeyRotation is what the replacement of the encryption key did.
type KeyRotation struct {
	Key      uint32 `json:"key_id"`       // id of the new key, which is not secret
	Resealed int    `json:"resealed"`     // values that were re-encrypted
	Dropped  int    `json:"dropped_keys"` // old keys that were removed
}

// EncryptionService is about the key with which a server encrypts the secrets that
// it keeps.
type EncryptionService interface {
	// RotateEncryptionKey makes a new key, encrypts everything with it, and drops the
	// old one. Only an administrator may do that. An interrupted rotation is resumed by
	// the next call or when the server starts; until then both keys are in use.
	RotateEncryptionKey(ctx context.Context) (KeyRotation, error)
}

// Resealer keeps values that are encrypted.
type Resealer interface {
	// Reseal re-encrypts the values that are not encrypted with the newest key, and
	// returns their number. It may be repeated.
	Reseal(ctx context.Context) (int, error)
}
