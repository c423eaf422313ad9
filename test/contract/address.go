package contract

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// AddressService checks an implementation of hangar.AddressService that has a pool of every
// kind.
func AddressService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"life":      addressLife,
		"shared":    addressShared,
		"private":   addressPrivate,
		"bad input": addressBadInput,
		"rights":    addressRights,
		"app":       addressesGoWithApp,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func (h Harness) newAddress(t *testing.T, app hangar.AppName, in hangar.AddressCreate) *hangar.Address {
	t.Helper()
	a, err := h.Addresses.AllocateAddress(h.Context(t), app, in)
	if err != nil {
		t.Fatalf("allocate %s: %v", in.Kind, err)
	}
	return a
}

func (h Harness) addresses(t *testing.T, app hangar.AppName) []hangar.Address {
	t.Helper()
	list, err := h.Addresses.Addresses(h.Context(t), app)
	must(t, "list addresses", err)
	return list
}

func addressLife(t *testing.T, h Harness) {
	ctx, app, other := h.Context(t), h.newApp(t), h.newApp(t)
	if list := h.addresses(t, app); len(list) != 0 {
		t.Errorf("a new app has %v", list)
	}
	v6 := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressV6})
	v4 := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressV4, Region: "loc", Service: "web"})
	if v4.Kind != hangar.AddressV4 || !v4.IP.Is4() || v4.App != app || v4.Region != "loc" || v4.Service != "web" || v4.CreatedAt.IsZero() {
		t.Errorf("allocated %+v", v4)
	}
	if v6.Kind != hangar.AddressV6 || !v6.IP.Is6() || hangar.IsFlycast(v6.IP) || v6.Region != "" || v6.Network != "" || v6.NetworkID != 0 {
		t.Errorf("allocated %+v", v6)
	}
	for _, kind := range []hangar.AddressKind{hangar.AddressV4, hangar.AddressV6} {
		if a := h.newAddress(t, other, hangar.AddressCreate{Kind: kind}); a.IP == v4.IP || a.IP == v6.IP {
			t.Errorf("two apps have %s", a.IP)
		}
	}
	if list := h.addresses(t, app); !slices.Equal(list, []hangar.Address{*v4, *v6}) {
		t.Errorf("listed %+v, allocated %+v and %+v", list, v4, v6)
	}
	wantError(t, "release another's", h.Addresses.ReleaseAddress(ctx, other, v4.IP), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
	must(t, "release", h.Addresses.ReleaseAddress(ctx, app, v4.IP))
	wantError(t, "release again", h.Addresses.ReleaseAddress(ctx, app, v4.IP), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
	if again := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressV4}); again.IP == v4.IP {
		t.Errorf("%s was given again at once", v4.IP)
	}
}

func addressShared(t *testing.T, h Harness) {
	ctx, app, other := h.Context(t), h.newApp(t), h.newApp(t)
	mine := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
	if again := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressSharedV4}); *again != *mine {
		t.Errorf("the shared address is %+v, then %+v", mine, again)
	}
	if theirs := h.newAddress(t, other, hangar.AddressCreate{Kind: hangar.AddressSharedV4}); theirs.IP != mine.IP || !mine.IP.Is4() {
		t.Errorf("two apps share %s and %s", mine.IP, theirs.IP)
	}
	must(t, "release", h.Addresses.ReleaseAddress(ctx, app, mine.IP))
	if list := h.addresses(t, app); len(list) != 0 {
		t.Errorf("after the release there are %v", list)
	}
	if list := h.addresses(t, other); len(list) != 1 {
		t.Errorf("the other app has %v", list)
	}
}

func addressPrivate(t *testing.T, h Harness) {
	org, outer, inner := h.newOrg(t), uniqueName(), uniqueName()
	for app, network := range map[hangar.AppName]string{outer: "", inner: "inner"} {
		_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: org, Network: network})
		must(t, "create app", err)
		t.Cleanup(func() { h.dropApp(t, app) })
	}
	own := h.newAddress(t, outer, hangar.AddressCreate{Kind: hangar.AddressPrivateV6})
	if !hangar.IsFlycast(own.IP) || own.Network != hangar.DefaultNetwork || own.NetworkID == 0 || !strings.HasPrefix(own.IP.String(), "fdaa:") {
		t.Errorf("in its own network: %+v", own)
	}
	away := h.newAddress(t, outer, hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Org: org, Network: "inner"})
	if away.Network != "inner" || hangar.NetworkPrefix(away.IP) == hangar.NetworkPrefix(own.IP) {
		t.Errorf("in another network: %+v, in its own: %+v", away, own)
	}
	third := h.newAddress(t, inner, hangar.AddressCreate{Kind: hangar.AddressPrivateV6})
	if third.IP == away.IP || third.NetworkID != away.NetworkID || hangar.NetworkPrefix(third.IP) != hangar.NetworkPrefix(away.IP) {
		t.Errorf("two apps have %+v and %+v in a network", third, away)
	}
}

func addressBadInput(t *testing.T, h Harness) {
	ctx, app, org := h.Context(t), h.newApp(t), h.newOrg(t)
	for what, in := range map[string]struct {
		hangar.AddressCreate
		field string
	}{
		"no kind":            {hangar.AddressCreate{}, "type"},
		"an unknown kind":    {hangar.AddressCreate{Kind: "v5"}, "type"},
		"a bad region":       {hangar.AddressCreate{Kind: hangar.AddressV4, Region: "a region"}, "region"},
		"a long service":     {hangar.AddressCreate{Kind: hangar.AddressV4, Service: strings.Repeat("s", 1000)}, "service_name"},
		"another's":          {hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Org: org}, "org_slug"},
		"a public network":   {hangar.AddressCreate{Kind: hangar.AddressV6, Network: hangar.DefaultNetwork}, "network"},
		"an unknown network": {hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: "nowhere"}, "network"},
		"a bad network":      {hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: "../x"}, "network"},
		"a long network":     {hangar.AddressCreate{Kind: hangar.AddressPrivateV6, Network: strings.Repeat("n", 5000)}, "network"},
	} {
		_, err := h.Addresses.AllocateAddress(ctx, app, in.AddressCreate)
		wantError(t, what, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), in.field) {
			t.Errorf("%s: %v does not name %s", what, err, in.field)
		}
	}
	if list := h.addresses(t, app); len(list) != 0 {
		t.Errorf("after what was refused there are %v", list)
	}
	nothing := netip.MustParseAddr("192.0.2.1")
	wantError(t, "release", h.Addresses.ReleaseAddress(ctx, app, nothing), hangar.CodeNotFound, hangar.ReasonAddressNotFound)
	missing := uniqueName()
	_, err := h.Addresses.Addresses(ctx, missing)
	wantError(t, "of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Addresses.AllocateAddress(ctx, missing, hangar.AddressCreate{Kind: hangar.AddressV6})
	wantError(t, "for no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func addressRights(t *testing.T, h Harness) {
	app := h.newApp(t)
	at := h.newAddress(t, app, hangar.AddressCreate{Kind: hangar.AddressV6})
	for who, c := range map[string]struct {
		in           hangar.TokenCreate
		read, change hangar.Code
	}{
		"the app's token": {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}}, "", ""},
		"a reader":        {hangar.TokenCreate{Kind: hangar.TokenReadOnly}, "", hangar.CodeForbidden},
		"another app":     {hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{h.newApp(t)}}, hangar.CodeNotFound, hangar.CodeNotFound},
		"a stranger":      {hangar.TokenCreate{Kind: hangar.TokenOrg, Org: h.newOrg(t)}, hangar.CodeNotFound, hangar.CodeNotFound},
	} {
		as := h.with(t, c.in)
		ctx := as.Context(t)
		_, err := as.Addresses.Addresses(ctx, app)
		wantCode(t, who+" lists", err, c.read)
		made, err := as.Addresses.AllocateAddress(ctx, app, hangar.AddressCreate{Kind: hangar.AddressV6})
		wantCode(t, who+" allocates", err, c.change)
		ip := at.IP
		if err == nil {
			ip = made.IP
		}
		wantCode(t, who+" releases", as.Addresses.ReleaseAddress(ctx, app, ip), c.change)
	}
	if list := h.addresses(t, app); len(list) != 1 || list[0] != *at {
		t.Errorf("there are %v", list)
	}
}

func addressesGoWithApp(t *testing.T, h Harness) {
	app := h.newApp(t)
	for _, kind := range hangar.AddressKinds() {
		h.newAddress(t, app, hangar.AddressCreate{Kind: kind})
	}
	h.dropApp(t, app)
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	must(t, "create the app again", err)
	if list := h.addresses(t, app); len(list) != 0 {
		t.Errorf("the new app has %v", list)
	}
}
