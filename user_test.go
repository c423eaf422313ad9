package hangar_test

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestCheckEmail(t *testing.T) {
	for email, fault := range map[string]string{
		"ann@example.com": "", "A.b+c@Example.COM": "", "o'hara@example.com": "", strings.Repeat("a", 64) + "@example.com": "",
		"": "is required", "ann": "is not an address", "ann@": "is not an address", "@example.com": "is not an address", "a@b@c.com": "is not an address",
		"Ann <ann@example.com>": "has blanks", "ann@example.com,bob@example.com": "is not an address", "änn@example.com": "beyond ASCII",
		`"a b"@example.com`: "has blanks", "a/b@example.com": "slashes", "ann@example.com\n": "has blanks",
		strings.Repeat("a", 250) + "@b.de": "more than 254",
	} {
		err := hangar.CheckEmail(email)
		switch {
		case fault == "" && err != nil:
			t.Errorf("%q: %v", email, err)
		case fault != "" && (err == nil || !strings.Contains(err.Error(), "invalid email: ") || !strings.Contains(err.Error(), fault)):
			t.Errorf("%q: %v, want %q", email, err, fault)
		case fault != "" && hangar.CodeOf(err) != hangar.CodeInvalid:
			t.Errorf("%q: code %s", email, hangar.CodeOf(err))
		}
	}
}

func TestUserInvite(t *testing.T) {
	for name, test := range map[string]struct {
		in    hangar.UserInvite
		fault string
	}{
		"a member":                 {hangar.UserInvite{Email: "a@example.com", Org: "acme"}, ""},
		"an admin":                 {hangar.UserInvite{Email: "a@example.com", Org: "acme", Role: hangar.RoleAdmin}, ""},
		"a user":                   {hangar.UserInvite{Email: "a@example.com"}, ""},
		"an administrator":         {hangar.UserInvite{Email: "a@example.com", Admin: true}, ""},
		"no address":               {hangar.UserInvite{Org: "acme"}, "invalid email"},
		"another role":             {hangar.UserInvite{Email: "a@example.com", Org: "acme", Role: "owner"}, "invalid role"},
		"a role in nothing":        {hangar.UserInvite{Email: "a@example.com", Role: hangar.RoleAdmin}, "invalid role"},
		"an administrator of acme": {hangar.UserInvite{Email: "a@example.com", Org: "acme", Admin: true}, "invalid admin"},
	} {
		err := test.in.Validate()
		if (err == nil) != (test.fault == "") || err != nil && (!strings.HasPrefix(err.Error(), test.fault) || hangar.CodeOf(err) != hangar.CodeInvalid) {
			t.Errorf("%s: %v, want %q", name, err, test.fault)
		}
	}
}

func TestCheckPassword(t *testing.T) {
	for password, ok := range map[string]bool{
		"": false, "eleven byte": false, "twelve bytes": true, strings.Repeat("x", hangar.MaxPassword): true, strings.Repeat("x", hangar.MaxPassword+1): false,
	} {
		if err := hangar.CheckPassword("password", hangar.NewSensitive(password)); (err == nil) != ok {
			t.Errorf("%q: %v", password, err)
		}
	}
}

// TestMemberGrants: a member may do everything with Apps but, with the organization itself, only read,
// create and query metrics.
func TestMemberGrants(t *testing.T) {
	for actions := hangar.Action(1); actions <= hangar.ActionAll; actions++ {
		unrestricted := hangar.Grant{Org: "a", OrgID: "o1", Actions: actions}
		members := unrestricted
		members.Role = hangar.RoleMember
		admins := unrestricted
		admins.Role = hangar.RoleAdmin
		for a := hangar.Action(1); a <= hangar.ActionAll; a <<= 1 {
			for _, target := range []hangar.Target{
				{Org: "a", OrgID: "o1"}, {Org: "a", OrgID: "o1", App: "web", AppID: "a1"}, {Org: "a", OrgID: "o1", App: "web", AppID: "a1", Machine: m1},
			} {
				want := unrestricted.May(a, target)
				if admins.May(a, target) != want {
					t.Errorf("an admin with %s may %s %+v: %t", actions, a, target, !want)
				}
				if target.App == "" {
					want = want && a&(hangar.ActionRead|hangar.ActionCreate|hangar.ActionMetrics) != 0
				}
				if members.May(a, target) != want {
					t.Errorf("a member with %s may %s %+v: %t", actions, a, target, !want)
				}
			}
		}
		who := hangar.Principal{Grants: []hangar.Grant{members}}
		more := actions&(hangar.ActionWrite|hangar.ActionDelete|hangar.ActionControl) != 0
		if !who.Covers(members) || who.Covers(unrestricted) == more || who.MayExec([]string{"ls"}, hangar.Target{Org: "a", OrgID: "o1"}) {
			t.Errorf("what a member with %s passes on", actions)
		}
		if app := (hangar.Grant{Org: "a", OrgID: "o1", Apps: []hangar.AppName{"web"}, AppIDs: []hangar.AppID{"a1"}, Actions: actions}); !who.Covers(app) {
			t.Errorf("a member does not cover an app with %s", actions)
		}
	}
}

// TestJoinedUsers: a list of tokens stands for all rights of a user only if one of them does.
func TestJoinedUsers(t *testing.T) {
	part := hangar.Principal{User: "u1"}
	whole := hangar.Principal{User: "u2", SignedIn: true, Memberships: []hangar.Membership{{OrgID: "o", Role: hangar.RoleAdmin}}}
	for name, both := range map[string]hangar.Principal{
		"a part first": part.Join(whole), "the whole first": whole.Join(part), "nobody's first": hangar.Principal{}.Join(whole),
		"nobody's last": whole.Join(hangar.Principal{}), "another one": whole.Join(hangar.Principal{User: "u3", SignedIn: true}),
	} {
		if both.User != "u2" || !both.SignedIn || !both.HasRole(hangar.RoleAdmin, "o") || both.HasRole(hangar.RoleMember, "o") {
			t.Errorf("%s: %+v", name, both)
		}
	}
}
