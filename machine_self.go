package hangar

import (
	"context"
	"net/netip"
)

// ServicesAddress is the address of the platform inside every private network, as images of the public
// platform expect it. DNS answers on ServicesDNSPort and the API on ServicesAPIPort.
var ServicesAddress = netip.MustParseAddr("fdaa::3") //nolint:gochecknoglobals // a constant

// The ports of the platform's services at ServicesAddress.
const (
	ServicesDNSPort = 53   // UDP and TCP
	ServicesAPIPort = 4280 // HTTP
)

// ServicesSSHPort is the TCP port of a host's own private address that serves the port MachineSSHPort
// of its Machines. Clients must not call it directly.
const ServicesSSHPort = 4282

type selfKey struct{}

// WithSelf returns a context whose caller is a Machine that was identified by its connection, not by a
// token. The context also needs a principal; see AsMachine.
func WithSelf(ctx context.Context, ref MachineRef) context.Context {
	return context.WithValue(ctx, selfKey{}, ref)
}

// AsMachine returns a context in which a Machine of an organization calls; see WithSelf. Its principal
// is allowed ActionRead, ActionWrite and ActionControl on the Machine, and ActionRead on its App.
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
