// Package keyset encrypts what a server keeps secret, with keys that are in one file of its data
// directory.
//
// Promises. A sealed value is encrypted and authenticated with AES-256-GCM and bound to a label that
// says what it is, so that it cannot be decrypted in another place. The file is replaced as a whole,
// and is durable before anything is sealed with a key in it. A missing or damaged file is an error
// and never replaced by a new one: only Create makes keys, and it overwrites nothing. Rotate replaces
// the key, and may be killed at any moment: the old key stays in the file until everything was sealed
// again.
//
// Concurrency. A Keyset is safe for concurrent use. Callers seal and store a value within one Use. No
// key is added or dropped meanwhile, so that a rotation finds everything that was sealed before.
//
// The package does not know what is sealed, nor where it is stored. The keys are in the file in
// plaintext: anyone who can read the data directory as root can read everything.
package keyset

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/hangar-platform/hangar/internal/durable"
)

// File is the name of the file in a data directory.
const File = "keyset.json"

// Errors of Open, and of opening values. A missing file is fs.ErrNotExist.
var (
	ErrDamaged    = errors.New("the keyset is damaged")
	ErrUnknownKey = errors.New("sealed with a key that is not in the keyset")
	ErrUnreadable = errors.New("the sealed value is damaged, or belongs elsewhere")
)

// Keyset is the keys of a data directory.
type Keyset struct {
	path     string
	rotation sync.Mutex // held by the rotation in progress

	mu   sync.RWMutex // guards keys; held for reading within Use
	keys Keys
}

// Keys seal and open values. They are valid within the Use that provides them.
type Keys struct {
	handle *keyset.Handle
	aead   tink.AEAD
}

// Open reads the keyset at path. It returns fs.ErrNotExist, or ErrDamaged.
func Open(path string) (*Keyset, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	keys, err := newKeys(handle)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return &Keyset{path: path, keys: keys}, os.Chmod(path, 0o600)
}

// Create makes a keyset with one key at path, which must not exist yet.
func Create(path string) (*Keyset, error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make %s: %w", path, errors.Join(fs.ErrExist, err))
	}
	handle, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, err
	}
	k := &Keyset{path: path}
	return k, k.replace(handle)
}

func newKeys(handle *keyset.Handle) (Keys, error) {
	a, err := aead.New(handle)
	return Keys{handle: handle, aead: a}, err
}

// replace makes handle the keys, once they are durable. The caller holds mu, or is the only user.
func (k *Keyset) replace(handle *keyset.Handle) error {
	keys, err := newKeys(handle)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := insecurecleartextkeyset.Write(handle, keyset.NewJSONWriter(&b)); err != nil {
		return err
	}
	b.WriteByte('\n')
	if err := durable.WriteFile(k.path, b.Bytes(), 0o600); err != nil {
		return err
	}
	k.keys = keys
	return nil
}

// Use runs f with the keys. f must store what it seals before it returns, and must not call Use.
func (k *Keyset) Use(f func(keys Keys) error) error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return f(k.keys)
}

// Seal encrypts plain and binds it to a label.
func (k Keys) Seal(plain []byte, label ...string) ([]byte, error) {
	return k.aead.Encrypt(plain, encodeLabel(label))
}

// Open returns the value that was sealed under the same label. It returns ErrUnknownKey or
// ErrUnreadable.
func (k Keys) Open(sealed []byte, label ...string) ([]byte, error) {
	id, ok := keyOf(sealed)
	if !ok {
		return nil, ErrUnreadable
	}
	if !slices.Contains(k.ids(), id) {
		return nil, fmt.Errorf("%w: key %d", ErrUnknownKey, id)
	}
	plain, err := k.aead.Decrypt(sealed, encodeLabel(label))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return plain, nil
}

// Current reports whether sealed was sealed with the newest key.
func (k Keys) Current(sealed []byte) bool {
	id, ok := keyOf(sealed)
	return ok && id == k.Newest()
}

// Newest is the number of the key that Seal uses.
func (k Keys) Newest() uint32 {
	primary, err := k.handle.Primary()
	if err != nil {
		panic(err) // newKeys has refused a keyset without one
	}
	return primary.KeyID()
}

func (k Keys) ids() []uint32 {
	ids := make([]uint32, 0, k.handle.Len())
	for i := range k.handle.Len() {
		if entry, err := k.handle.Entry(i); err == nil {
			ids = append(ids, entry.KeyID())
		}
	}
	return ids
}

// A sealed value begins with a byte and the number of its key.
const (
	sealedVersion   = 1
	sealedPrefixLen = 5
)

func keyOf(sealed []byte) (uint32, bool) {
	if len(sealed) < sealedPrefixLen || sealed[0] != sealedVersion {
		return 0, false
	}
	return binary.BigEndian.Uint32(sealed[1:]), true
}

// encodeLabel joins the words of a label so that different labels have different encodings.
func encodeLabel(label []string) []byte {
	var b []byte
	for _, word := range label {
		b = binary.AppendUvarint(b, uint64(len(word)))
		b = append(b, word...)
	}
	return b
}

// Rotation is the result of a Rotate.
type Rotation struct {
	Key      uint32 // number of the key, from now on the only one
	Resealed int    // values that were sealed again
	Dropped  int    // removed keys
}

// Interrupted reports whether a rotation began and did not complete.
func (k *Keyset) Interrupted() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.keys.ids()) > 1
}

// Rotate makes a new key, seals everything with it, and drops the old keys. Each reseal function
// seals the values in one place that are not Current, stores them, and returns how many there were.
// If one fails, the old keys stay, and the next Rotate continues with the same new key.
func (k *Keyset) Rotate(ctx context.Context, reseal ...func(context.Context) (int, error)) (Rotation, error) {
	k.rotation.Lock()
	defer k.rotation.Unlock()
	if !k.Interrupted() {
		if err := k.change(addPrimary); err != nil {
			return Rotation{}, fmt.Errorf("make a new key: %w", err)
		}
	}
	var done Rotation
	for _, f := range reseal {
		n, err := f(ctx)
		done.Resealed += n
		if err != nil {
			return done, fmt.Errorf("reseal: %w", err)
		}
	}
	err := k.change(func(m *keyset.Manager, keys Keys) error {
		done.Key = keys.Newest()
		for _, id := range keys.ids() {
			if id == done.Key {
				continue
			}
			if err := m.Delete(id); err != nil {
				return err
			}
			done.Dropped++
		}
		return nil
	})
	if err != nil {
		return done, fmt.Errorf("drop the old key: %w", err)
	}
	return done, nil
}

func addPrimary(m *keyset.Manager, _ Keys) error {
	id, err := m.Add(aead.AES256GCMKeyTemplate())
	if err != nil {
		return err
	}
	return m.SetPrimary(id)
}

// change waits until the keys are not in use, and replaces them.
func (k *Keyset) change(f func(*keyset.Manager, Keys) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := keyset.NewManagerFromHandle(k.keys.handle)
	if err := f(m, k.keys); err != nil {
		return err
	}
	handle, err := m.Handle()
	if err != nil {
		return err
	}
	return k.replace(handle)
}
