package control_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

var userSeed = flag.Uint64("user-seed", 0, "the only seed of TestTokensOfUsers; 0: several")

// tokenModel is what is known of users and their tokens without looking at the platform.
type tokenModel struct {
	*plane
	t      *testing.T
	rand   *rand.Rand
	orgs   []hangar.Org
	apps   []hangar.Target // one of each organization
	people []*person
	steps  []string
}

// person is a user who has signed in.
type person struct {
	email  string
	id     hangar.UserID
	login  string
	admin  int // which time the user is an administrator; 0: is none
	admins int // how often the user has become one
	roles  map[hangar.OrgSlug]hangar.Role
	times  map[hangar.OrgSlug]int // how often the user has become a member
	tokens []madeToken
	gone   []string // texts of tokens that have ended
}

// madeToken is a token that a person has made.
type madeToken struct {
	text    string
	org     hangar.OrgSlug
	app     hangar.AppName // empty: of the organization
	actions hangar.Action
	time    int // of the membership that it was made by
	admin   int // or of the time as an administrator
}

func newTokenModel(t *testing.T, seed uint64) *tokenModel {
	t.Helper()
	m := &tokenModel{plane: newPlane(t, state.NewMemory()), t: t, rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range 3 {
		org := m.org(t, hangar.OrgSlug(fmt.Sprint("org", i)))
		app, err := m.Apps().CreateApp(admin(t), hangar.AppCreate{Name: hangar.AppName("app-" + org.Slug), Org: org.Slug})
		if err != nil {
			t.Fatal(err)
		}
		m.orgs = append(m.orgs, *org)
		m.apps = append(m.apps, hangar.Target{Org: org.Slug, OrgID: org.ID, App: app.Name, AppID: app.ID})
	}
	for i := range 3 {
		m.people = append(m.people, m.newPerson(fmt.Sprintf("p%d@example.com", i)))
	}
	return m
}

func (m *tokenModel) newPerson(email string) *person {
	m.t.Helper()
	user := m.join(m.t, hangar.UserInvite{Email: email})
	return &person{
		email: email, id: user.ID, login: m.signIn(m.t, email, goodPassword).Text,
		roles: map[hangar.OrgSlug]hangar.Role{}, times: map[hangar.OrgSlug]int{},
	}
}

// may is what a person may do now.
func (p *person) may(action hangar.Action, target hangar.Target) bool {
	return p.admin > 0 || p.mayAsMember(action, target)
}

// mayAsMember is what the person's membership allows, which is all that a token made by it has of
// the person.
func (p *person) mayAsMember(action hangar.Action, target hangar.Target) bool {
	switch p.roles[target.Org] {
	case hangar.RoleAdmin:
		return true
	case hangar.RoleMember:
		return target.App != "" || action&(hangar.ActionRead|hangar.ActionCreate|hangar.ActionMetrics) != 0
	default:
		return false
	}
}

// made reports whether a token was made for something.
func (k madeToken) made(action hangar.Action, target hangar.Target) bool {
	return k.org == target.Org && (k.app == "" || k.app == target.App) && k.actions&action != 0
}

// lasts reports whether what a token was made by has lasted since.
func (k madeToken) lasts(p *person) bool {
	if k.admin > 0 {
		return p.admin == k.admin
	}
	return p.roles[k.org] != "" && p.times[k.org] == k.time
}

// step makes a random change of a random user.
func (m *tokenModel) step() {
	m.t.Helper()
	i := m.rand.IntN(len(m.people))
	p, org := m.people[i], m.orgs[m.rand.IntN(len(m.orgs))]
	ref := hangar.UserRef(p.id)
	var what string
	var err error
	switch n := m.rand.IntN(20); {
	case n < 6:
		role := hangar.Roles()[m.rand.IntN(2)]
		what = fmt.Sprint("set ", p.email, " ", role, " of ", org.Slug)
		_, err = m.Users().SetMember(admin(m.t), org.Slug, ref, role)
		if p.roles[org.Slug] == "" {
			p.times[org.Slug]++
		}
		p.roles[org.Slug] = role
	case n < 9:
		what = fmt.Sprint("remove ", p.email, " from ", org.Slug)
		err = m.Users().RemoveMember(admin(m.t), org.Slug, ref)
		if p.roles[org.Slug] == "" && hangar.ReasonOf(err) == hangar.ReasonUserNotFound {
			err = nil
		}
		delete(p.roles, org.Slug)
	case n < 11:
		yes := p.admin == 0
		what = fmt.Sprint("administrator ", p.email, " ", yes)
		_, err = m.Users().UpdateUser(admin(m.t), ref, hangar.UserUpdate{Admin: &yes})
		if p.admin = 0; yes {
			p.admins++
			p.admin = p.admins
		}
	case n < 17:
		what, err = m.makeToken(p, org)
	case n < 18:
		what = "restart"
		m.restart(m.t)
	case n < 19 && m.rand.IntN(4) == 0:
		what = fmt.Sprint("remove ", p.email)
		err = m.Users().RemoveUser(admin(m.t), ref)
		next := m.newPerson(p.email)
		next.gone = append(p.gone, p.login)
		for _, k := range p.tokens {
			next.gone = append(next.gone, k.text)
		}
		m.people[i] = next
	default:
		what = fmt.Sprint("sign in ", p.email)
		if err = m.Users().SignOut(m.with(m.t, p.login)); err == nil {
			p.gone = append(p.gone, p.login)
			p.login = m.signIn(m.t, p.email, goodPassword).Text
		}
	}
	m.steps = append(m.steps, what)
	if err != nil {
		m.t.Fatalf("%s: %v, after %q", what, err, m.steps)
	}
}

// makeToken has a person make a token, which is refused unless the person has all of it.
func (m *tokenModel) makeToken(p *person, org hangar.Org) (what string, err error) {
	m.t.Helper()
	k := madeToken{org: org.Slug, actions: hangar.ActionAll, time: p.times[org.Slug], admin: p.admin}
	in := hangar.TokenCreate{Kind: hangar.TokenCustom, Org: org.Slug, Actions: hangar.Action(1 + m.rand.IntN(int(hangar.ActionAll)))}
	k.actions = in.Actions
	target := hangar.Target{Org: org.Slug, OrgID: org.ID}
	if m.rand.IntN(2) == 0 {
		target = m.apps[slices.Index(m.orgs, org)]
		k.app, in.Apps = target.App, []hangar.AppName{target.App}
	}
	may := p.may(hangar.ActionWrite, target)
	for a := hangar.Action(1); a <= hangar.ActionAll; a <<= 1 {
		may = may && (k.actions&a == 0 || p.may(a, target))
	}
	what = fmt.Sprintf("%s makes a token for %s of %+v", p.email, k.actions, target)
	made, err := m.Tokens().CreateToken(m.with(m.t, p.login), in)
	if (err == nil) != may {
		return what, fmt.Errorf("may: %t, and %w", may, cmpError(err))
	}
	if err == nil {
		k.text = made.Text
		p.tokens = append(p.tokens, k)
	}
	return what, nil
}

func cmpError(err error) error {
	if err == nil {
		return fmt.Errorf("it was made")
	}
	return err
}

// check compares what every credential allows with what the model says, on a server.
func (m *tokenModel) check(server string, tokens *auth.Tokens) {
	m.t.Helper()
	for _, p := range m.people {
		m.compare(server+": "+p.email+" signed in", tokens, p.login, func(action hangar.Action, target hangar.Target) bool { return p.may(action, target) })
		for _, k := range p.tokens {
			m.compare(fmt.Sprintf("%s: %s with %+v", server, p.email, k), tokens, k.text, func(action hangar.Action, target hangar.Target) bool {
				return k.made(action, target) && k.lasts(p) && (k.admin > 0 || p.mayAsMember(action, target))
			})
		}
		for _, text := range p.gone {
			if _, err := tokens.Authenticate(m.t.Context(), text); err == nil {
				m.t.Fatalf("%s: a token of %s that has ended is valid, after %q", server, p.email, m.steps)
			}
		}
	}
}

func (m *tokenModel) compare(what string, tokens *auth.Tokens, text string, want func(hangar.Action, hangar.Target) bool) {
	m.t.Helper()
	who, _ := tokens.Authenticate(m.t.Context(), text) // one that is not valid allows nothing
	for i, org := range m.orgs {
		for _, target := range []hangar.Target{{Org: org.Slug, OrgID: org.ID}, m.apps[i], {Org: org.Slug, OrgID: "another"}} {
			for a := hangar.Action(1); a <= hangar.ActionAll; a <<= 1 {
				wanted := want(a, target)
				if target.OrgID == "another" && !who.Admin {
					wanted = false
				}
				if got := who.May(a, target); got != wanted && (target.OrgID != "another" || got) {
					m.t.Fatalf("%s may %s %+v: %t, after %q", what, a, target, got, m.steps)
				}
			}
		}
	}
}

// TestTokensOfUsers makes and ends memberships and tokens at random. After each step every token allows
// what it was made for and what its user may do, both, and no more; on the server where that was done,
// and on one that has just started.
func TestTokensOfUsers(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4}
	if testing.Short() {
		seeds = seeds[:1]
	}
	if *userSeed != 0 {
		seeds = []uint64{*userSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newTokenModel(t, seed)
			for range 80 {
				m.step()
				m.check("here", m.auth)
				other := auth.New(auth.Config{Store: m.store, Dir: m.dir, Now: m.clock.Now})
				if err := other.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				m.check("elsewhere", other)
			}
		})
	}
}
