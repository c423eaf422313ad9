package hangar

import (
	"context"
	"net/netip"
)

// ServicesAddress is where the platform is from inside every private network: DNS on
// ServicesDNSPort and the API on ServicesAPIPort, over the private IPv6 address of the
// public platform that images expect.
var ServicesAddress = netip.MustParseAddr("fdaa::3") //nolint:gochecknoglobals // a constant

// The ports of the platform's services at ServicesAddress.
const (
	ServicesDNSPort = 53   // UDP and TCP
	ServicesAPIPort = 4280 // HTTP
)

// ServicesSSHPort is the TCP port of a host's own private address at which it answers for the port
// MachineSSHPort of its Machines. It is not to be called directly.
const ServicesSSHPort = 4282

type selfKey struct{}

// WithSelf returns a context whose caller is a Machine that is known by the way by
// which it called, not by a token. It comes with a principal that is allowed what a
// Machine may do to itself.
func WithSelf(ctx context.Context, ref MachineRef) context.Context {
	return context.WithValue(ctx, selfKey{}, ref)
}

// AsMachine returns a context in which a Machine of an organization calls, known by the
// way by which it called: see WithSelf. It may read and annotate itself and ask to be
// suspended, and read its App.
func AsMachine(ctx context.Context, org OrgSlug, orgID OrgID, ref MachineRef) context.Context {
	app := Grant{Org: org, OrgID: orgID, Apps: []AppName{ref.App}, AppIDs: []AppID{ref.AppID}, Actions: ActionRead}
	itself := app
	itself.Machines, itself.Actions = []MachineID{ref.ID}, ActionRead|ActionWrite|ActionControl
	ctx = WithPrincipal(ctx, Principal{Subject: "machine " + string(ref.ID), Grants: []Grant{itself, app}})
	return WithEventSource(WithSelf(ctx, ref), SourceMachine)
}

// SelfFrom returns the Machine that calls, if the caller is one.
func SelfFrom(ctx context.Context) (MachineRef, bool) {
	ref, ok := ctx.Value(selfKey{}).(MachineRef)
	return ref, ok
}
