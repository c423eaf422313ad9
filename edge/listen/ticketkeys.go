package listen

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/durable"
)

const (
	// keyRotation is for how long a key is the one of new tickets.
	keyRotation = 24 * time.Hour
	// keysKept is how many keys are accepted, so that a session can be resumed for two days at
	// least.
	keysKept = 3
)

// ticketKeys are the keys of TLS session tickets. They are in a file, so that a restart does
// not cost every client a full handshake.
type ticketKeys struct {
	path string // empty: they are not kept

	mu   sync.Mutex
	keys []ticketKey // newest first; never changed in place
}

// ticketKey is one from which those of Apps are derived.
type ticketKey struct {
	Created time.Time `json:"created"`
	Key     []byte    `json:"key"`
}

// open reads the file, if there is one. An unreadable file is replaced.
func (k *ticketKeys) open(now time.Time) error {
	if k.path != "" {
		data, err := os.ReadFile(k.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read keys of TLS sessions: %w", err)
		}
		if json.Unmarshal(data, &k.keys) != nil {
			k.keys = nil
		}
		for _, key := range k.keys {
			if len(key.Key) != sha256.Size {
				k.keys = nil
				break
			}
		}
	}
	return k.store(k.renew(now))
}

// rotate adds a key once in keyRotation, and calls changed then. It is called by one goroutine.
func (k *ticketKeys) rotate(now time.Time, log *slog.Logger, changed func()) {
	keys := k.renew(now)
	if keys == nil {
		return
	}
	changed() // without the lock, which changed may have others wait for
	if err := k.store(keys); err != nil {
		log.Warn("keys of TLS sessions are not kept", slog.Any("error", err))
	}
}

// renew adds a key if it is due, drops those that are too old, and returns what to store then; nil:
// nothing.
func (k *ticketKeys) renew(now time.Time) []ticketKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, key := range k.keys {
		if age := now.Sub(key.Created); i >= keysKept || age > keysKept*keyRotation || age < 0 {
			k.keys = k.keys[:i]
			break
		}
	}
	if len(k.keys) > 0 && now.Sub(k.keys[0].Created) < keyRotation {
		return nil
	}
	key := ticketKey{now.UTC(), make([]byte, sha256.Size)}
	_, _ = rand.Read(key.Key) // never fails
	k.keys = append([]ticketKey{key}, k.keys[:min(len(k.keys), keysKept-1)]...)
	return k.keys
}

// store writes keys to the file, if there are any to write, and a file.
func (k *ticketKeys) store(keys []ticketKey) error {
	if k.path == "" || keys == nil {
		return nil
	}
	data, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	return durable.WriteFile(k.path, data, 0o600)
}

// of returns the keys of an owner, whose sessions cannot be resumed with another.
func (k *ticketKeys) of(owner string) [][32]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make([][32]byte, len(k.keys))
	for i, key := range k.keys {
		keys[i] = key.derive(owner)
	}
	return keys
}

// derive returns a key for another purpose that may be forgotten as soon.
func (k *ticketKeys) derive(purpose string) [sha256.Size]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[len(k.keys)-1].derive(purpose)
}

func (k *ticketKey) derive(purpose string) (derived [sha256.Size]byte) {
	mac := hmac.New(sha256.New, k.Key)
	mac.Write([]byte(purpose))
	mac.Sum(derived[:0])
	return derived
}
