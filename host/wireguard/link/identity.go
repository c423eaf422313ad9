package link

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// PrivateKey is one of WireGuard.
type PrivateKey [32]byte

// Public is the key that peers know its owner by.
func (k PrivateKey) Public() hangar.PeerKey {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return "" // any 32 bytes are a key
	}
	return hangar.PeerKey(base64.StdEncoding.EncodeToString(private.PublicKey().Bytes()))
}

// Identity is what a device keeps for as long as its data directory lasts: others know it by that.
type Identity struct {
	Key  []byte `json:"private_key"`
	Port uint16 `json:"port,omitempty"` // 0: the port is configured
}

// PrivateKey is the key as Open wants it.
func (i Identity) PrivateKey() PrivateKey { return PrivateKey(i.Key) }

// LoadIdentity reads the identity in a file, or makes one. A file that cannot be read is not
// replaced: with another key no peer could connect any more.
func LoadIdentity(path string) (Identity, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		made := Identity{Key: make([]byte, 32)}
		_, _ = rand.Read(made.Key) // never fails: crypto/rand.Read aborts the program instead
		return made, made.Save(path)
	}
	if err != nil {
		return Identity{}, err
	}
	var i Identity
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("read %s: %w", path, err)
	}
	if len(i.Key) != 32 {
		return i, fmt.Errorf("read %s: the private key has %d bytes, must have 32", path, len(i.Key))
	}
	return i, nil
}

// Save writes the identity to a file of mode 0600.
func (i Identity) Save(path string) error {
	b, err := json.Marshal(i) //nolint:gosec // G117: it is what the file is for
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'), 0o600)
}
