package machine

import (
	"context"
	"fmt"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// openApp allocates the shared address for an App that has none, if its new Machine has a port that can be
// served there, so that the first Machine can be called without another command. It prints what it did,
// and errors. It returns the URL of the App, or "" if the App does not serve HTTP.
func (c commands) openApp(ctx context.Context, p *client.Client, app hangar.AppName, config *hangar.MachineConfig) string {
	shareable, others := publicPortsOf(config)
	if !shareable && !others {
		return ""
	}
	list, err := p.Addresses(ctx, app)
	if err != nil {
		fmt.Fprintf(c.Stderr, "The addresses of the App cannot be listed: %s\n", err)
		return ""
	}
	public := slices.ContainsFunc(list, func(a hangar.Address) bool { return a.Kind != hangar.AddressPrivateV6 })
	if len(list) == 0 && shareable {
		made, err := p.AllocateAddress(ctx, app, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
		if err != nil {
			fmt.Fprintf(c.Stderr, "App %s has no address, and none could be allocated: %s\n", app, err)
			return ""
		}
		fmt.Fprintf(c.Stderr, "App %s had no address and is now served at %s, which Apps share.\n", app, made.IP)
		public = true
	}
	if own := func(a hangar.Address) bool { return a.Kind != hangar.AddressSharedV4 }; others && !slices.ContainsFunc(list, own) {
		fmt.Fprintf(c.Stderr, "Ports without TLS and HTTP need an address of the App's own: hangar ips allocate %s --v4\n", app)
	}
	if !public || !servesHTTP(config) {
		return ""
	}
	known, err := p.App(ctx, app)
	if err != nil {
		return ""
	}
	return known.URL
}

// publicPortsOf reports whether a Machine has ports that can be served at a shared address, and whether it
// has others.
func publicPortsOf(config *hangar.MachineConfig) (shareable, others bool) {
	for i := range config.Services {
		for k := range config.Services[i].Ports {
			if config.Services[i].Handling(&config.Services[i].Ports[k]).Shareable() {
				shareable = true
			} else {
				others = true
			}
		}
	}
	return shareable, others
}

// servesHTTP reports whether the Machine serves HTTP at port 80.
func servesHTTP(config *hangar.MachineConfig) bool {
	for _, s := range config.Services {
		for i := range s.Ports {
			if s.Ports[i].Covers(portHTTP) && s.Handling(&s.Ports[i]).HTTP {
				return true
			}
		}
	}
	return false
}
