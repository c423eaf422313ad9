package graphql

import (
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// appNotFound has the text by which existing clients know that there is no such App.
func appNotFound() error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAppNotFound, "Could not find App")
}

// app returns an App by its name or its id.
func app(q *query, id string) (*hangar.App, error) {
	found, err := called(q, func() (*hangar.App, error) { return q.Services.Apps.App(q, hangar.AppName(id)) })
	if hangar.CodeOf(err) != hangar.CodeNotFound {
		return found, err
	}
	return appByID(q, hangar.AppID(id))
}

func appByID(q *query, id hangar.AppID) (*hangar.App, error) {
	all, err := called(q, func() ([]*hangar.App, error) { return q.Services.Apps.Apps(q, hangar.AppFilter{}) })
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(a *hangar.App) bool { return a.ID == id }); i >= 0 {
		return all[i], nil
	}
	return nil, appNotFound()
}

// org returns an organization by its id or its slug.
func org(q *query, id string) (*hangar.Org, error) {
	all, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(o *hangar.Org) bool { return string(o.ID) == id }); i >= 0 {
		return all[i], nil
	}
	return called(q, func() (*hangar.Org, error) { return q.Services.Orgs.Org(q, hangar.OrgSlug(id)) })
}

// slug returns the slug of an organization that a client names by its id or its slug. It is empty if id
// is.
func slug(q *query, id string) (hangar.OrgSlug, error) {
	if id == "" {
		return "", nil
	}
	o, err := org(q, id)
	if err != nil {
		return "", err
	}
	return o.Slug, nil
}

// machineByID returns a Machine of any App that the caller may read.
func machineByID(q *query, id hangar.MachineID) (*hangar.Machine, error) {
	notFound := hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", input.Clip(string(id)))
	if !id.Valid() {
		return nil, notFound
	}
	orgs, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
	if err != nil {
		return nil, err
	}
	first := hangar.MachinePageQuery{Limit: 1}
	first.StartAt(id)
	for _, o := range orgs {
		page, err := called(q, func() (hangar.MachinePage, error) { return q.Services.Machines.OrgMachines(q, o.Slug, first) })
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound: // it was deleted meanwhile
		case err != nil:
			return nil, err
		case len(page.Machines) > 0 && page.Machines[0].ID == id:
			return page.Machines[0], nil
		}
	}
	return nil, notFound
}

// volumeByID returns a volume of any App that the caller may read.
func volumeByID(q *query, id hangar.VolumeID) (*hangar.Volume, error) {
	notFound := hangar.Errorf(hangar.CodeNotFound, hangar.ReasonVolumeNotFound, "volume not found")
	if !id.Valid() {
		return nil, notFound
	}
	orgs, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
	if err != nil {
		return nil, err
	}
	// Ids are ASCII, so no other id sorts between this one and id.
	last := len(id) - 1
	before := id[:last] + hangar.VolumeID(id[last]-1)
	for _, o := range orgs {
		list, err := called(q, func() ([]*hangar.Volume, error) { return q.Services.Volumes.OrgVolumes(q, o.Slug, before, 1) })
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound: // it was deleted meanwhile
		case err != nil:
			return nil, err
		case len(list) > 0 && list[0].ID == id:
			return list[0], nil
		}
	}
	return nil, notFound
}

// node returns the volume, Machine, organization or App with an id.
func node(q *query, id string) (any, error) {
	switch {
	case hangar.VolumeID(id).Valid():
		return volumeByID(q, hangar.VolumeID(id))
	case hangar.MachineID(id).Valid():
		return machineByID(q, hangar.MachineID(id))
	}
	o, err := org(q, id)
	if hangar.CodeOf(err) != hangar.CodeNotFound {
		return o, err
	}
	return app(q, id)
}

// region is a region of the platform.
type region struct{ code hangar.Region }

func regions(q *query) ([]region, error) {
	rooms, err := called(q, func() ([]hangar.RegionRoom, error) { return q.Services.Platform.Regions(q, hangar.Guest{}) })
	list := make([]region, 0, len(rooms))
	for _, room := range rooms {
		list = append(list, region{room.Region})
	}
	return list, err
}

// platform is the platform as a whole.
type platform struct{}

func defineRoot(s *schema) {
	execute.Define(s, "Query", fields[root]{
		"viewer": viewer,
		"app": func(q *query, _ root, in args) (any, error) {
			name := in.Text("name")
			if name == "" {
				return nil, input.Invalid("name", "is required")
			}
			return app(q, name)
		},
		"appNameAvailable": func(q *query, _ root, in args) (any, error) {
			_, err := called(q, func() (*hangar.App, error) { return q.Services.Apps.App(q, hangar.AppName(in.Text("name"))) })
			switch hangar.CodeOf(err) {
			case hangar.CodeNotFound:
				return true, nil
			case "", hangar.CodeForbidden:
				return false, nil
			default:
				return nil, err
			}
		},
		"apps":          apps,
		"organization":  oneOrg,
		"organizations": orgs,
		"personalOrganization": func(q *query, _ root, _ args) (any, error) {
			return called(q, func() (*hangar.Org, error) { return q.Services.Orgs.Org(q, hangar.OrgPersonal) })
		},
		"machine": func(q *query, _ root, in args) (any, error) {
			return machineByID(q, hangar.MachineID(in.Text("machineId")))
		},
		"node":     func(q *query, _ root, in args) (any, error) { return node(q, in.Text("id")) },
		"platform": field(func(root) platform { return platform{} }),
		"nearestRegion": func(q *query, _ root, _ args) (any, error) {
			return region{q.Services.Region}, nil
		},
		"latestImageDetails": func(*query, root, args) (any, error) {
			// Existing clients take exactly this error to mean that no newer image is known.
			return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "Unknown repository")
		},
		"canPerformBluegreenDeployment": func(q *query, _ root, in args) (any, error) {
			_, err := app(q, in.Text("name"))
			return err == nil, err
		},
	})
	execute.Define(s, "PlatformRegions", fields[platform]{
		"requestRegion": func(q *query, _ platform, _ args) (any, error) { return q.Services.Region, nil },
		"regions":       func(q *query, _ platform, _ args) (any, error) { return regions(q) },
	})
	execute.Define(s, "Region", fields[region]{
		"code":             field(func(r region) hangar.Region { return r.code }),
		"name":             field(func(r region) hangar.Region { return r.code }),
		"latitude":         field(func(region) float64 { return 0 }),
		"longitude":        field(func(region) float64 { return 0 }),
		"gatewayAvailable": field(func(region) bool { return true }),
		"requiresPaidPlan": field(func(region) bool { return false }),
		"deprecated":       field(func(region) bool { return false }),
	})
	execute.Define(s, "User", fields[*hangar.User]{
		"id": field(func(u *hangar.User) hangar.UserID { return u.ID }),
		// UserAdmin has no address, but clients need one.
		"email": field(func(u *hangar.User) string {
			if u.Email == "" {
				return string(u.ID)
			}
			return u.Email
		}),
		"name":            field(func(u *hangar.User) string { return u.Name }),
		"enablePaidHobby": field(func(*hangar.User) bool { return false }),
	})
	execute.Define(s, "Macaroon", fields[macaroon]{"email": field(func(m macaroon) string { return m.subject })})
}

// macaroon is a caller that is not a user who has signed in.
type macaroon struct{ subject string }

// viewer is the caller.
func viewer(q *query, _ root, _ args) (any, error) {
	who := q.Services.caller
	if who.SignedIn || who.Admin {
		user, err := called(q, func() (*hangar.User, error) { return q.Services.Users.CurrentUser(q) })
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			return user, err
		}
	}
	return macaroon{who.Subject}, nil
}

// apps lists Apps. A role selects none, because no App has one.
func apps(q *query, _ root, in args) (any, error) {
	filter := hangar.AppFilter{}
	var err error
	if filter.Org, err = slug(q, in.Text("organizationId")); err != nil {
		return nil, err
	}
	if in.Text("role") != "" {
		return page(in, []*hangar.App{})
	}
	list, err := called(q, func() ([]*hangar.App, error) { return q.Services.Apps.Apps(q, filter) })
	if err != nil {
		return nil, err
	}
	return page(in, list)
}

// oneOrg finds an organization by its slug or its id.
func oneOrg(q *query, _ root, in args) (any, error) {
	switch {
	case in.Text("slug") != "":
		return called(q, func() (*hangar.Org, error) { return q.Services.Orgs.Org(q, hangar.OrgSlug(in.Text("slug"))) })
	case in.Text("id") != "":
		return org(q, in.Text("id"))
	case in.Text("name") != "":
		all, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(all, func(o *hangar.Org) bool { return o.Name == in.Text("name") }); i >= 0 {
			return all[i], nil
		}
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization")
	default:
		return nil, input.Invalid("slug", "is required")
	}
}

// orgs lists organizations. If admin is true, it lists only those that the caller manages.
func orgs(q *query, _ root, in args) (any, error) {
	all, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
	if err != nil {
		return nil, err
	}
	list := make([]*hangar.Org, 0, len(all))
	kind := strings.ToUpper(in.Text("type"))
	admin := in.Bool("admin")
	for _, o := range all {
		if admin != nil && *admin && roleIn(q, o) != string(hangar.RoleAdmin) || kind != "" && kind != string(orgType(o)) {
			continue
		}
		list = append(list, o)
	}
	return page(in, list)
}
