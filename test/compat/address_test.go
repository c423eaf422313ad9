package compat_test

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// ipAssignment is an address as the public client has it.
type ipAssignment struct {
	IP          string    `json:"ip"`
	Region      string    `json:"region"`
	ServiceName string    `json:"service_name"`
	Shared      bool      `json:"shared"`
	CreatedAt   time.Time `json:"created_at"`
}

// assignIP is the request for one. It has no optional property: unused ones are sent empty.
type assignIP struct {
	Type        string `json:"type"`
	Region      string `json:"region"`
	OrgSlug     string `json:"org_slug"`
	Network     string `json:"network"`
	ServiceName string `json:"service_name"`
}

// addresses does what the first deployment of an App does, and `ips` commands.
func (w world) addresses(t *testing.T) {
	ctx := t.Context()
	_, err := w.createApp(ctx, "public")
	must(t, "create app", err)
	all := "/v1/apps/public/ip_assignments"
	list := func() []ipAssignment {
		var out struct {
			IPs []ipAssignment `json:"ips"`
		}
		must(t, "list addresses", w.call(ctx, http.MethodGet, all, nil, &out))
		return out.IPs
	}
	if got := list(); len(got) != 0 {
		t.Errorf("a new app has %+v", got)
	}
	given := map[string]ipAssignment{}
	for kind, in := range map[string]assignIP{
		"v6": {Type: "v6"}, "shared_v4": {Type: "shared_v4"}, "v4": {Type: "v4", Region: "global"}, "private_v6": {Type: "private_v6", OrgSlug: "personal"},
	} {
		var made ipAssignment
		must(t, "assign "+kind, w.call(ctx, http.MethodPost, all, in, &made))
		ip, err := netip.ParseAddr(made.IP)
		// Clients distinguish the kinds by these alone.
		private := ip.Is6() && strings.HasPrefix(made.IP, "fdaa:")
		if err != nil || made.Shared != (kind == "shared_v4") || private != (kind == "private_v6") || ip.Is4() != strings.HasSuffix(kind, "v4") || made.CreatedAt.IsZero() {
			t.Errorf("assigned for %s: %+v", kind, made)
		}
		given[made.IP] = made
	}
	for _, a := range list() {
		if given[a.IP] != a {
			t.Errorf("listed %+v, assigned %+v", a, given[a.IP])
		}
		must(t, "release", w.call(ctx, http.MethodDelete, all+"/"+url.PathEscape(a.IP), nil, nil))
		delete(given, a.IP)
	}
	if got := list(); len(got) != 0 || len(given) != 0 {
		t.Errorf("there remain %+v, and %+v were not listed", got, given)
	}
	wantFailure(t, "another kind", w.call(ctx, http.MethodPost, all, assignIP{Type: "egress_v4"}, nil), 400, "type")
	wantFailure(t, "an address that is not there", w.call(ctx, http.MethodDelete, all+"/192.0.2.1", nil, nil), 404, "")
	must(t, "delete app", w.deleteApp(ctx, "public"))
}
