package users

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/random"
)

// hashesAtOnce bounds the memory that passwords take of a server: each takes PasswordCost.Memory while
// it is computed.
const hashesAtOnce = 2

// PasswordCost is what it takes to compute the digest of a password by Argon2id.
type PasswordCost struct {
	Memory  uint32 // KiB
	Passes  uint32
	Threads uint8
}

// DefaultPasswordCost is what OWASP's Password Storage Cheat Sheet (section Argon2id, 2025) asks for
// at least: 19 MiB of memory, two passes, one thread.
var DefaultPasswordCost = PasswordCost{Memory: 19 << 10, Passes: 2, Threads: 1}

const (
	saltBytes   = 16
	digestBytes = 32

	// The bounds of parameters that are read, so that no record costs a server unbounded work.
	maxMemory = 1 << 20 // KiB
	maxPasses = 16
)

// hash is a password as it is kept.
type hash struct {
	PasswordCost
	salt, digest []byte
}

// String writes a hash in the PHC string format, as other implementations of Argon2 do.
func (h hash) String() string {
	encode := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.Memory, h.Passes, h.Threads, encode(h.salt), encode(h.digest))
}

// parseHash is the inverse of String.
func parseHash(text string) (h hash, err error) {
	fields := strings.Split(text, "$")
	const parts = 6
	if len(fields) != parts || fields[0] != "" || fields[1] != "argon2id" || fields[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return h, errors.New("digest of a password: not one of Argon2id")
	}
	if _, err := fmt.Sscanf(fields[3], "m=%d,t=%d,p=%d", &h.Memory, &h.Passes, &h.Threads); err != nil {
		return h, fmt.Errorf("digest of a password: %w", err)
	}
	if h.Memory < 8 || h.Memory > maxMemory || h.Passes < 1 || h.Passes > maxPasses || h.Threads < 1 {
		return h, errors.New("digest of a password: parameters out of bounds")
	}
	if h.salt, err = base64.RawStdEncoding.DecodeString(fields[4]); err == nil {
		h.digest, err = base64.RawStdEncoding.DecodeString(fields[5])
	}
	if err == nil && (len(h.salt) < saltBytes || len(h.digest) != digestBytes) {
		err = errors.New("too short")
	}
	if err != nil {
		return hash{}, fmt.Errorf("digest of a password: %w", err)
	}
	return h, nil
}

// unmatched returns a hash that no password has. It costs as much to compare as that of a user.
func (u *Users) unmatched() hash {
	return hash{u.PasswordCost, random.Bytes(saltBytes), random.Bytes(digestBytes)}
}

// compute waits for its turn, which it has among those of the same source, and computes the digest
// of a password.
func (u *Users) compute(ctx context.Context, source string, password hangar.Sensitive, cost PasswordCost, salt []byte) ([]byte, error) {
	release, err := u.hashes.Acquire(ctx, source)
	if err != nil {
		return nil, err
	}
	defer release()
	return argon2.IDKey([]byte(password.Reveal()), salt, cost.Passes, cost.Memory, cost.Threads, digestBytes), nil
}

// hashed returns a new hash of a password.
func (u *Users) hashed(ctx context.Context, source string, password hangar.Sensitive) (hash, error) {
	h := hash{PasswordCost: u.PasswordCost, salt: random.Bytes(saltBytes)}
	var err error
	h.digest, err = u.compute(ctx, source, password, h.PasswordCost, h.salt)
	return h, err
}

// matches reports whether a hash is that of a password.
func (u *Users) matches(ctx context.Context, source string, password hangar.Sensitive, h hash) (bool, error) {
	got, err := u.compute(ctx, source, password, h.PasswordCost, h.salt)
	return subtle.ConstantTimeCompare(got, h.digest) == 1, err
}

// passwordOf returns the hash of a user's password. One that is not there, or that cannot be read,
// matches no password.
func (u *Users) passwordOf(ctx context.Context, id hangar.UserID) (hash, state.Item, error) {
	item, err := u.Store.Get(ctx, ownedBy(state.PasswordsPrefix, id))
	if errors.Is(err, state.ErrNotFound) {
		return u.unmatched(), item, nil
	}
	if err != nil {
		return hash{}, item, state.HangarError(err)
	}
	h, err := parseHash(string(item.Value))
	if err != nil {
		u.Log.Error("password cannot be read", keyKey, item.Key, keyError, err)
		return u.unmatched(), item, nil
	}
	return h, item, nil
}

func putPassword(id hangar.UserID, h hash) state.Op {
	return state.Put(ownedBy(state.PasswordsPrefix, id), []byte(h.String()))
}

// SetPassword implements hangar.UserService.
func (u *Users) SetPassword(ctx context.Context, in hangar.PasswordChange) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	if !p.SignedIn {
		return hangar.Errorf(hangar.CodeForbidden, "", "Sign in to change the password: the token is not for all of a user")
	}
	if p.User == hangar.UserAdmin {
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The user %q has no password", p.User)
	}
	if err := hangar.CheckPassword("new", in.New); err != nil {
		return err
	}
	before, item, err := u.passwordOf(ctx, p.User)
	if err != nil {
		return err
	}
	source := string(p.User)
	right, err := u.matches(ctx, source, in.Current, before)
	if err != nil {
		return err
	}
	if !right {
		return hangar.Errorf(hangar.CodeForbidden, hangar.ReasonWrongPassword, "The current password is another one")
	}
	after, err := u.hashed(ctx, source, in.New)
	if err != nil {
		return err
	}
	_, err = u.change(ctx, p.User, func(rec *record, txn *state.Txn) error {
		now, err := u.Store.Get(ctx, item.Key)
		if errors.Is(err, state.ErrNotFound) || err == nil && now.Revision != item.Revision {
			return hangar.Errorf(hangar.CodeConflict, "", "The password was changed by another request")
		}
		if err != nil {
			return err
		}
		rec.SignIns = tie()
		txn.If, txn.Then = append(txn.If, state.Unchanged(item)), append(txn.Then, putPassword(rec.ID, after))
		return nil
	})
	if err == nil {
		u.revokeFallen(ctx, p.User)
	}
	return err
}

// resetRecord is the code of a password that is reset, as the state keeps it.
type resetRecord struct {
	User    hangar.UserID `json:"user"`
	Digest  []byte        `json:"digest"`
	Expires time.Time     `json:"expires_at"`
}

// ResetPassword implements hangar.UserService.
func (u *Users) ResetPassword(ctx context.Context, ref hangar.UserRef) (*hangar.PasswordReset, error) {
	if err := tenants.NeedAdministrator(ctx, "reset passwords"); err != nil {
		return nil, err
	}
	f, err := u.anyUser(ctx, ref)
	if err != nil {
		return nil, err
	}
	if f.ID == hangar.UserAdmin {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "", "The user %q has no password", f.ID)
	}
	code := newCode(resetCode, string(f.ID))
	reset := resetRecord{User: f.ID, Digest: auth.Digest(code), Expires: u.Now().UTC().Truncate(time.Second).Add(hangar.PasswordResetLifetime)}
	put, err := state.Write(ownedBy(state.ResetsPrefix, f.ID), reset)
	if err != nil {
		return nil, err
	}
	for {
		_, err = u.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(f.item)}, Then: []state.Op{put}})
		if err == nil {
			return &hangar.PasswordReset{Code: code, ExpiresAt: reset.Expires}, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
		if f, err = u.read(ctx, f.ID); err != nil {
			return nil, err
		}
	}
}

// useReset sets a password with the code of a reset. All tokens that came from signing in end, and so does
// the tie to an identity at the OpenID Connect provider.
func (u *Users) useReset(ctx context.Context, id hangar.UserID, in hangar.CodeUse) (*record, error) {
	reset, item, err := state.Read[resetRecord](ctx, u.Store, ownedBy(state.ResetsPrefix, id))
	if errors.Is(err, state.ErrNotFound) || err == nil && (!u.valid(in.Code, reset.Digest, reset.Expires) || reset.User != id) {
		return nil, codeInvalid()
	}
	if err != nil {
		return nil, state.HangarError(err)
	}
	h, err := u.hashed(ctx, string(id), in.Password)
	if err != nil {
		return nil, err
	}
	return u.change(ctx, id, func(rec *record, txn *state.Txn) error {
		now, err := u.Store.Get(ctx, item.Key)
		if errors.Is(err, state.ErrNotFound) || err == nil && now.Revision != item.Revision {
			return codeInvalid() // it was used by another request
		}
		if err != nil {
			return err
		}
		rec.SignIns = tie()
		txn.If = append(txn.If, state.Unchanged(item))
		txn.Then = append(txn.Then, putPassword(id, h), state.Delete(item.Key))
		if rec.Identity != "" {
			txn.Then = append(txn.Then, state.Delete(state.IdentitiesPrefix+rec.Identity))
			rec.Identity = ""
		}
		return nil
	})
}
