package control_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

const redirect = "https://provider.example.com/callback"

func party(id string) *hangar.OAuthClient {
	return &hangar.OAuthClient{ID: hangar.OAuthClientID(id), Name: id, RedirectURIs: []string{redirect}}
}

// session opens a session of a browser.
func (p *plane) session(t *testing.T, email, password string) (context.Context, string) {
	t.Helper()
	made, err := p.Sessions().OpenSession(t.Context(), hangar.SignIn{Email: email, Password: hangar.NewSensitive(password), Source: "here"})
	if err != nil {
		t.Fatal(err)
	}
	return p.inSession(t, made.Text), made.Text
}

func (p *plane) inSession(t *testing.T, session string) context.Context {
	t.Helper()
	who, err := p.Sessions().Session(t.Context(), hangar.NewSensitive(session))
	if err != nil {
		t.Fatal(err)
	}
	return as(t, who)
}

func (p *plane) items(t *testing.T, prefix string) []state.Item {
	t.Helper()
	items, _, err := state.All(t.Context(), p.store, prefix, false)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func (p *plane) hasSession(session string) bool {
	_, err := p.Sessions().Session(context.Background(), hangar.NewSensitive(session))
	return err == nil
}

func (p *plane) authorize(ctx context.Context, t *testing.T, client *hangar.OAuthClient, org hangar.OrgID) hangar.Sensitive {
	t.Helper()
	code, err := p.OAuth().Authorize(ctx, hangar.OAuthAuthorization{Client: client, RedirectURI: redirect, Org: org, Remember: true})
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func (p *plane) exchange(t *testing.T, client *hangar.OAuthClient, code hangar.Sensitive) (*hangar.OAuthTokens, error) {
	t.Helper()
	return p.OAuth().ExchangeCode(t.Context(), hangar.OAuthExchange{Client: client, Code: code, RedirectURI: redirect})
}

func (p *plane) grant(ctx context.Context, t *testing.T, client *hangar.OAuthClient, org hangar.OrgID) *hangar.OAuthTokens {
	t.Helper()
	made, err := p.exchange(t, client, p.authorize(ctx, t, client, org))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// stands reports whether the access token of a grant counts.
func (p *plane) stands(t *testing.T, tokens *hangar.OAuthTokens) bool {
	t.Helper()
	_, err := p.OAuth().TokenInfo(t.Context(), tokens.Access)
	return err == nil
}

// TestGrantsEndWithWhatTheyDependOn: the membership, the password, the user; at once and permanently, on
// this server and on one that starts.
func TestGrantsEndWithWhatTheyDependOn(t *testing.T) {
	client := party("logs")
	for name, test := range map[string]struct {
		end      func(t *testing.T, p *plane, id hangar.UserID)
		sessions bool // last
		back     func(t *testing.T, p *plane, id hangar.UserID)
	}{
		"the member is removed": {
			end: func(t *testing.T, p *plane, id hangar.UserID) {
				if err := p.Users().RemoveMember(admin(t), "acme", hangar.UserRef(id)); err != nil {
					t.Fatal(err)
				}
			},
			sessions: true,
			back: func(t *testing.T, p *plane, id hangar.UserID) {
				if _, err := p.Users().SetMember(admin(t), "acme", hangar.UserRef(id), hangar.RoleAdmin); err != nil {
					t.Fatal(err)
				}
			},
		},
		"the password is reset": {end: func(t *testing.T, p *plane, id hangar.UserID) {
			reset, err := p.Users().ResetPassword(admin(t), hangar.UserRef(id))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.SignIns().UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(reset.Code), Password: hangar.NewSensitive(goodPassword)}); err != nil {
				t.Fatal(err)
			}
		}},
		"the user is removed": {end: func(t *testing.T, p *plane, id hangar.UserID) {
			if err := p.Users().RemoveUser(admin(t), hangar.UserRef(id)); err != nil {
				t.Fatal(err)
			}
		}},
		"the organization is deleted": {sessions: true, end: func(t *testing.T, p *plane, _ hangar.UserID) {
			if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlane(t, state.NewMemory())
			acme := p.org(t, "acme")
			id, _ := p.member(t, "ann", "acme", hangar.RoleMember)
			ctx, session := p.session(t, "ann@example.com", goodPassword)
			made := p.grant(ctx, t, client, acme.ID)
			pending := p.authorize(ctx, t, client, acme.ID)
			if !p.stands(t, made) || !p.hasSession(session) {
				t.Fatal("the grant does not stand")
			}
			used := p.used(t, "acme", hangar.QuotaTokens)
			test.end(t, p, id)
			check := func(when string) {
				t.Helper()
				if p.stands(t, made) || p.valid(t, made.Access.Reveal()) {
					t.Errorf("%s: the access token is valid", when)
				}
				_, err := p.OAuth().RefreshTokens(t.Context(), client, made.Refresh)
				wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
				_, err = p.exchange(t, client, pending)
				wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
				if p.hasSession(session) != test.sessions {
					t.Errorf("%s: the session lasts: %t", when, !test.sessions)
				}
			}
			check("now")
			if test.back != nil {
				test.back(t, p, id)
				check("back again")
				choice, err := p.OAuth().Choice(p.inSession(t, session), client.ID)
				if err != nil || len(choice.Consented) != 0 {
					t.Errorf("the consent comes back: %+v, %v", choice, err)
				}
				if got := p.used(t, "acme", hangar.QuotaTokens); got != used {
					t.Errorf("%d tokens count, and %d before", got, used)
				}
			}
			p.restart(t)
			check("after a restart")
			if name == "the user is removed" {
				if left := p.records(t, state.OAuthPrefix); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// TestGrantsExpire: codes after a minute, access tokens after two hours, refresh tokens a month after their use, and
// sessions after a day.
func TestGrantsExpire(t *testing.T) {
	p, client := newPlane(t, state.NewMemory()), party("logs")
	acme := p.org(t, "acme")
	p.member(t, "ann", "acme", hangar.RoleMember)
	ctx, session := p.session(t, "ann@example.com", goodPassword)
	code := p.authorize(ctx, t, client, acme.ID)
	p.clock.advance(hangar.OAuthCodeLifetime - time.Second)
	made, err := p.exchange(t, client, code)
	if err != nil {
		t.Fatal(err)
	}
	if !made.ExpiresAt.Equal(p.clock.Now().Add(2*time.Hour)) || !made.CreatedAt.Equal(p.clock.Now()) {
		t.Errorf("from %s to %s", made.CreatedAt, made.ExpiresAt)
	}
	late := p.authorize(ctx, t, client, acme.ID)
	p.clock.advance(hangar.OAuthCodeLifetime)
	_, err = p.exchange(t, client, late)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)

	p.clock.advance(hangar.OAuthAccessLifetime)
	if p.stands(t, made) {
		t.Error("the access token outlives two hours")
	}
	again, err := p.OAuth().RefreshTokens(t.Context(), client, made.Refresh)
	if err != nil || !p.stands(t, again) {
		t.Fatalf("refreshed: %v", err)
	}
	if !p.hasSession(session) {
		t.Error("the session has ended")
	}
	p.clock.advance(hangar.SessionLifetime)
	if p.hasSession(session) {
		t.Error("the session outlives a day")
	}
	p.clock.advance(hangar.OAuthRefreshLifetime)
	_, err = p.OAuth().RefreshTokens(t.Context(), client, again.Refresh)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	if left := len(p.auth.OfUser("", hangar.TokenOAuth)) + len(p.records(t, auth.Prefix)); left != 3 {
		t.Errorf("%d records: want those of the admin, the sign-in and the session", left)
	}
}

// TestOneUserOrClientAbusesIt: what one user has is bounded, and a client takes nothing of others.
func TestOneUserOrClientAbusesIt(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	acme := p.org(t, "acme")
	ann, _ := p.member(t, "ann", "acme", hangar.RoleMember)
	bob, _ := p.member(t, "bob", "acme", hangar.RoleMember)
	ctx, _ := p.session(t, "ann@example.com", goodPassword)
	others, _ := p.session(t, "bob@example.com", goodPassword)
	quiet, greedy := party("quiet"), party("greedy")
	kept, ofBob := p.grant(ctx, t, quiet, acme.ID), p.grant(others, t, greedy, acme.ID)

	var grants []*hangar.OAuthTokens
	for range 3 * hangar.MaxClientGrants {
		p.clock.advance(time.Second)
		grants = append(grants, p.grant(ctx, t, greedy, acme.ID))
	}
	for i, g := range grants {
		if want := i >= len(grants)-hangar.MaxClientGrants; p.stands(t, g) != want {
			t.Errorf("grant %d stands: %t", i, !want)
		}
	}
	for i := range 2 * hangar.MaxOAuthGrants {
		p.clock.advance(time.Second)
		p.grant(ctx, t, party(fmt.Sprint("client", i)), acme.ID)
	}
	if n := len(p.auth.OfUser(ann, hangar.TokenOAuth)); n != hangar.MaxOAuthGrants {
		t.Errorf("a user has %d grants", n)
	}
	if p.stands(t, kept) || !p.stands(t, ofBob) || len(p.auth.OfUser(bob, hangar.TokenOAuth)) != 1 {
		t.Error("the oldest stays, or another user lost a grant")
	}

	var codes []hangar.Sensitive
	for range 5 * hangar.MaxOAuthCodes {
		codes = append(codes, p.authorize(ctx, t, quiet, acme.ID))
	}
	good := 0
	for _, code := range codes {
		if _, err := p.exchange(t, quiet, code); err == nil {
			good++
		}
	}
	if good != hangar.MaxOAuthCodes {
		t.Errorf("%d codes are good", good)
	}
	for i := range 2 * hangar.MaxOAuthConsents {
		p.authorize(ctx, t, party(fmt.Sprint("another", i)), acme.ID)
	}
	for _, item := range p.items(t, state.OAuthPrefix) {
		if len(item.Value) > 60_000 {
			t.Errorf("%s has %d bytes", item.Key, len(item.Value))
		}
	}
	choice, err := p.OAuth().Choice(ctx, "another399")
	if err != nil || len(choice.Consented) != 1 {
		t.Errorf("the newest consent: %+v, %v", choice, err)
	}
	if choice, err = p.OAuth().Choice(ctx, "another0"); err != nil || len(choice.Consented) != 0 {
		t.Errorf("the oldest consent: %+v, %v", choice, err)
	}

	var sessions []string
	for range hangar.MaxSessions + 3 {
		p.clock.advance(time.Second)
		_, session := p.session(t, "ann@example.com", goodPassword)
		sessions = append(sessions, session)
	}
	for i, session := range sessions {
		if want := i >= 3; p.hasSession(session) != want {
			t.Errorf("session %d lasts: %t", i, !want)
		}
	}
	if n := len(p.auth.OfUser(ann, hangar.TokenLogin)); n != 1 {
		t.Errorf("sessions have ended sign-ins: %d are left", n)
	}
}

// TestCommandLine: the one client that gets all that a user may do proves with PKCE that it has asked.
func TestCommandLine(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.org(t, "acme")
	id, _ := p.member(t, "ann", "acme", hangar.RoleMember)
	ctx, _ := p.session(t, "ann@example.com", goodPassword)
	client, err := p.OAuth().OAuthClient(t.Context(), hangar.OAuthClientCLI)
	if err != nil {
		t.Fatal(err)
	}
	const verifier, at = "a secret verifier, random and long enough for PKCE", "http://127.0.0.1:4321/"
	sum := sha256.Sum256([]byte(verifier))
	challenge := base64.RawURLEncoding.EncodeToString(sum[:])
	_, err = p.OAuth().Authorize(ctx, hangar.OAuthAuthorization{Client: client, RedirectURI: at})
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidRequest)
	ask := func() hangar.OAuthExchange {
		code, err := p.OAuth().Authorize(ctx, hangar.OAuthAuthorization{Client: client, RedirectURI: at, Challenge: challenge})
		if err != nil {
			t.Fatal(err)
		}
		return hangar.OAuthExchange{Client: client, Code: code, RedirectURI: at, Verifier: hangar.NewSensitive(verifier)}
	}
	in := ask()
	made, err := p.OAuth().ExchangeCode(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	who, err := p.auth.Authenticate(t.Context(), made.Access.Reveal())
	if err != nil || who.User != id || !who.SignedIn || who.Client != "" || made.Refresh.Reveal() != "" || !strings.HasPrefix(made.Access.Reveal(), "hgr_") ||
		made.ExpiresAt.Sub(p.clock.Now()) != hangar.SignInLifetime {
		t.Errorf("%+v, %+v, %v", who, made, err)
	}
	_, err = p.OAuth().TokenInfo(t.Context(), made.Access)
	wantError(t, err, hangar.CodeUnauthenticated, "")
	_, err = p.OAuth().ExchangeCode(t.Context(), in)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	if p.valid(t, made.Access.Reveal()) {
		t.Error("the token outlives that its code was used again")
	}
	in = ask()
	in.Verifier = hangar.NewSensitive(verifier + "x")
	_, err = p.OAuth().ExchangeCode(t.Context(), in)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	other := ask()
	other.Client = party("logs")
	_, err = p.OAuth().ExchangeCode(t.Context(), other)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	if made, err = p.OAuth().ExchangeCode(t.Context(), ask()); err != nil {
		t.Fatal(err)
	}
	if err := p.Users().SignOut(p.with(t, made.Access.Reveal())); err != nil || p.valid(t, made.Access.Reveal()) {
		t.Errorf("signed out: %v", err)
	}
}

// TestOnlyUsersAuthorize: neither a token for a part of a user's rights, nor one without a user, nor a third
// party's grant can authorize others.
func TestOnlyUsersAuthorize(t *testing.T) {
	p, client := newPlane(t, state.NewMemory()), party("logs")
	acme, other := p.org(t, "acme"), p.org(t, "other")
	p.member(t, "ann", "acme", hangar.RoleMember)
	ctx, _ := p.session(t, "ann@example.com", goodPassword)
	made := p.grant(ctx, t, client, acme.ID)
	for name, ctx := range map[string]context.Context{
		"nobody":             t.Context(),
		"an organization":    as(t, hangar.Principal{Grants: []hangar.Grant{{Org: "acme", OrgID: acme.ID, Actions: hangar.ActionAll}}}),
		"the third party":    p.with(t, made.Access.Reveal()),
		"a part of a user":   as(t, hangar.Principal{User: "u", Grants: []hangar.Grant{{Org: "acme", OrgID: acme.ID, Actions: hangar.ActionAll}}}),
		"who does not exist": as(t, hangar.Principal{User: "nobodynobodynobo", SignedIn: true}),
	} {
		if _, err := p.OAuth().Authorize(ctx, hangar.OAuthAuthorization{Client: client, RedirectURI: redirect, Org: acme.ID}); err == nil {
			t.Errorf("%s authorizes", name)
		}
		if _, err := p.OAuth().Choice(ctx, client.ID); err == nil {
			t.Errorf("%s chooses", name)
		}
	}
	_, err := p.OAuth().Authorize(ctx, hangar.OAuthAuthorization{Client: client, RedirectURI: redirect, Org: other.ID})
	wantError(t, err, hangar.CodeForbidden, hangar.ReasonAccessDenied)
	_, err = p.OAuth().Authorize(admin(t), hangar.OAuthAuthorization{Client: client, RedirectURI: redirect, Org: other.ID})
	if err == nil {
		t.Error("the server's own token authorizes")
	}
}

// TestNoSecretIsKept: the state has no code and no token of single sign-on.
func TestNoSecretIsKept(t *testing.T) {
	p, client := newPlane(t, state.NewMemory()), party("logs")
	acme := p.org(t, "acme")
	p.member(t, "ann", "acme", hangar.RoleMember)
	ctx, session := p.session(t, "ann@example.com", goodPassword)
	made, code := p.grant(ctx, t, client, acme.ID), p.authorize(ctx, t, client, acme.ID)
	var kept string
	for _, item := range p.items(t, "/") {
		kept += item.Key + string(item.Value)
	}
	for name, text := range map[string]string{"session": session, "access": made.Access.Reveal(), "refresh": made.Refresh.Reveal(), "code": code.Reveal()} {
		if secret := text[strings.LastIndex(text[:24], "_")+1:]; strings.Contains(kept, secret[:20]) {
			t.Errorf("the state has the %s", name)
		}
	}
}

// TestUsersSeeAndEndWhatTheyGave: sessions and grants are listed among the tokens of their user, and only to
// the user and the admins of the organization; revoking one ends all of it, and no quota changes.
func TestUsersSeeAndEndWhatTheyGave(t *testing.T) {
	p, client := newPlane(t, state.NewMemory()), party("logs")
	acme := p.org(t, "acme")
	_, login := p.member(t, "ann", "acme", hangar.RoleMember)
	_, other := p.member(t, "bob", "acme", hangar.RoleMember)
	ctx, session := p.session(t, "ann@example.com", goodPassword)
	made := p.grant(ctx, t, client, acme.ID)
	used := p.used(t, "acme", hangar.QuotaTokens)
	tokens, err := p.Tokens().Tokens(p.with(t, login), hangar.TokenFilter{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[hangar.TokenKind]hangar.TokenID{}
	for _, token := range tokens {
		found[token.Kind] = token.ID
	}
	if len(tokens) != 3 || found[hangar.TokenSession] == "" || found[hangar.TokenOAuth] == "" {
		t.Fatalf("the user has %+v", tokens)
	}
	if tokens, err = p.Tokens().Tokens(p.with(t, other), hangar.TokenFilter{}); err != nil || len(tokens) != 1 {
		t.Errorf("another member sees %+v, %v", tokens, err)
	}
	for _, kind := range []hangar.TokenKind{hangar.TokenSession, hangar.TokenOAuth} {
		wantError(t, p.Tokens().RevokeToken(p.with(t, other), string(found[kind])), hangar.CodeNotFound, hangar.ReasonTokenNotFound)
		if err := p.Tokens().RevokeToken(p.with(t, login), string(found[kind])); err != nil {
			t.Error(err)
		}
	}
	_, err = p.OAuth().RefreshTokens(t.Context(), client, made.Refresh)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonInvalidGrant)
	if p.stands(t, made) || p.hasSession(session) || p.used(t, "acme", hangar.QuotaTokens) != used {
		t.Errorf("after revoking: grant %t, session %t, %d tokens count", p.stands(t, made), p.hasSession(session), p.used(t, "acme", hangar.QuotaTokens))
	}
}

// TestThirdPartiesSeeNoAddresses: neither of members nor of the holder of a lease, also together with a token of
// their own.
func TestThirdPartiesSeeNoAddresses(t *testing.T) {
	p, client := newPlane(t, state.NewMemory()), party("logs")
	p.app(t, "web")
	m := p.machine(t, "web", "")
	org, err := p.Orgs().Org(admin(t), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	_, login := p.member(t, "ann", hangar.OrgPersonal, hangar.RoleMember)
	if _, err := p.Machines().AcquireLease(p.with(t, login), hangar.MachineRef{App: "web", ID: m.ID}, hangar.LeaseAcquire{}); err != nil {
		t.Fatal(err)
	}
	ctx, _ := p.session(t, "ann@example.com", goodPassword)
	made := p.grant(ctx, t, client, org.ID).Access.Reveal()
	p.org(t, "theirs")
	own := strings.TrimPrefix(string(p.header(t, "theirs")), "Bearer ")
	for _, credential := range []string{made, made + "," + own, own + "," + made} {
		ctx := p.with(t, credential)
		members, err := p.Users().Users(ctx, hangar.UserFilter{Org: hangar.OrgPersonal})
		if err != nil || len(members) != 1 || members[0].Email != "" {
			t.Errorf("members %+v, %v", members, err)
		}
		lease, err := p.Machines().MachineLease(ctx, hangar.MachineRef{App: "web", ID: m.ID})
		if err != nil || lease.Owner != "" || lease.Nonce != "" {
			t.Errorf("lease %+v, %v", lease, err)
		}
	}
	lease, err := p.Machines().MachineLease(p.with(t, login), hangar.MachineRef{App: "web", ID: m.ID})
	if err != nil || lease.Owner != "ann@example.com" {
		t.Errorf("the member sees %+v, %v", lease, err)
	}
}
