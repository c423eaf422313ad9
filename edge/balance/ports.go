package balance

import (
	"cmp"
	"encoding/json"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
)

// serviceSet is the services that some Machines of an App have in common. Thousands of Machines
// have one or two sets, so the port table is compiled from sets and not from Machines.
type serviceSet struct {
	key     string
	sample  *machine // one of members; its config counts for all
	ports   []setPort
	groups  []*group
	members map[*machine]struct{}
	newest  hangar.InstanceID // of members; see refreshNewest
	stale   bool              // the newest member has left
	started int               // members that are started and not cordoned
	usable  int               // members that are started or at rest, and not cordoned
	// contested: another set has some of its public ports, so that their weights decide.
	contested bool
}

// setPort is a range of public ports of a serviceSet.
type setPort struct {
	group         *group
	service, port int // in Config.Services and its Ports
	first, last   int
	handling      hangar.Handling
}

// serviceSetKey is equal for services that are balanced alike.
func serviceSetKey(services []hangar.Service) string {
	var key strings.Builder
	for i := range services {
		s := &services[i]
		if s.UDP() {
			key.WriteString("u")
		}
		key.WriteString(strconv.Itoa(s.InternalPort))
		ports, err := json.Marshal(s.Ports)
		if err != nil { // cannot happen: it came from JSON
			ports = []byte(err.Error())
		}
		key.Write(ports)
	}
	return key.String()
}

func newServiceSet(key string, services []hangar.Service) *serviceSet {
	set := &serviceSet{key: key, members: make(map[*machine]struct{})}
	for i := range services {
		s := &services[i]
		g := set.group(s.UDP(), s.InternalPort)
		if g == nil {
			g = &group{set: set, udp: s.UDP(), port: s.InternalPort}
			set.groups = append(set.groups, g)
		}
		for n := range s.Ports {
			first, last := s.Ports[n].Range()
			set.ports = append(set.ports, setPort{g, i, n, first, last, s.Handling(&s.Ports[n])})
		}
	}
	return set
}

func (set *serviceSet) group(udp bool, port int) *group {
	for _, g := range set.groups {
		if g.udp == udp && g.port == port {
			return g
		}
	}
	return nil
}

func (set *serviceSet) add(m *machine, version hangar.InstanceID) {
	set.members[m] = struct{}{}
	set.sample = m
	set.newest = max(set.newest, version)
}

func (set *serviceSet) remove(m *machine) {
	delete(set.members, m)
	if set.sample == m {
		for other := range set.members {
			set.sample = other
			break
		}
	}
	set.stale = set.stale || m.row.Machine.InstanceID == set.newest
}

// refreshNewest finds the newest member if it is not known.
func (set *serviceSet) refreshNewest() {
	if !set.stale {
		return
	}
	set.newest, set.stale = "", false
	for m := range set.members {
		if id := m.row.Machine.InstanceID; set.newest == "" || id > set.newest {
			set.newest, set.sample = id, m
		}
	}
}

// outranks orders sets that have the same public port: one with started Machines goes before one
// without, one that may be started before others, then the newest version decides.
func (set *serviceSet) outranks(other *serviceSet) bool {
	if a, b := set.started > 0, other.started > 0; a != b {
		return a
	}
	if a, b := set.usable > 0, other.usable > 0; a != b {
		return a
	}
	set.refreshNewest()
	other.refreshNewest()
	if c := cmp.Compare(set.newest, other.newest); c != 0 {
		return c > 0
	}
	return set.key > other.key
}

// portTable maps the public ports of an App to groups. It never changes; the groups do.
type portTable struct {
	tcp, udp []*entry // sorted, without overlaps
	ranges   []PortRange
}

// entry is a range of public ports that are served alike.
type entry struct {
	PortRange
	options  *hangar.ServicePort
	ports    []setPort // of each group, the port that decides
	regions  []entryRegion
	endpoint atomic.Pointer[Endpoint] // the last one that was returned
}

// entryRegion is the indexes of an entry in one region.
type entryRegion struct {
	region  hangar.Region
	indexes []*index
}

func (t *portTable) find(udp bool, port int) *entry {
	list := t.tcp
	if udp {
		list = t.udp
	}
	i := sort.Search(len(list), func(i int) bool { return list[i].Last >= port })
	if i == len(list) || list[i].First > port {
		return nil
	}
	return list[i]
}

// portOf is the port by which a group belongs to the entry, or nil.
func (e *entry) portOf(g *group) *setPort {
	for i := range e.ports {
		if e.ports[i].group == g {
			return &e.ports[i]
		}
	}
	return nil
}

// compilePorts makes the port table of all sets. Regions are sorted, that of the edge first.
func compilePorts(sets map[string]*serviceSet, home hangar.Region) *portTable {
	t := &portTable{}
	for _, set := range sets {
		set.contested = false
	}
	t.tcp = compileEntries(sets, false, home)
	t.udp = compileEntries(sets, true, home)
	t.ranges = append(joinRanges(t.tcp), joinRanges(t.udp)...)
	return t
}

func compileEntries(sets map[string]*serviceSet, udp bool, home hangar.Region) []*entry {
	var edges []int // where a range begins, or the port after its end
	var all []setPort
	for _, set := range sets {
		for _, p := range set.ports {
			if p.group.udp == udp {
				all = append(all, p)
				edges = append(edges, p.first, p.last+1)
			}
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	covering := make([][]setPort, len(edges))
	for _, p := range all {
		i, _ := slices.BinarySearch(edges, p.first)
		for ; edges[i] <= p.last; i++ {
			covering[i] = append(covering[i], p)
		}
	}
	var list []*entry
	for i, ports := range covering {
		if len(ports) > 0 {
			list = append(list, newEntry(PortRange{UDP: udp, First: edges[i], Last: edges[i+1] - 1}, ports, home))
		}
	}
	return list
}

func newEntry(r PortRange, ports []setPort, home hangar.Region) *entry {
	winner := ports[0]
	for _, p := range ports[1:] {
		if p.group.set != winner.group.set && p.group.set.outranks(winner.group.set) {
			winner = p
		}
	}
	r.Handling = winner.handling
	e := &entry{PortRange: r}
	e.options = &winner.group.set.sample.row.Machine.Config.Services[winner.service].Ports[winner.port]
	for _, p := range ports {
		set := p.group.set
		set.contested = set.contested || set != winner.group.set
		winner.group.set.contested = winner.group.set.contested || set != winner.group.set
		taken := slices.ContainsFunc(e.ports, func(other setPort) bool { return other.group.set == set })
		if p.handling == winner.handling && !taken {
			e.ports = append(e.ports, p)
		}
	}
	for _, p := range e.ports {
		for _, ix := range p.group.indexes {
			i := slices.IndexFunc(e.regions, func(r entryRegion) bool { return r.region == ix.region })
			if i < 0 {
				i = len(e.regions)
				e.regions = append(e.regions, entryRegion{region: ix.region})
			}
			e.regions[i].indexes = append(e.regions[i].indexes, ix)
		}
	}
	slices.SortFunc(e.regions, func(a, b entryRegion) int {
		if (a.region == home) != (b.region == home) {
			if a.region == home {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.region, b.region)
	})
	return e
}

// joinRanges joins adjacent entries that are handled alike.
func joinRanges(list []*entry) []PortRange {
	var joined []PortRange
	for _, e := range list {
		if n := len(joined) - 1; n >= 0 && joined[n].Last == e.First-1 && joined[n].Handling == e.Handling {
			joined[n].Last = e.Last
			continue
		}
		joined = append(joined, e.PortRange)
	}
	return joined
}
