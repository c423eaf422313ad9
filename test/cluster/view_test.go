package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// view is what one server shows of the platform.
type view struct {
	apps     map[hangar.AppName]bool
	machines map[hangar.AppName]map[hangar.MachineID]*hangar.Machine
	secrets  map[hangar.AppName]map[string]string
}

// viewOf reads all that a server shows. Of Machines that is what their own hosts say.
func viewOf(t *testing.T, s *server) *view {
	t.Helper()
	v := &view{apps: map[hangar.AppName]bool{}, machines: map[hangar.AppName]map[hangar.MachineID]*hangar.Machine{}, secrets: map[hangar.AppName]map[string]string{}}
	apps, err := s.client().Apps(t.Context(), hangar.AppFilter{Org: hangar.OrgPersonal})
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	for _, a := range apps {
		v.apps[a.Name] = true
		if !strings.HasPrefix(string(a.Name), "w") {
			continue
		}
		list, err := s.client().Machines(t.Context(), a.Name, hangar.MachineFilter{})
		if hangar.CodeOf(err) == hangar.CodeNotFound { // a server finishes its removal just now
			delete(v.apps, a.Name)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		v.machines[a.Name] = map[hangar.MachineID]*hangar.Machine{}
		for _, m := range list {
			if v.machines[a.Name][m.ID] != nil {
				t.Errorf("%s lists the Machine %s twice", s, m.ID)
			}
			v.machines[a.Name][m.ID] = m
		}
		secrets, err := s.client().Secrets(t.Context(), a.Name, hangar.SecretQuery{Show: true})
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		v.secrets[a.Name] = map[string]string{}
		for _, secret := range secrets.List {
			v.secrets[a.Name][secret.Name] = secret.Value.Reveal()
		}
	}
	return v
}

// compareApp compares one App with what its writer knows.
func (v *view) compareApp(t *testing.T, s *server, a *appFact) {
	t.Helper()
	switch shown := v.apps[a.name]; {
	case a.there == present && !shown:
		t.Errorf("%s: the App %s was acknowledged and is not there", s, a.name)
		return
	case a.there == absent && shown:
		t.Errorf("%s: the App %s was destroyed and is there", s, a.name)
		return
	case !shown || a.there == unknown:
		return
	}
	for name, value := range a.secrets {
		if got := v.secrets[a.name][name]; !value.allows(got) {
			t.Errorf("%s: the secret %s of %s is %q and may be %q", s, name, a.name, got, value.may)
		}
	}
	known := map[hangar.MachineID]bool{}
	for _, m := range a.machines {
		known[m.ref.ID] = true
		shown := v.machines[a.name][m.ref.ID]
		switch {
		case m.there == present && shown == nil:
			t.Errorf("%s: the Machine %s (%s) of %s was acknowledged and is not there", s, m.ref.ID, m.name, a.name)
		case m.there == absent && shown != nil:
			t.Errorf("%s: the Machine %s (%s) of %s was destroyed and is %s", s, m.ref.ID, m.name, a.name, shown.State)
		case m.there == present:
			if shown.Name != m.name {
				t.Errorf("%s: the Machine %s is called %q and not %q", s, m.ref.ID, shown.Name, m.name)
			}
			for key, value := range m.pairs {
				if got := shown.Config.Metadata[key]; !value.allows(got) {
					t.Errorf("%s: the metadata %s of %s is %q and may be %q", s, key, m.ref.ID, got, value.may)
				}
			}
		}
	}
	for id, m := range v.machines[a.name] {
		if !known[id] && !a.lost[m.Name] {
			t.Errorf("%s: no one has made the Machine %s (%s) of %s", s, id, m.Name, a.name)
		}
	}
}

// unique looks for ids, addresses and names that two Machines have.
func (v *view) unique(t *testing.T, s *server) {
	t.Helper()
	ids, addresses := map[hangar.MachineID]hangar.AppName{}, map[netip.Addr]hangar.MachineID{}
	for app, machines := range v.machines {
		names := map[string]hangar.MachineID{}
		for id, m := range machines {
			if other, twice := ids[id]; twice {
				t.Errorf("%s: the Machine %s is in %s and %s", s, id, app, other)
			}
			if other, twice := names[m.Name]; twice {
				t.Errorf("%s: %s and %s are both called %s", s, id, other, m.Name)
			}
			if other, twice := addresses[m.PrivateIP]; twice {
				t.Errorf("%s: %s and %s both have %s", s, id, other, m.PrivateIP)
			}
			ids[id], names[m.Name], addresses[m.PrivateIP] = app, id, id
		}
	}
}

// differs says in what another view differs.
func (v *view) differs(o *view) string {
	switch {
	case !maps.Equal(v.apps, o.apps):
		return fmt.Sprintf("Apps: %v and %v", slices.Sorted(maps.Keys(v.apps)), slices.Sorted(maps.Keys(o.apps)))
	case !maps.EqualFunc(v.secrets, o.secrets, maps.Equal):
		return fmt.Sprintf("secrets: %v and %v", v.secrets, o.secrets)
	}
	for app, machines := range v.machines {
		others := o.machines[app]
		for id, m := range machines {
			if p := others[id]; p == nil || p.Name != m.Name || p.PrivateIP != m.PrivateIP || p.Host != m.Host || !maps.Equal(p.Config.Metadata, m.Config.Metadata) {
				return fmt.Sprintf("Machine %s of %s: %+v and %+v", id, app, m, p)
			}
		}
		if len(machines) != len(others) {
			return fmt.Sprintf("Machines of %s: %s and %s", app, briefly(machines), briefly(others))
		}
	}
	return ""
}

// briefly says which Machines a list shows, and where.
func briefly(machines map[hangar.MachineID]*hangar.Machine) string {
	var list []string
	for id, m := range machines {
		list = append(list, fmt.Sprintf("%s (%s, %s on %s, host %s)", id, m.Name, m.State, m.Host, m.HostStatus))
	}
	slices.Sort(list)
	return "[" + strings.Join(list, ", ") + "]"
}
