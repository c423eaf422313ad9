package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Tokens implements hangar.TokenService.
type Tokens struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	rows    *Rows
	tokens  *auth.Tokens
	now     func() time.Time
}

var _ hangar.TokenService = (*Tokens)(nil)

// CreateToken implements hangar.TokenService.
func (t *Tokens) CreateToken(ctx context.Context, in hangar.TokenCreate) (*hangar.NewToken, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		if in.Org, err = t.orgOf(ctx, p, in.Apps); err != nil {
			return nil, err
		}
	}
	token := hangar.Token{Name: in.Name, Kind: in.Kind, User: in.User, CreatedBy: p.Subject}
	if p.User != hangar.UserAdmin {
		token.UserID = p.User
	}
	if token.Grant, err = in.GrantOf(t.now()); err != nil {
		return nil, err
	}
	if token.Name == "" {
		token.Name = string(in.Kind) + " token"
	}
	switch {
	case token.User == "":
		token.User = p.Subject
	case token.User != p.Subject && !p.May(hangar.ActionWrite, t.named(ctx, in.Org)):
		return nil, hangar.Errorf(hangar.CodeForbidden, "", "Only who may change the organization may make tokens for other users")
	}
	for field, title := range map[string]string{"name": token.Name, "user": token.User} {
		if fault := tenants.TitleFault(title); fault != "" {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid %s: %s", field, fault)
		}
	}
	for {
		org, unchanged, err := t.mayHandOut(ctx, p, &token.Grant, in.Expiry == "")
		if err != nil {
			return nil, err
		}
		tie := ""
		if token.UserID != "" {
			if tie = t.tokens.Tie(token.UserID, org.ID); tie == "" {
				return nil, tenants.Denied(p, tenants.OrgTarget(org.Org)) // the membership has just ended
			}
		}
		txn := state.Txn{If: []state.Compare{unchanged}}
		if err := t.ledger.Charge(ctx, &org, hangar.Quotas{hangar.QuotaTokens: 1}, &txn); err != nil {
			return nil, state.HangarError(err)
		}
		made, err := t.tokens.IssueTied(ctx, token, tie, txn)
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// orgOf returns the organization of a request that names none: that of its first App.
func (t *Tokens) orgOf(ctx context.Context, p hangar.Principal, apps []hangar.AppName) (hangar.OrgSlug, error) {
	if len(apps) == 0 {
		return defaultOrg(p), nil
	}
	app, _, err := t.tenants.AnyApp(ctx, apps[0])
	if err != nil {
		return "", err
	}
	if !p.Sees(app.Target("")) {
		return "", hangar.AppNotFound()
	}
	return app.Org, nil
}

// mayHandOut checks that the targets of a grant exist and that the caller has all its rights. It
// sets the ids of named targets, and shortens the grant to the caller's own end if that is
// requested. It returns the organization, and the condition that it is unchanged.
func (t *Tokens) mayHandOut(ctx context.Context, p hangar.Principal, g *hangar.Grant, shorten bool) (tenants.OrgRecord, state.Compare, error) {
	org, item, err := t.tenants.AnyOrg(ctx, g.Org)
	if err != nil {
		return tenants.OrgRecord{}, state.Compare{}, err
	}
	if !p.Sees(tenants.OrgTarget(org.Org)) {
		return tenants.OrgRecord{}, state.Compare{}, tenants.OrgNotFound(g.Org)
	}
	g.OrgID, g.AppIDs = org.ID, nil
	for _, name := range g.Apps {
		app, _, err := t.tenants.AnyApp(ctx, name)
		if err != nil {
			return tenants.OrgRecord{}, state.Compare{}, err
		}
		if app.OrgID != org.ID {
			return tenants.OrgRecord{}, state.Compare{}, hangar.AppNotFound()
		}
		g.AppIDs = append(g.AppIDs, app.ID)
	}
	if shorten {
		*g = p.Shorten(*g)
	}
	for _, target := range g.Targets() {
		if !p.May(hangar.ActionWrite, target) {
			return tenants.OrgRecord{}, state.Compare{}, tenants.Denied(p, target)
		}
		if target.Machine != "" {
			ref := hangar.MachineRef{AppID: target.AppID, ID: target.Machine}
			switch _, err := t.store.Get(ctx, state.ReservationKey(ref)); {
			case errors.Is(err, state.ErrNotFound):
				return tenants.OrgRecord{}, state.Compare{}, tenants.MachineNotFound(target.Machine)
			case err != nil:
				return tenants.OrgRecord{}, state.Compare{}, state.HangarError(err)
			}
		}
	}
	if !p.Covers(*g) {
		return tenants.OrgRecord{}, state.Compare{}, hangar.Errorf(hangar.CodeForbidden, "", "The new token would allow more than yours, or for longer%s", until(p))
	}
	return org, state.Unchanged(item), nil
}

// until describes the end of a caller's own tokens, if they expire.
func until(p hangar.Principal) string {
	for _, g := range p.Grants {
		if !g.Until.IsZero() {
			return fmt.Sprintf("; yours expires at %s", g.Until.Format(time.RFC3339))
		}
	}
	return ""
}

// owns reports whether the caller may see and revoke a token.
func owns(p hangar.Principal, token *hangar.Token) bool {
	if p.Admin || token.Admin {
		return p.Admin
	}
	if p.SignedIn && token.UserID == p.User {
		return true
	}
	for _, target := range token.Grant.Targets() {
		if !p.May(hangar.ActionWrite, target) {
			return false
		}
	}
	return true
}

// Tokens implements hangar.TokenService. It answers from memory, also while the
// state cannot be reached.
func (t *Tokens) Tokens(ctx context.Context, filter hangar.TokenFilter) ([]*hangar.Token, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	var about hangar.Target // target of the requested tokens
	switch {
	case filter.App != "":
		app, _, err := t.tenants.App(ctx, filter.App, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		about = app.Target("")
		if filter.Org != "" && filter.Org != app.Org {
			return nil, hangar.AppNotFound()
		}
	case filter.Org != "":
		org, _, err := t.tenants.AnyOrg(ctx, filter.Org)
		if err != nil {
			return nil, err
		}
		if about = tenants.OrgTarget(org.Org); !p.Reaches(hangar.ActionWrite, about) {
			return nil, tenants.Denied(p, about)
		}
	case !p.Admin && !p.SignedIn && !mayWrite(p):
		return nil, hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to see any tokens")
	}
	list := []*hangar.Token{}
	for _, token := range t.tokens.List(func(token *hangar.Token) bool {
		return owns(p, token) && filter.Matches(token) && isOf(token.Grant, about)
	}) {
		list = append(list, &token)
	}
	return list, nil
}

// isOf reports whether a grant is for an organization or App, by their ids; the zero target matches
// any.
func isOf(g hangar.Grant, about hangar.Target) bool {
	return (about.OrgID == "" || g.OrgID == about.OrgID) && (about.AppID == "" || slices.Contains(g.AppIDs, about.AppID))
}

// named returns the organization with a slug, or an unknown one with that slug.
func (t *Tokens) named(ctx context.Context, slug hangar.OrgSlug) hangar.Target {
	org, _, err := t.tenants.AnyOrg(ctx, slug)
	if err != nil {
		return hangar.Target{Org: slug}
	}
	return tenants.OrgTarget(org.Org)
}

// mayWrite reports whether a principal may change anything at all.
func mayWrite(p hangar.Principal) bool {
	return slices.ContainsFunc(p.Grants, func(g hangar.Grant) bool {
		return g.Reaches(hangar.ActionWrite, hangar.Target{Org: g.Org, OrgID: g.OrgID})
	})
}

// RevokeToken implements hangar.TokenService. The admin token of a server cannot be revoked here,
// because its file would restore it: remove the file instead.
func (t *Tokens) RevokeToken(ctx context.Context, idOrName string) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	token, err := t.find(p, idOrName)
	if err != nil {
		return err
	}
	if token.Admin {
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The admin token ends when its file is removed and the server is started again")
	}
	return t.revoke(ctx, token)
}

// revoke removes a token, and reduces the usage of its organization.
func (t *Tokens) revoke(ctx context.Context, token *hangar.Token) error {
	for {
		item, err := t.store.Get(ctx, auth.Prefix+string(token.ID))
		if errors.Is(err, state.ErrNotFound) {
			return nil // another call was quicker
		}
		if err != nil {
			return state.HangarError(err)
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}}
		if !token.Kind.OfUser() {
			if err := t.ledger.Credit(ctx, token.Grant.OrgID, hangar.Quotas{hangar.QuotaTokens: -1}, &txn); err != nil {
				return state.HangarError(err)
			}
		}
		if err := t.tokens.Revoke(ctx, token.ID, txn); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// find returns the token that a caller means, among those that it owns.
func (t *Tokens) find(p hangar.Principal, idOrName string) (*hangar.Token, error) {
	if known, ok := t.tokens.Find(hangar.TokenID(idOrName)); ok && owns(p, &known.Token) {
		return &known.Token, nil
	}
	named := t.tokens.List(func(token *hangar.Token) bool { return token.Name == idOrName && owns(p, token) })
	switch len(named) {
	case 1:
		return &named[0], nil
	case 0:
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonTokenNotFound, "Could not find token %.100q", idOrName)
	default:
		return nil, hangar.Errorf(hangar.CodeConflict, "", "%d tokens are called %.100q; say which by its id", len(named), idOrName)
	}
}

// CurrentTokens implements hangar.TokenService.
func (t *Tokens) CurrentTokens(ctx context.Context) ([]*hangar.Token, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	return t.records(p), nil
}

// records returns the tokens of a principal.
func (t *Tokens) records(p hangar.Principal) []*hangar.Token {
	list := []*hangar.Token{}
	for _, id := range p.Tokens {
		if record, ok := t.tokens.Find(id); ok {
			list = append(list, &record.Token)
		}
	}
	return list
}
