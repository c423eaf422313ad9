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

// shape is what the services of Machines look like from outside: thousands of Machines of
// an App have one or two. It is what the table of public ports is made of.
type shape struct {
	key     string
	example *machine // one of members
	ports   []shapePort
	crowds  []*crowd
	members map[*machine]struct{}
	newest  hangar.InstanceID // of members; see refresh
	stale   bool              // newest is of one that left
	started int               // members that are started and not cordoned
	usable  int               // members that are started or at rest, and not cordoned
	// contested: another shape has some of its public ports, so that the two have to be
	// weighed against one another.
	contested bool
}

// shapePort is a range of public ports.
type shapePort struct {
	crowd         *crowd
	service, port int // in Config.Services and its Ports
	first, last   int
	handling      hangar.Handling
}

// shapeKey is equal for services that are equal in all that shapes are about.
func shapeKey(services []hangar.Service) string {
	var key strings.Builder
	for i := range services {
		s := &services[i]
		if s.UDP() {
			key.WriteString("u")
		}
		key.WriteString(strconv.Itoa(s.InternalPort))
		ports, err := json.Marshal(s.Ports)
		if err != nil { // what came from JSON goes back to it
			ports = []byte(err.Error())
		}
		key.Write(ports)
	}
	return key.String()
}

func newShape(key string, services []hangar.Service) *shape {
	sh := &shape{key: key, members: make(map[*machine]struct{})}
	for i := range services {
		s := &services[i]
		c := sh.crowd(s.UDP(), s.InternalPort)
		if c == nil {
			c = &crowd{shape: sh, udp: s.UDP(), port: s.InternalPort}
			sh.crowds = append(sh.crowds, c)
		}
		for n := range s.Ports {
			first, last := s.Ports[n].Range()
			sh.ports = append(sh.ports, shapePort{c, i, n, first, last, s.Handling(&s.Ports[n])})
		}
	}
	return sh
}

func (sh *shape) crowd(udp bool, port int) *crowd {
	for _, c := range sh.crowds {
		if c.udp == udp && c.port == port {
			return c
		}
	}
	return nil
}

func (sh *shape) add(m *machine, version hangar.InstanceID) {
	sh.members[m] = struct{}{}
	sh.example = m
	sh.newest = max(sh.newest, version)
}

func (sh *shape) drop(m *machine) {
	delete(sh.members, m)
	if sh.example == m {
		for other := range sh.members {
			sh.example = other
			break
		}
	}
	sh.stale = sh.stale || m.row.Machine.InstanceID == sh.newest
}

// refresh makes sure of newest.
func (sh *shape) refresh() {
	if !sh.stale {
		return
	}
	sh.newest, sh.stale = "", false
	for m := range sh.members {
		if id := m.row.Machine.InstanceID; sh.newest == "" || id > sh.newest {
			sh.newest, sh.example = id, m
		}
	}
}

// outranks orders shapes that have the same public port: what runs goes before what might
// run, and then the newest version decides.
func (sh *shape) outranks(other *shape) bool {
	if a, b := sh.started > 0, other.started > 0; a != b {
		return a
	}
	if a, b := sh.usable > 0, other.usable > 0; a != b {
		return a
	}
	sh.refresh()
	other.refresh()
	if c := cmp.Compare(sh.newest, other.newest); c != 0 {
		return c > 0
	}
	return sh.key > other.key
}

// topology is the table of the public ports of an App. It never changes; what is in the
// crowds does.
type topology struct {
	tcp, udp []*segment // sorted, without overlaps
	ranges   []PortRange
}

// segment is public ports that are served alike.
type segment struct {
	first, last int
	handling    hangar.Handling
	options     *hangar.ServicePort
	sources     []shapePort // of each crowd, the port that decides
	regions     []segmentRegion
	endpoint    atomic.Pointer[Endpoint] // the one that was last asked for
}

// segmentRegion is the zones of a segment in one region.
type segmentRegion struct {
	region hangar.Region
	zones  []*zone
}

func (t *topology) find(udp bool, port int) *segment {
	list := t.tcp
	if udp {
		list = t.udp
	}
	i := sort.Search(len(list), func(i int) bool { return list[i].last >= port })
	if i == len(list) || list[i].first > port {
		return nil
	}
	return list[i]
}

// source is the port by which a crowd belongs to the segment, or nil.
func (g *segment) source(c *crowd) *shapePort {
	for i := range g.sources {
		if g.sources[i].crowd == c {
			return &g.sources[i]
		}
	}
	return nil
}

// compile makes the table of all shapes. Regions are sorted, that of the edge first.
func compile(shapes map[string]*shape, home hangar.Region) *topology {
	t := &topology{}
	for _, sh := range shapes {
		sh.contested = false
	}
	t.tcp = segments(shapes, false, home)
	t.udp = segments(shapes, true, home)
	t.ranges = append(ranges(t.tcp, false), ranges(t.udp, true)...)
	return t
}

func segments(shapes map[string]*shape, udp bool, home hangar.Region) []*segment {
	var edges []int // where something begins, or has ended
	var all []shapePort
	for _, sh := range shapes {
		for _, p := range sh.ports {
			if p.crowd.udp == udp {
				all = append(all, p)
				edges = append(edges, p.first, p.last+1)
			}
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	covering := make([][]shapePort, len(edges))
	for _, p := range all {
		i, _ := slices.BinarySearch(edges, p.first)
		for ; edges[i] <= p.last; i++ {
			covering[i] = append(covering[i], p)
		}
	}
	var list []*segment
	for i, ports := range covering {
		if len(ports) > 0 {
			list = append(list, newSegment(edges[i], edges[i+1]-1, ports, home))
		}
	}
	return list
}

func newSegment(first, last int, ports []shapePort, home hangar.Region) *segment {
	winner := ports[0]
	for _, p := range ports[1:] {
		if p.crowd.shape != winner.crowd.shape && p.crowd.shape.outranks(winner.crowd.shape) {
			winner = p
		}
	}
	g := &segment{first: first, last: last, handling: winner.handling}
	g.options = &winner.crowd.shape.example.row.Machine.Config.Services[winner.service].Ports[winner.port]
	for _, p := range ports {
		sh := p.crowd.shape
		sh.contested = sh.contested || sh != winner.crowd.shape
		winner.crowd.shape.contested = winner.crowd.shape.contested || sh != winner.crowd.shape
		taken := slices.ContainsFunc(g.sources, func(other shapePort) bool { return other.crowd.shape == sh })
		if p.handling == winner.handling && !taken {
			g.sources = append(g.sources, p)
		}
	}
	for _, p := range g.sources {
		for _, z := range p.crowd.zones {
			i := slices.IndexFunc(g.regions, func(r segmentRegion) bool { return r.region == z.region })
			if i < 0 {
				i = len(g.regions)
				g.regions = append(g.regions, segmentRegion{region: z.region})
			}
			g.regions[i].zones = append(g.regions[i].zones, z)
		}
	}
	slices.SortFunc(g.regions, func(a, b segmentRegion) int {
		if (a.region == home) != (b.region == home) {
			if a.region == home {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.region, b.region)
	})
	return g
}

// ranges joins segments beside one another that are handled alike.
func ranges(list []*segment, udp bool) []PortRange {
	var joined []PortRange
	for _, g := range list {
		if n := len(joined) - 1; n >= 0 && joined[n].Last == g.first-1 && joined[n].Handling == g.handling {
			joined[n].Last = g.last
			continue
		}
		joined = append(joined, PortRange{UDP: udp, First: g.first, Last: g.last, Handling: g.handling})
	}
	return joined
}
