package fake

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// token is a token that the platform has made.
type token struct {
	hangar.Token
	text string
	life context.Context //nolint:containedctx // it is the token's
	end  context.CancelFunc
}

// Tokens is an Authenticator: the principals of tokens that are always there.
type Tokens map[string]hangar.Principal

// Authenticate implements hangar.Authenticator.
func (t Tokens) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	return join(credential, func(part string) (hangar.Principal, bool) {
		p, ok := t[part]
		return p, ok
	})
}

// Life implements hangar.Authenticator.
func (t Tokens) Life(id hangar.TokenID) context.Context {
	for _, p := range t {
		if slices.Contains(p.Tokens, id) {
			return context.Background()
		}
	}
	return ended()
}

// ended is the life of a token that is not there.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// join looks up each part of a credential.
func join(credential string, lookup func(string) (hangar.Principal, bool)) (who hangar.Principal, err error) {
	valid := false
	for part := range strings.SplitSeq(credential, ",") {
		if p, ok := lookup(strings.TrimSpace(part)); ok {
			who, valid = who.Join(p), true
		}
	}
	if !valid {
		return who, hangar.Unauthenticated()
	}
	return who, nil
}

// Login is an Authenticator that knows the tokens of the platform, and more.
func (s *Service) Login(more Tokens) hangar.Authenticator { return login{s, more} }

type login struct {
	s    *Service
	more Tokens
}

// Authenticate implements hangar.Authenticator.
func (l login) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	return join(credential, func(part string) (hangar.Principal, bool) {
		if p, ok := l.more[part]; ok {
			return p, true
		}
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		for _, t := range l.s.tokens {
			if t.text == part && (t.Grant.Until.IsZero() || l.s.now().Before(t.Grant.Until)) {
				t.LastUsed = l.s.now().UTC().Truncate(time.Second)
				return hangar.Principal{Subject: t.User, Grants: []hangar.Grant{t.Grant}, Tokens: []hangar.TokenID{t.ID}}, true
			}
		}
		return hangar.Principal{}, false
	})
}

// Life implements hangar.Authenticator.
func (l login) Life(id hangar.TokenID) context.Context {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if t, ok := l.s.tokens[id]; ok {
		return t.life
	}
	return l.more.Life(id)
}

// CreateToken implements hangar.TokenService.
func (s *Service) CreateToken(ctx context.Context, in hangar.TokenCreate) (*hangar.NewToken, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.Org == "" {
		in.Org = defaultOrg(p)
		if len(in.Apps) > 0 {
			a, ok := s.apps[in.Apps[0]]
			if !ok || !p.Sees(targetOf(a, "")) {
				return nil, appNotFound(in.Apps[0])
			}
			in.Org = a.Org.Slug
		}
	}
	grant, err := in.GrantOf(s.now())
	if err != nil {
		return nil, err
	}
	for field, title := range map[string]string{"name": in.Name, "user": in.User} {
		if len(title) > 100 {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid %s: is too long (maximum is 100 characters)", field)
		}
	}
	if err := s.mayHandOut(p, &grant, in.Expiry == ""); err != nil {
		return nil, err
	}
	if in.User != "" && in.User != p.Subject && !p.May(hangar.ActionWrite, s.orgTarget(in.Org)) {
		return nil, forbidden()
	}
	s.numbers++
	t := &token{text: fmt.Sprintf("hgr_fake%08d_%s", s.numbers, rand.Text()), Token: hangar.Token{
		ID: hangar.TokenID(fmt.Sprintf("fake%08d", s.numbers)), Name: cmp.Or(in.Name, string(in.Kind)+" token"), Kind: in.Kind,
		User: cmp.Or(in.User, p.Subject), Grant: grant, CreatedBy: p.Subject, CreatedAt: s.now().UTC().Truncate(time.Second),
	}}
	t.life, t.end = context.WithCancel(context.Background())
	if !grant.Until.IsZero() {
		t.life, t.end = context.WithTimeout(t.life, grant.Until.Sub(s.now()))
	}
	s.tokens[t.ID] = t
	return &hangar.NewToken{Token: t.Token, Text: t.text}, nil
}

// mayHandOut checks that a grant is about what exists and is covered by the caller's
// own, and sets its ids. The caller holds mu.
func (s *Service) mayHandOut(p hangar.Principal, g *hangar.Grant, shorten bool) error {
	if s.orgs[g.Org] == nil || !p.Sees(s.orgTarget(g.Org)) {
		return orgNotFound(g.Org)
	}
	g.OrgID, g.AppIDs = s.orgs[g.Org].ID, nil
	for _, name := range g.Apps {
		a, ok := s.apps[name]
		if !ok || a.Org.Slug != g.Org {
			return appNotFound(name)
		}
		g.AppIDs = append(g.AppIDs, a.ID)
	}
	if shorten {
		*g = p.Shorten(*g)
	}
	for _, t := range g.Targets() {
		if !p.May(hangar.ActionWrite, t) {
			return denied(p, t)
		}
		if t.Machine != "" {
			if m, ok := s.machines[t.Machine]; !ok || m.App != t.App {
				return machineNotFound(t.Machine)
			}
		}
	}
	if !p.Covers(*g) {
		return hangar.Errorf(hangar.CodeForbidden, "", "The new token would allow more than yours, or for longer")
	}
	return nil
}

func owns(p hangar.Principal, t *token) bool {
	return p.Admin || !slices.ContainsFunc(t.Grant.Targets(), func(target hangar.Target) bool {
		return !p.May(hangar.ActionWrite, target)
	})
}

// Tokens implements hangar.TokenService.
func (s *Service) Tokens(ctx context.Context, filter hangar.TokenFilter) ([]*hangar.Token, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var app hangar.AppID // of the only one that is wanted
	switch {
	case filter.App != "":
		a, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: filter.App})
		if err != nil {
			return nil, err
		}
		app = a.ID
	case filter.Org != "" && s.orgs[filter.Org] == nil:
		return nil, orgNotFound(filter.Org)
	case filter.Org != "":
		if t := s.orgTarget(filter.Org); !p.Reaches(hangar.ActionWrite, t) {
			return nil, denied(p, t)
		}
	case !p.Admin && !slices.ContainsFunc(p.Grants, func(g hangar.Grant) bool { return g.Actions&hangar.ActionWrite != 0 }):
		return nil, forbidden()
	}
	var list []*hangar.Token
	for _, t := range s.tokens {
		if answer := t.Token; owns(p, t) && filter.Matches(&answer) && (app == "" || slices.Contains(t.Grant.AppIDs, app)) {
			list = append(list, &answer)
		}
	}
	slices.SortFunc(list, func(a, b *hangar.Token) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// RevokeToken implements hangar.TokenService.
func (s *Service) RevokeToken(ctx context.Context, idOrName string) error {
	p, err := principal(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []hangar.TokenID
	for id, t := range s.tokens {
		if owns(p, t) && (string(id) == idOrName || t.Name == idOrName) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonTokenNotFound, "Could not find token %q", idOrName)
	case 1:
		s.tokens[found[0]].end()
		delete(s.tokens, found[0])
		return nil
	default:
		return hangar.Errorf(hangar.CodeConflict, "", "%d tokens are called %q; say which by its id", len(found), idOrName)
	}
}

// CurrentTokens implements hangar.TokenService.
func (s *Service) CurrentTokens(ctx context.Context) ([]*hangar.Token, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	return s.records(p), nil
}

// records are the tokens that a principal consists of.
func (s *Service) records(p hangar.Principal) []*hangar.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*hangar.Token
	for _, id := range p.Tokens {
		if t, ok := s.tokens[id]; ok {
			answer := t.Token
			list = append(list, &answer)
		}
	}
	return list
}

// AuthenticateTokens implements hangar.TokenService.
func (s *Service) AuthenticateTokens(ctx context.Context, header hangar.Authorization) ([]*hangar.Token, error) {
	p, err := s.presented(ctx, header)
	if err != nil {
		return nil, err
	}
	return s.records(p), nil
}

// presented is the principal of somebody who has presented himself to the caller.
func (s *Service) presented(ctx context.Context, header hangar.Authorization) (hangar.Principal, error) {
	if _, err := principal(ctx); err != nil {
		return hangar.Principal{}, err
	}
	credential, ok := hangar.Credential(string(header))
	if !ok {
		return hangar.Principal{}, hangar.NoToken()
	}
	p, err := s.Login(nil).Authenticate(ctx, credential)
	if err != nil {
		return p, hangar.NoToken()
	}
	return p, nil
}

// Authorize implements hangar.TokenService.
func (s *Service) Authorize(ctx context.Context, header hangar.Authorization, in hangar.Access) (hangar.Access, error) {
	p, err := s.presented(ctx, header)
	if err == nil {
		err = in.Validate()
	}
	if err != nil {
		return hangar.Access{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	org, target := in.Org, s.orgTarget(in.Org)
	if a := s.apps[in.App]; a != nil {
		org, target = a.Org.Slug, targetOf(a, in.Machine)
	}
	m := s.machines[in.Machine]
	if s.orgs[org] == nil || in.Org != "" && in.Org != org || in.App != "" && s.apps[in.App] == nil ||
		in.Machine != "" && (m == nil || m.App != in.App) || in.Volume != "" && s.volumeOf(s.apps[in.App], in.Volume) == nil || !in.AllowedTo(p, target) {
		return hangar.Access{}, hangar.NoAccess()
	}
	in.Org = org
	return in, nil
}
