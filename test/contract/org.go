package contract

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// OrgService checks an implementation of hangar.OrgService.
func OrgService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"create and get": orgCreate,
		"slugs":          orgSlugs,
		"slug taken":     orgTaken,
		"list":           orgList,
		"delete":         orgDelete,
		"personal":       orgPersonal,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// newOrg makes an organization that goes with the test.
func (h Harness) newOrg(t *testing.T) hangar.OrgSlug {
	t.Helper()
	slug := hangar.OrgSlug(uniqueName())
	if _, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: slug}); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	t.Cleanup(func() { h.dropOrg(t, slug) })
	return slug
}

func (h Harness) dropOrg(t *testing.T, slug hangar.OrgSlug) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context(t)), patience)
	defer cancel()
	if err := h.Orgs.DeleteOrg(ctx, slug); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("delete organization: %v", err)
	}
}

func orgCreate(t *testing.T, h Harness) {
	slug := hangar.OrgSlug(uniqueName())
	t.Cleanup(func() { h.dropOrg(t, slug) })
	made, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: slug, Name: "Café & Söhne"})
	must(t, "create", err)
	if made.Slug != slug || made.Name != "Café & Söhne" || made.ID == "" || made.NumericID == 0 || made.Personal() {
		t.Errorf("created organization is incomplete: %+v", made)
	}
	personal, err := h.Orgs.Org(h.Context(t), hangar.OrgPersonal)
	must(t, "get the personal one", err)
	if personal.ID == made.ID || personal.NumericID == made.NumericID {
		t.Errorf("created organization %+v is as %+v", made, personal)
	}
	got, err := h.Orgs.Org(h.Context(t), slug)
	must(t, "get", err)
	if *got != *made {
		t.Errorf("got %+v, want what was made: %+v", got, made)
	}
	other, err := h.Orgs.Org(h.Context(t), h.newOrg(t))
	must(t, "get another", err)
	if other.ID == made.ID || other.NumericID == made.NumericID || other.Name != string(other.Slug) {
		t.Errorf("another organization: %+v beside %+v", other, made)
	}
	app := uniqueName()
	_, err = h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: slug})
	must(t, "create an app in it", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	in, err := h.Apps.App(h.Context(t), app)
	must(t, "get the app", err)
	if in.Org != *made {
		t.Errorf("the app is of %+v, want %+v", in.Org, made)
	}
}

func orgSlugs(t *testing.T, h Harness) {
	for _, bad := range []hangar.OrgSlug{"Upper", "under_score", "sp ace", "dot.ted", hangar.OrgSlug(strings.Repeat("a", 64)), "../etc", "ünicode"} {
		_, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: bad})
		wantError(t, "create "+string(bad), err, hangar.CodeInvalid, "")
	}
	_, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: "long", Name: strings.Repeat("n", 101)})
	wantError(t, "create with a long name", err, hangar.CodeInvalid, "")
}

func orgTaken(t *testing.T, h Harness) {
	for _, slug := range []hangar.OrgSlug{h.newOrg(t), hangar.OrgPersonal} {
		_, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: slug})
		wantError(t, "create again", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	}
}

func orgList(t *testing.T, h Harness) {
	want := []hangar.OrgSlug{h.newOrg(t), h.newOrg(t), hangar.OrgPersonal}
	slices.Sort(want)
	orgs, err := h.Orgs.Orgs(h.Context(t))
	must(t, "list", err)
	var got []hangar.OrgSlug
	for _, o := range orgs {
		if slices.Contains(want, o.Slug) {
			got = append(got, o.Slug)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v in this order", got, want)
	}
}

func orgDelete(t *testing.T, h Harness) {
	slug := h.newOrg(t)
	app := uniqueName()
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: slug, Network: "own"})
	must(t, "create an app", err)
	made, err := h.Tokens.CreateToken(h.Context(t), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: slug})
	must(t, "create a token", err)
	wantError(t, "delete with an app", h.Orgs.DeleteOrg(h.Context(t), slug), hangar.CodeFailedPrecondition, hangar.ReasonOrgNotEmpty)
	_, err = h.Orgs.Org(h.As(t, made.Text).Context(t), slug)
	must(t, "get after a refusal", err)
	h.dropApp(t, app)
	must(t, "delete", h.Orgs.DeleteOrg(h.Context(t), slug))
	_, err = h.Orgs.Org(h.Context(t), slug)
	wantError(t, "get", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	wantError(t, "delete again", h.Orgs.DeleteOrg(h.Context(t), slug), hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	_, err = h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: slug})
	wantError(t, "create an app in nothing", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	h.void(t, made.Text)
	// One of the same slug is another one.
	_, err = h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: slug})
	must(t, "create again", err)
	h.void(t, made.Text)
}

func orgPersonal(t *testing.T, h Harness) {
	wantError(t, "delete", h.Orgs.DeleteOrg(h.Context(t), hangar.OrgPersonal), hangar.CodeFailedPrecondition, "")
	org, err := h.Orgs.Org(h.Context(t), hangar.OrgPersonal)
	must(t, "get", err)
	if !org.Personal() {
		t.Errorf("%+v is not personal", org)
	}
}
