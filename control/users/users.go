// Package users keeps the users of the platform: their memberships, passwords and invitations.
//
// Promises. Every change is one transaction that compares what it read, so that two concurrent ones
// never make a member of a deleted organization, or two users of one e-mail address. What a
// membership has allowed ends with its record: tokens name its tie (see auth.Account), which is
// unique to it; their own records are removed afterwards, or by Open after a crash. Of passwords and
// codes only digests are kept. Signing in takes the same work and has the same answer whether there
// is such a user or not, and at most hashesAtOnce passwords are computed at a time, shared fairly
// between clients.
//
// Concurrency. Users is safe for concurrent use. The package keeps nothing in memory.
//
// It decides who manages users; package auth decides what a user's token allows elsewhere. It sends
// no mail: codes go to the caller that asked for them. The caller also limits the rate of attempts.
package users

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/random"
)

const (
	keyKey   = "key"
	keyUser  = "user"
	keyError = "error"
)

// Config is what Users need.
type Config struct {
	Store   state.Store
	Tenants *tenants.Directory
	Ledger  *ledger.Ledger
	Tokens  *auth.Tokens
	// Revoke removes the record of a token, and takes it off what its organization uses.
	Revoke func(ctx context.Context, token *hangar.Token) error
	Domain hangar.Hostname // customer addresses are below it; empty: localhost
	Log    *slog.Logger
	Now    func() time.Time
	// PasswordCost is that of new digests; the zero value means DefaultPasswordCost.
	PasswordCost PasswordCost
}

// Users implements hangar.UserService and, by Door, hangar.SignInService.
type Users struct {
	Config
	hashes *fairsem.Semaphore[string] // slots of computing a password's digest
}

var _ hangar.UserService = (*Users)(nil)

// New returns Users that have read nothing yet.
func New(cfg Config) *Users {
	if cfg.Domain == "" {
		cfg.Domain = "localhost"
	}
	if cfg.PasswordCost == (PasswordCost{}) {
		cfg.PasswordCost = DefaultPasswordCost
	}
	return &Users{Config: cfg, hashes: fairsem.New[string](hashesAtOnce)}
}

// record is a user as the state keeps it.
type record struct {
	auth.Account
	Name     string    `json:"name"`
	Email    string    `json:"email,omitempty"`
	Customer string    `json:"customer"` // what is before the @ of the customer address
	Created  time.Time `json:"created_at"`
	// Identity is the digest of who the user is at the OpenID Connect provider: see identityOf.
	Identity string `json:"identity,omitempty"`
}

// found is the record of a user with the item that it was read from.
type found struct {
	record
	item state.Item
}

// owner is what a key of the state says that belongs to a user.
type owner struct {
	User hangar.UserID `json:"user"`
}

func emailKey(email string) string { return state.EmailsPrefix + strings.ToLower(email) }

func ownedBy(prefix string, id hangar.UserID) string { return prefix + string(id) }

// tie is one that nothing has had.
func tie() string { return random.ID() }

// Upkeep is what the platform does by itself with users. It asks for no principal.
type Upkeep struct{ users *Users }

// Upkeep returns the part of Users that asks for no principal.
func (u *Users) Upkeep() Upkeep { return Upkeep{u} }

// Open makes the built-in user, and finishes what a crash interrupted.
func (k Upkeep) Open(ctx context.Context) error {
	u := k.users
	if err := u.ensureAdmin(ctx); err != nil {
		return fmt.Errorf("user %s: %w", hangar.UserAdmin, err)
	}
	if err := u.sweep(ctx, ""); err != nil {
		return fmt.Errorf("invitations: %w", err)
	}
	k.Heal(ctx)
	return nil
}

// Heal removes tokens that have become void and could not be removed then: they still count.
func (k Upkeep) Heal(ctx context.Context) { k.users.revokeFallen(ctx, "") }

func (u *Users) ensureAdmin(ctx context.Context) error {
	for {
		_, err := u.Store.Get(ctx, state.UserKey(hangar.UserAdmin))
		if !errors.Is(err, state.ErrNotFound) {
			return err
		}
		rec := record{Account: auth.Account{ID: hangar.UserAdmin, Admin: tie(), SignIns: tie()}, Name: "Administrator"}
		if _, err := u.create(ctx, rec, state.Txn{}); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}

// create makes a user, in one transaction with another.
func (u *Users) create(ctx context.Context, rec record, txn state.Txn) (*record, error) {
	rec.Customer, rec.Created = random.ID(), u.Now().UTC().Truncate(time.Second)
	keys := []string{state.CustomersPrefix + rec.Customer}
	if rec.Email != "" {
		keys = append(keys, emailKey(rec.Email))
	}
	if rec.Identity != "" {
		keys = append(keys, state.IdentitiesPrefix+rec.Identity)
	}
	for _, key := range keys {
		put, err := state.Write(key, owner{rec.ID})
		if err != nil {
			return nil, err
		}
		txn.If, txn.Then = append(txn.If, state.Absent(key)), append(txn.Then, put)
	}
	put, err := state.Write(state.UserKey(rec.ID), rec)
	if err != nil {
		return nil, err
	}
	txn.If, txn.Then = append(txn.If, state.Absent(put.Key)), append(txn.Then, put)
	revision, err := u.Store.Txn(ctx, txn)
	if err != nil {
		return nil, err
	}
	u.Tokens.Learn(rec.ID, &rec.Account, revision)
	return &rec, nil
}

// change changes a user by what edit makes of the record and adds to the transaction. It repeats
// that when the user was changed meanwhile.
func (u *Users) change(ctx context.Context, id hangar.UserID, edit func(rec *record, txn *state.Txn) error) (*record, error) {
	for {
		was, err := u.read(ctx, id)
		if err != nil {
			return nil, err
		}
		rec, txn := was.record, state.Txn{If: []state.Compare{state.Unchanged(was.item)}}
		if err := edit(&rec, &txn); err != nil {
			return nil, state.HangarError(err)
		}
		put, err := state.Write(was.item.Key, rec)
		if err != nil {
			return nil, err
		}
		txn.Then = append(txn.Then, put)
		revision, err := u.Store.Txn(ctx, txn)
		if err == nil {
			u.Tokens.Learn(id, &rec.Account, revision)
			return &rec, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// read returns a user by id.
func (u *Users) read(ctx context.Context, id hangar.UserID) (found, error) {
	if id == "" || strings.Contains(string(id), "/") {
		return found{}, hangar.UserNotFound(hangar.UserRef(id))
	}
	rec, item, err := state.Read[record](ctx, u.Store, state.UserKey(id))
	if errors.Is(err, state.ErrNotFound) {
		return found{}, hangar.UserNotFound(hangar.UserRef(id))
	}
	return found{rec, item}, state.HangarError(err)
}

// lookup returns the user whom a key belongs to: of an e-mail address, or of a customer address.
// name is what the caller has asked for.
func (u *Users) lookup(ctx context.Context, key string, name hangar.UserRef) (found, error) {
	for revision := state.Revision(0); ; {
		of, item, err := state.Read[owner](ctx, u.Store, key)
		if errors.Is(err, state.ErrNotFound) {
			return found{}, hangar.UserNotFound(name)
		}
		if err != nil {
			return found{}, state.HangarError(err)
		}
		f, err := u.read(ctx, of.User)
		switch {
		case hangar.CodeOf(err) != hangar.CodeNotFound:
			return f, err
		case item.Revision == revision:
			// Not found would have callers make a user, which conflicts with the key each time.
			return found{}, state.Damaged(key, fmt.Errorf("there is no user %q", of.User))
		}
		revision = item.Revision // a user who was removed meanwhile took the key along
	}
}

// anyUser returns a user by id or e-mail address, without a check of access.
func (u *Users) anyUser(ctx context.Context, ref hangar.UserRef) (found, error) {
	switch {
	case !strings.Contains(string(ref), "@"):
		return u.read(ctx, hangar.UserID(ref))
	case hangar.CheckEmail(string(ref)) != nil:
		return found{}, hangar.UserNotFound(ref)
	default:
		return u.lookup(ctx, emailKey(string(ref)), ref)
	}
}

// revokeFallen removes the tokens of a user, or of all, that allow nothing any more. They are void
// already: what cannot be removed now, Heal will.
func (u *Users) revokeFallen(ctx context.Context, user hangar.UserID) {
	for _, token := range u.Tokens.VoidTokens() {
		if user != "" && token.UserID != user {
			continue
		}
		void, err := u.isVoid(ctx, token.ID)
		if err == nil && void {
			err = u.Revoke(ctx, &token)
		}
		if err != nil {
			u.Log.Warn("the token of a user is void and not removed yet", "token", token.ID, keyUser, token.UserID, keyError, err)
		}
	}
}

// isVoid asks the state whether a token allows nothing any more: this server may not have heard
// of what it depends on.
func (u *Users) isVoid(ctx context.Context, id hangar.TokenID) (bool, error) {
	token, _, err := state.Read[auth.Record](ctx, u.Store, auth.Prefix+string(id))
	if errors.Is(err, state.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	item, err := u.Store.Get(ctx, state.UserKey(token.UserID))
	if errors.Is(err, state.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var account auth.Account
	if err := json.Unmarshal(item.Value, &account); err != nil {
		return false, err // an unreadable record may be repaired
	}
	return !account.Backs(&token), nil
}
