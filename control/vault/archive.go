package vault

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

const archivePasswordKey = state.ArchivePrefix + "password"

// archivePasswordSize is in bytes.
const archivePasswordSize = 32

// ArchivePassword is the password of the archive of snapshots. All servers that share a
// state share it. It is made once and encrypted like a secret: snapshots cannot be read
// without the keyset of the servers.
type ArchivePassword struct{ vault *Vault }

// NewArchivePassword returns the password of the archive that belongs to the state of a Vault.
func NewArchivePassword(v *Vault) *ArchivePassword {
	return &ArchivePassword{v}
}

// Password returns the password, and makes it on the first call. It answers
// CodeUnavailable while the state cannot be reached.
func (a *ArchivePassword) Password(ctx context.Context) ([]byte, error) {
	for {
		var password []byte
		err := a.vault.Get(ctx, archivePasswordKey, &password)
		if !errors.Is(err, state.ErrNotFound) {
			return password, state.HangarError(err)
		}
		err = a.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			fresh := make([]byte, archivePasswordSize)
			_, _ = rand.Read(fresh) // never fails: crypto/rand.Read aborts the program instead
			put, err := Sealed(keys, archivePasswordKey, fresh)
			return state.Txn{If: []state.Compare{state.Absent(archivePasswordKey)}, Then: []state.Op{put}}, err
		})
		// The first password that was stored is the one for all.
		if err != nil && !errors.Is(err, state.ErrConflict) {
			return nil, &hangar.Error{Code: hangar.CodeOf(state.HangarError(err)), Message: "The password of the archive of snapshots cannot be stored", Err: err}
		}
	}
}
