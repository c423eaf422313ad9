package contract

import (
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// PeerService checks an implementation of hangar.PeerService, with keys without private halves.
func PeerService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"life":      peerLife,
		"names":     peerNames,
		"networks":  peerNetworks,
		"bad input": peerBadInput,
		"rights":    peerRights,
		"org":       peersGoWithOrg,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func newPeerKey() hangar.PeerKey {
	var b [32]byte
	_, _ = rand.Read(b[:])
	return hangar.PeerKey(base64.StdEncoding.EncodeToString(b[:]))
}

func (h Harness) newPeer(t *testing.T, org hangar.OrgSlug, in hangar.PeerCreate) *hangar.NewPeer {
	t.Helper()
	if in.PublicKey == "" {
		in.PublicKey = newPeerKey()
	}
	made, err := h.Peers.CreatePeer(h.Context(t), org, in)
	if err != nil {
		t.Fatalf("create peer: %v", err)
	}
	return made
}

func peerLife(t *testing.T, h Harness) {
	ctx, org := h.Context(t), h.newOrg(t)
	list, err := h.Peers.Peers(ctx, org)
	must(t, "list", err)
	if len(list) != 0 {
		t.Errorf("a new organization has peers %v", list)
	}
	made := h.newPeer(t, org, hangar.PeerCreate{Name: "laptop"})
	other := h.newPeer(t, org, hangar.PeerCreate{Name: "desk"})
	if made.Name != "laptop" || made.Org != org || made.Network != hangar.DefaultNetwork || made.NetworkID == 0 || made.CreatedAt.IsZero() {
		t.Errorf("made %+v", made)
	}
	if made.EndpointIP == "" || made.EndpointPort == 0 || made.GatewayKey == "" || made.PeerGateway != other.PeerGateway {
		t.Errorf("gateways of two peers: %+v, %+v", made.PeerGateway, other.PeerGateway)
	}
	if !made.Address.Is6() || made.Prefix().Overlaps(other.Prefix()) || hangar.NetworkPrefix(made.Address) != hangar.NetworkPrefix(other.Address) {
		t.Errorf("two peers of a network have %s and %s", made.Prefix(), other.Prefix())
	}
	list, err = h.Peers.Peers(ctx, org)
	must(t, "list", err)
	if len(list) != 2 || list[0].Peer != other.Peer || list[1].Peer != made.Peer {
		t.Errorf("listed %+v, made %+v and %+v", list, made.Peer, other.Peer)
	}
	must(t, "remove", h.Peers.RemovePeer(ctx, org, "laptop"))
	wantError(t, "remove again", h.Peers.RemovePeer(ctx, org, "laptop"), hangar.CodeNotFound, hangar.ReasonPeerNotFound)
	again := h.newPeer(t, org, hangar.PeerCreate{Name: "laptop", PublicKey: made.PublicKey})
	if again.Address == made.Address {
		t.Errorf("address %s was given twice", made.Address)
	}
}

func peerNames(t *testing.T, h Harness) {
	ctx, org := h.Context(t), h.newOrg(t)
	made := h.newPeer(t, org, hangar.PeerCreate{})
	if !strings.HasPrefix(made.Name, hangar.PeerInteractive) {
		t.Errorf("a peer without a name is called %q", made.Name)
	}
	_, err := h.Peers.CreatePeer(ctx, org, hangar.PeerCreate{Name: made.Name, PublicKey: newPeerKey()})
	wantError(t, "the name again", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	h.newPeer(t, h.newOrg(t), hangar.PeerCreate{Name: made.Name})
}

func peerNetworks(t *testing.T, h Harness) {
	org, app := h.newOrg(t), uniqueName()
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: org, Network: "inner"})
	must(t, "create app", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	outer, inner := h.newPeer(t, org, hangar.PeerCreate{}), h.newPeer(t, org, hangar.PeerCreate{Network: "inner"})
	if inner.Network != "inner" || inner.NetworkID == outer.NetworkID || hangar.NetworkPrefix(inner.Address) == hangar.NetworkPrefix(outer.Address) {
		t.Errorf("networks of peers: %+v, %+v", outer, inner)
	}
	_, err = h.Peers.CreatePeer(h.Context(t), org, hangar.PeerCreate{Network: "nowhere", PublicKey: newPeerKey()})
	wantError(t, "a network that is not there", err, hangar.CodeInvalid, "")
}

func peerBadInput(t *testing.T, h Harness) {
	ctx, org := h.Context(t), h.newOrg(t)
	made := h.newPeer(t, org, hangar.PeerCreate{Name: "first"})
	key := newPeerKey()
	for what, in := range map[string]struct {
		hangar.PeerCreate
		field string
	}{
		"no key":        {hangar.PeerCreate{Name: "a"}, "public_key"},
		"bad base64":    {hangar.PeerCreate{PublicKey: "!" + key[1:]}, "public_key"},
		"a line feed":   {hangar.PeerCreate{PublicKey: key + "\n"}, "public_key"},
		"a short key":   {hangar.PeerCreate{PublicKey: "AAAA"}, "public_key"},
		"a long key":    {hangar.PeerCreate{PublicKey: hangar.PeerKey(base64.StdEncoding.EncodeToString(make([]byte, 33)))}, "public_key"},
		"a zero key":    {hangar.PeerCreate{PublicKey: hangar.PeerKey(base64.StdEncoding.EncodeToString(make([]byte, 32)))}, "public_key"},
		"a key twice":   {hangar.PeerCreate{PublicKey: made.PublicKey}, "public_key"},
		"an underscore": {hangar.PeerCreate{Name: "a_b", PublicKey: key}, "name"},
		"a dot":         {hangar.PeerCreate{Name: "a.b", PublicKey: key}, "name"},
		"a slash":       {hangar.PeerCreate{Name: "a/b", PublicKey: key}, "name"},
		"a long name":   {hangar.PeerCreate{Name: strings.Repeat("a", 64), PublicKey: key}, "name"},
		"a bad network": {hangar.PeerCreate{Network: "a/b", PublicKey: key}, "network"},
	} {
		_, err := h.Peers.CreatePeer(ctx, org, in.PeerCreate)
		wantError(t, what, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), in.field) {
			t.Errorf("%s: %v does not name %s", what, err, in.field)
		}
	}
	for _, name := range []string{"nobody", "..", "a b", strings.Repeat("a", 300)} {
		wantError(t, "remove "+name, h.Peers.RemovePeer(ctx, org, name), hangar.CodeNotFound, "")
	}
	list, err := h.Peers.Peers(ctx, org)
	must(t, "list", err)
	if len(list) != 1 {
		t.Errorf("after what was refused there are %v", list)
	}
	_, err = h.Peers.CreatePeer(ctx, "no-such-org", hangar.PeerCreate{PublicKey: key})
	wantError(t, "without an organization", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
}

func peerRights(t *testing.T, h Harness) {
	org, other, app := h.newOrg(t), h.newOrg(t), uniqueName()
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: org})
	must(t, "create app", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	h.newPeer(t, org, hangar.PeerCreate{Name: "mine"})
	as := func(in hangar.TokenCreate) Harness {
		made, err := h.Tokens.CreateToken(h.Context(t), in)
		must(t, "create token", err)
		return h.As(t, made.Text)
	}
	for who, c := range map[string]struct {
		h            Harness
		read, change hangar.Code
	}{
		"an organization": {as(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: org}), "", ""},
		"a reader":        {as(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: org}), "", hangar.CodeForbidden},
		"an app":          {as(hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: org, Apps: []hangar.AppName{app}}), hangar.CodeForbidden, hangar.CodeForbidden},
		"a stranger":      {as(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: other}), hangar.CodeNotFound, hangar.CodeNotFound},
	} {
		ctx := c.h.Context(t)
		_, err := c.h.Peers.Peers(ctx, org)
		wantCode(t, who+" lists", err, c.read)
		made, err := c.h.Peers.CreatePeer(ctx, org, hangar.PeerCreate{PublicKey: newPeerKey()})
		wantCode(t, who+" creates", err, c.change)
		name := "mine"
		if err == nil {
			name = made.Name
		}
		wantCode(t, who+" removes", c.h.Peers.RemovePeer(ctx, org, name), c.change)
	}
	list, err := h.Peers.Peers(h.Context(t), org)
	must(t, "list", err)
	if !slices.ContainsFunc(list, func(p hangar.PeerStatus) bool { return p.Name == "mine" }) {
		t.Errorf("there are %v", list)
	}
}

func wantCode(t *testing.T, what string, err error, code hangar.Code) {
	t.Helper()
	if code == "" {
		must(t, what, err)
		return
	}
	wantError(t, what, err, code, "")
}

func peersGoWithOrg(t *testing.T, h Harness) {
	ctx, org := h.Context(t), h.newOrg(t)
	made := h.newPeer(t, org, hangar.PeerCreate{Name: "laptop"})
	must(t, "delete the organization", h.Orgs.DeleteOrg(ctx, org))
	_, err := h.Peers.Peers(ctx, org)
	wantError(t, "list", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	_, err = h.Orgs.CreateOrg(ctx, hangar.OrgCreate{Slug: org})
	must(t, "create it again", err)
	list, err := h.Peers.Peers(ctx, org)
	must(t, "list", err)
	if len(list) != 0 {
		t.Errorf("the new organization has %v", list)
	}
	h.newPeer(t, org, hangar.PeerCreate{Name: "laptop", PublicKey: made.PublicKey})
}
