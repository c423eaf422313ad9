package auth

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// Account is what the tokens of a user depend on: a part of the user's record. Its ties are
// random and never the same again, so that what has ended does not come back with a new
// membership, whichever tokens a crash has left.
type Account struct {
	ID          hangar.UserID `json:"id"`
	Admin       string        `json:"admin,omitempty"` // the tie of an administrator of the platform; empty: none
	SignIns     string        `json:"sign_ins"`        // the tie of tokens that come from signing in
	Memberships []Membership  `json:"memberships,omitempty"`
}

// Membership is what a user is in an organization.
type Membership struct {
	hangar.Membership
	Tie string `json:"tie"` // of tokens that were made by it
}

// In returns the membership in an organization.
func (a *Account) In(org hangar.OrgID) (Membership, bool) {
	i := slices.IndexFunc(a.Memberships, func(m Membership) bool { return m.OrgID == org })
	if i < 0 {
		return Membership{}, false
	}
	return a.Memberships[i], true
}

// tie is what a token that the user makes for an organization depends on: being an
// administrator of the platform, or else the membership. Empty: the user may make none.
func (a *Account) tie(org hangar.OrgID) string {
	if a.Admin != "" {
		return a.Admin
	}
	m, _ := a.In(org)
	return m.Tie
}

// Backs reports whether a token of the user is good for anything.
func (a *Account) Backs(r *Record) bool {
	_, ok := r.principal(a)
	return ok
}

// memberships are those that a principal carries.
func (a *Account) memberships() []hangar.Membership {
	list := make([]hangar.Membership, 0, len(a.Memberships))
	for _, m := range a.Memberships {
		list = append(list, m.Membership)
	}
	return list
}

func (a *Account) check(id hangar.UserID) error {
	if a.ID != id || id == "" {
		return fmt.Errorf("record of user %q", a.ID)
	}
	if a.SignIns == "" {
		return errors.New("user without a tie of sign-ins")
	}
	for _, m := range a.Memberships {
		if m.OrgID == "" || m.Org == "" || m.Tie == "" {
			return errors.New("membership without an organization or a tie")
		}
		if err := m.Role.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// principal returns the principal of a token, given the account of its user, if it has one. It is
// the one place where the grant of a token is intersected with the rights of its user; false:
// nothing is left.
func (r *Record) principal(a *Account) (hangar.Principal, bool) {
	p := hangar.Principal{Subject: r.User, Tokens: []hangar.TokenID{r.ID}}
	switch {
	case r.Admin:
		p.Admin, p.User, p.SignedIn = true, hangar.UserAdmin, true
		return p, true
	case r.UserID == "":
		p.Grants = []hangar.Grant{r.Grant}
		return p, true
	case a == nil || r.Tie == "":
		return hangar.Principal{}, false
	}
	p.User = r.UserID
	switch r.Kind {
	case hangar.TokenLogin, hangar.TokenSession:
		p.SignedIn, p.Admin, p.Memberships = true, a.Admin != "", a.memberships()
		p.Grants = make([]hangar.Grant, 0, len(a.Memberships))
		for _, m := range a.Memberships {
			p.Grants = append(p.Grants, hangar.Grant{Org: m.Org, OrgID: m.OrgID, Actions: hangar.ActionAll, Until: r.Grant.Until, Role: m.Role})
		}
		return p, r.Tie == a.SignIns
	case hangar.TokenOAuth:
		m, _ := a.In(r.OrgID)
		if m.Tie != r.Tie || r.OAuth.SignIns != a.SignIns {
			return hangar.Principal{}, false
		}
		grant := r.Grant
		grant.Role, grant.Actions = m.Role, grant.Actions&hangar.ActionRead
		p.Client, p.Grants = r.OAuth.Client, []hangar.Grant{grant}
		return p, true
	default:
	}
	grant := r.Grant
	if r.Tie != a.Admin {
		m, _ := a.In(r.OrgID)
		if m.Tie != r.Tie {
			return hangar.Principal{}, false
		}
		grant.Role = m.Role
	}
	p.Grants = []hangar.Grant{grant}
	return p, true
}

// keeps reports whether after is allowed all that before is.
func keeps(before, after hangar.Principal) bool {
	return after.Admin || !before.Admin && !slices.ContainsFunc(before.Grants, func(g hangar.Grant) bool { return !after.Covers(g) })
}

// accountEntry is what is known of a user: the account, or (nil) that it is gone.
type accountEntry struct {
	*Account
	revision state.Revision
}

// accounts are the accounts of all users. Like those of tokens, its entries come from two sides;
// see memory, whose lock guards it.
type accounts struct {
	byID map[hangar.UserID]accountEntry
	seen state.Revision // up to which the feed was followed
}

// learnAccount takes what this process has written of a user; a nil account was deleted.
func (m *memory) learnAccount(id hangar.UserID, a *Account, revision state.Revision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision > m.users.seen {
		m.setAccount(id, a, revision)
	}
}

// setAccount replaces what is known of a user, unless that is newer, and ends the lives of tokens
// that allow less by that. The caller holds mu.
func (m *memory) setAccount(id hangar.UserID, a *Account, revision state.Revision) {
	old, known := m.users.byID[id]
	if known && old.revision >= revision {
		return
	}
	m.users.byID[id] = accountEntry{a, revision}
	for token, l := range m.lives {
		e := m.tokens[token]
		if e.Record == nil || e.UserID != id {
			continue
		}
		before, _ := e.principal(old.Account)
		if after, ok := e.principal(a); !ok || !keeps(before, after) {
			delete(m.lives, token)
			l.end()
		}
	}
}

// accountChange is one thing that the feed said.
type accountChange struct {
	id      hangar.UserID
	account *Account
	at      state.Revision
}

// followAccounts takes changes from the feed, which are all there were up to a revision. With all
// of them there are no other users.
func (m *memory) followAccounts(changes []accountChange, seen state.Revision, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := make(map[hangar.UserID]struct{}, len(changes))
	for _, c := range changes {
		there[c.id] = struct{}{}
		m.setAccount(c.id, c.account, c.at)
	}
	if all {
		for id := range m.users.byID {
			if _, ok := there[id]; !ok {
				m.setAccount(id, nil, seen)
			}
		}
	}
	m.users.seen = max(m.users.seen, seen)
	for id, e := range m.users.byID {
		if e.Account == nil && e.revision <= m.users.seen {
			delete(m.users.byID, id)
		}
	}
}

func (m *memory) accountsRevision() state.Revision {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.users.seen
}

// Tie returns what a token depends on that a user makes for an organization; empty: the user may
// make none.
func (m *memory) Tie(user hangar.UserID, org hangar.OrgID) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e := m.users.byID[user]; e.Account != nil {
		return e.tie(org)
	}
	return ""
}

// VoidTokens are the tokens that belong to users and allow nothing any more, because what they depend on
// has ended. A reason may be a user that this server does not know yet: before removing the tokens,
// the caller reads the user from the state.
func (m *memory) VoidTokens() []hangar.Token {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var list []hangar.Token
	for _, e := range m.tokens {
		if e.Record == nil || e.UserID == "" || e.Record.Admin {
			continue
		}
		if _, ok := e.principal(m.users.byID[e.UserID].Account); !ok {
			list = append(list, e.record().Token)
		}
	}
	return list
}

// OfUser are the tokens of one kind that belong to a user, the oldest first.
func (m *memory) OfUser(user hangar.UserID, kind hangar.TokenKind) []Record {
	m.mu.RLock()
	var list []Record
	for _, e := range m.tokens {
		if e.Record != nil && e.UserID == user && e.Kind == kind {
			list = append(list, e.record())
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Learn takes what this process has written of a user at a revision, so that it counts at once; a
// nil account was deleted.
func (t *Tokens) Learn(id hangar.UserID, a *Account, revision state.Revision) {
	t.learnAccount(id, a, revision)
}

func userOf(key string) hangar.UserID {
	return hangar.UserID(strings.TrimPrefix(key, state.UsersPrefix))
}

// parseAccount reads an account. One that makes no sense is logged, and its tokens open nothing.
func (t *Tokens) parseAccount(item state.Item) accountChange {
	c := accountChange{id: userOf(item.Key), at: item.Revision}
	var a Account
	err := json.Unmarshal(item.Value, &a)
	if err == nil {
		err = a.check(c.id)
	}
	if err != nil {
		t.cfg.Log.Error("user skipped", keyKey, item.Key, keyError, err)
		return c
	}
	c.account = &a
	return c
}
