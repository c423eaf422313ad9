package graphql

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// platformVersion tells clients that an App has Machines.
const platformVersion = "machines"

// url is where the edge serves an App; nil: there is no edge.
func url(q *query, a *hangar.App) *string {
	if q.Services.AppURL == nil {
		return nil
	}
	return new(q.Services.AppURL(a.Name))
}

func hostname(q *query, a *hangar.App, _ args) (any, error) {
	at := url(q, a)
	if at == nil {
		return nil, nil //nolint:nilnil // null
	}
	_, host, _ := strings.Cut(*at, "://")
	host, _, _ = strings.Cut(host, "/")
	return host, nil
}

// machinesOf are the Machines of an App.
func machinesOf(q *query, a *hangar.App) ([]*hangar.Machine, error) {
	return called(q, func() ([]*hangar.Machine, error) {
		return q.Services.Machines.Machines(q, a.Name, hangar.MachineFilter{})
	})
}

// currentRelease is the current release of an App, or nil. It is read once for all fields that need it.
func currentRelease(q *query, a *hangar.App) (*hangar.Release, error) {
	if r, read := q.Services.current[a.ID]; read {
		return r, nil
	}
	r, err := called(q, func() (*hangar.Release, error) { return q.Services.Releases.CurrentRelease(q, a.Name) })
	if hangar.ReasonOf(err) == hangar.ReasonReleaseNotFound {
		r, err = nil, nil
	}
	if err == nil {
		q.Services.current[a.ID] = r
	}
	return r, err
}

func current(q *query, a *hangar.App, _ args) (any, error) { return currentRelease(q, a) }

func releases(q *query, a *hangar.App, in args) (any, error) {
	list, err := called(q, func() ([]*hangar.Release, error) { return q.Services.Releases.Releases(q, a.Name, 0) })
	if err != nil {
		return nil, err
	}
	return page(in, list)
}

// appConfig is what an App was deployed with.
type appConfig struct{ definition json.RawMessage }

// sharedService is a service of the Machines of an App.
type sharedService struct{ hangar.Service }

// servicesOf are the services of the Machines of an App, each once.
func servicesOf(machines []*hangar.Machine) []sharedService {
	list := []sharedService{}
	for _, m := range machines {
		for _, s := range m.Config.Services {
			if !slices.ContainsFunc(list, func(o sharedService) bool { return o.InternalPort == s.InternalPort && o.Protocol == s.Protocol }) {
				list = append(list, sharedService{s})
			}
		}
	}
	return list
}

func defineApp(s *schema) {
	type app = *hangar.App
	execute.Define(s, "App", fields[app]{
		"id":                field(func(a app) hangar.AppName { return a.Name }),
		"internalNumericId": field(func(a app) uint64 { return a.NumericID }),
		"name":              field(func(a app) hangar.AppName { return a.Name }),
		"status":            field(func(a app) hangar.AppStatus { return a.Status }),
		"state": field(func(a app) string {
			if a.Status == hangar.AppDeployed {
				return "DEPLOYED"
			}
			return "PENDING"
		}),
		"deployed":    field(func(a app) bool { return a.Status == hangar.AppDeployed }),
		"suspended":   always[app](false),
		"hostname":    hostname,
		"appUrl":      func(q *query, a app, _ args) (any, error) { return url(q, a), nil },
		"cnameTarget": hostname,
		"version": func(q *query, a app, _ args) (any, error) {
			r, err := currentRelease(q, a)
			if r == nil || err != nil {
				return 0, err
			}
			return r.Version, nil
		},
		"platformVersion": always[app](platformVersion),
		"network":         field(func(a app) string { return a.Network }),
		"networkId":       field(func(a app) hangar.NetworkID { return a.NetworkID }),
		"createdAt":       field(func(a app) any { return a.CreatedAt }),
		"organization":    field(func(a app) *hangar.Org { return &a.Org }),
		"role":            null[app],
		"config": func(q *query, a app, _ args) (any, error) {
			r, err := currentRelease(q, a)
			if r == nil || len(r.Definition) == 0 || err != nil {
				return appConfig{json.RawMessage("{}")}, err
			}
			return appConfig{r.Definition}, nil
		},
		"currentRelease":              current,
		"currentReleaseUnprocessed":   current,
		"release":                     release,
		"releases":                    releases,
		"releasesUnprocessed":         releases,
		"image":                       resolveImage,
		"imageDetails":                imageDetails,
		"latestImageDetails":          null[app],
		"imageUpgradeAvailable":       always[app](false),
		"imageVersionTrackingEnabled": always[app](false),
		"regions":                     appRegions,
		"services": func(q *query, a app, _ args) (any, error) {
			list, err := machinesOf(q, a)
			return servicesOf(list), err
		},
		"secrets":             secrets,
		"ipAddresses":         addresses,
		"sharedIpAddress":     sharedAddress,
		"egressIpAddresses":   always[app](whole{[]any{}}),
		"certificates":        certificates,
		"certificate":         certificate,
		"machines":            machines,
		"machine":             machineOfApp,
		"volumes":             volumes,
		"limitedAccessTokens": func(q *query, a app, in args) (any, error) { return tokens(q, in, hangar.TokenFilter{App: a.Name}) },
		"hostIssues":          always[app](whole{[]any{}}),
	})
	execute.Define(s, "AppRole", fields[nothing]{"name": null[nothing]})
	execute.Define(s, "AppConfig", fields[appConfig]{"definition": field(func(c appConfig) json.RawMessage { return c.definition })})
	execute.Define(s, "Issue", fields[nothing]{
		"internalId": null[nothing], "message": null[nothing], "createdAt": null[nothing], "updatedAt": null[nothing],
	})
	execute.Define(s, "Service", fields[sharedService]{
		"description":  always[sharedService](""),
		"protocol":     field(func(v sharedService) string { return strings.ToUpper(orTCP(v.Protocol)) }),
		"internalPort": field(func(v sharedService) int { return v.InternalPort }),
		"ports":        field(func(v sharedService) []hangar.ServicePort { return v.Ports }),
	})
	execute.Define(s, "ServicePort", fields[hangar.ServicePort]{
		"port": field(func(p hangar.ServicePort) int {
			first, _ := p.Range()
			return first
		}),
		"handlers": field(func(p hangar.ServicePort) []string {
			handlers := []string{}
			for _, h := range p.Handlers {
				handlers = append(handlers, strings.ToUpper(h))
			}
			return handlers
		}),
	})
	execute.Define(s, "Secret", fields[hangar.Secret]{
		"id":        field(func(v hangar.Secret) string { return v.Name }),
		"name":      field(func(v hangar.Secret) string { return v.Name }),
		"digest":    field(func(v hangar.Secret) string { return v.Digest }),
		"createdAt": field(func(v hangar.Secret) any { return v.CreatedAt }),
	})
}

func orTCP(protocol string) string {
	if protocol == "" {
		return "tcp"
	}
	return protocol
}

func secrets(q *query, a *hangar.App, _ args) (any, error) {
	all, err := called(q, func() (hangar.Secrets, error) { return q.Services.Secrets.Secrets(q, a.Name, hangar.SecretQuery{}) })
	if all.List == nil {
		all.List = []hangar.Secret{}
	}
	return all.List, err
}

// appRegions are the regions in which an App has Machines.
func appRegions(q *query, a *hangar.App, _ args) (any, error) {
	list, err := machinesOf(q, a)
	found := []region{}
	for _, m := range list {
		if !slices.Contains(found, region{m.Region}) {
			found = append(found, region{m.Region})
		}
	}
	return found, err
}

func machines(q *query, a *hangar.App, in args) (any, error) {
	list, err := machinesOf(q, a)
	if err != nil {
		return nil, err
	}
	return page(in, list)
}

func machineOfApp(q *query, a *hangar.App, in args) (any, error) {
	return called(q, func() (*hangar.Machine, error) {
		return q.Services.Machines.Machine(q, hangar.MachineRef{App: a.Name, ID: hangar.MachineID(in.Text("id"))})
	})
}

func volumes(q *query, a *hangar.App, in args) (any, error) {
	list, err := called(q, func() ([]*hangar.Volume, error) { return q.Services.Volumes.Volumes(q, a.Name) })
	if err != nil {
		return nil, err
	}
	return page(in, list)
}

func release(q *query, a *hangar.App, in args) (any, error) {
	version, set, err := in.Int("version")
	if err != nil {
		return nil, err
	}
	list, err := called(q, func() ([]*hangar.Release, error) { return q.Services.Releases.Releases(q, a.Name, 0) })
	for _, r := range list {
		if set && r.Version == version || in.Text("id") == string(r.ID) {
			return r, nil
		}
	}
	return nil, err
}
