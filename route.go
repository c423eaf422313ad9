package hangar

import (
	"context"
	"iter"
)

// AppRoute is what the edge needs to know of an App to serve it. It is never changed, only replaced.
type AppRoute struct {
	ID        AppID      `json:"id"`
	App       AppName    `json:"app"` // which may have belonged to another App, and may again
	Org       OrgID      `json:"org_id"`
	Network   NetworkID  `json:"network"`
	Addresses []Address  `json:"addresses,omitempty"`
	Hostnames []Hostname `json:"hostnames,omitempty"` // custom ones; the App's own name needs none
	// Seq grows with every change of the App's routes.
	Seq uint64 `json:"seq"`
}

// Public reports whether the App is open to the internet: it has a public address.
func (r *AppRoute) Public() bool {
	for i := range r.Addresses {
		if r.Addresses[i].Kind != AddressPrivateV6 {
			return true
		}
	}
	return false
}

// RouteFeed is how the edge learns of Apps and their addresses.
type RouteFeed interface {
	// WatchRoutes yields every App there is, then a change with Synced set, then every
	// change, until ctx ends. What cannot be read is skipped. After an error the caller
	// starts again.
	WatchRoutes(ctx context.Context) iter.Seq2[RouteChange, error]
}

// RouteChange is an App that appeared, changed or (Route nil) was destroyed.
type RouteChange struct {
	App    AppID
	Route  *AppRoute
	Synced bool // all existing routes have been yielded
}

// RouteHost tells control whether the edge of a server has followed a change.
type RouteHost interface {
	// AwaitRoute returns once the edge serves an App by its route with this seq or a later one.
	AwaitRoute(ctx context.Context, app AppID, seq uint64) error
	// Domain is the domain below which Apps have their names.
	Domain() Hostname
}
