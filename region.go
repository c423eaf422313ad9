package hangar

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// AnyRegion stands for all regions in a PlacementQuery.
const AnyRegion Region = "any"

// MaxPlacements is how many Machines can be asked for at once.
const MaxPlacements = 1000

// RegionRoom says what a region has room for.
type RegionRoom struct {
	Region Region `json:"code"`
	// Capacity is how many more Machines fit into memory that is not promised yet. Hosts promise more
	// than they have, so 0 does not mean that no Machine can be created.
	Capacity int `json:"capacity"`
}

// PlacementQuery asks where new Machines would go.
type PlacementQuery struct {
	Org     OrgSlug  // the owner of the Machines; empty: not known
	Regions []Region // where they may go; empty, AnyRegion, or only unknown ones: anywhere
	Guest   Guest    // how large each is
	Count   int      // 0: 1; at most MaxPlacements
	// VolumeBytes is the size of the new volume that each gets; 0: none.
	VolumeBytes int64
}

// Validate fills in what q leaves out of its Guest. It answers CodeInvalid and names the field that is
// wrong.
func (q *PlacementQuery) Validate() error {
	if q.Count < 0 || q.Count > MaxPlacements {
		return Errorf(CodeInvalid, "", "invalid count: %d is not from 1 to %d", q.Count, MaxPlacements)
	}
	if q.VolumeBytes < 0 || q.VolumeBytes > MaxVolumeGB<<30 {
		return Errorf(CodeInvalid, "", "invalid volume_size_bytes: %d is not from 0 to %d", q.VolumeBytes, int64(MaxVolumeGB<<30))
	}
	return q.Guest.Complete("compute.")
}

// anywhere reports whether the Machines may go to every region. A group of regions,
// such as "eu", differs from a region in its length: a region's code has three letters.
func (q *PlacementQuery) anywhere() bool {
	return len(q.Regions) == 0 || slices.ContainsFunc(q.Regions, func(r Region) bool { return r == AnyRegion || !r.IsCode() })
}

// IsCode reports whether r can be the code of a region.
func (r Region) IsCode() bool {
	return len(r) == 3 && !strings.ContainsFunc(string(r), func(c rune) bool { return c < 'a' || c > 'z' })
}

// Placement is how many of the requested Machines would go to a region.
type Placement struct {
	Region      Region
	Count       int
	Concurrency int // the number of hosts
}

// HostRoom is what a host that may take new Machines has to offer.
type HostRoom struct {
	Region Region
	Memory int64 // bytes in total
	Free   int64 // bytes not promised to a Machine yet; negative: the host has promised more than it has
	// Volumes is how many bytes of new volumes the host would promise; 0 or less: none.
	Volumes int64
	// VolumesPromised is how many bytes the host has promised to volumes.
	VolumesPromised int64
}

// holds is how many Machines of a size fit into the unreserved memory.
func (h HostRoom) holds(g Guest) int {
	return int(max(h.Free, 0) / (int64(max(g.MemoryMB, 1)) << 20))
}

// holdsVolumes is how many volumes of a size the host would promise. Volumes have whole GiB.
func (h HostRoom) holdsVolumes(bytes int64) int {
	return int(max(h.Volumes, 0) / (int64(max(gib(bytes), 1)) << 30))
}

// RegionRooms adds up the room of hosts by region, sorted. The regions in also are listed even if they
// have no host.
func RegionRooms(hosts []HostRoom, g Guest, also ...Region) []RegionRoom {
	return regionRooms(hosts, g, 0, also)
}

// regionRooms is RegionRooms for Machines that get a volume each.
func regionRooms(hosts []HostRoom, g Guest, volumeBytes int64, also []Region) []RegionRoom {
	rooms := []RegionRoom{}
	at := func(r Region) *RegionRoom {
		i := slices.IndexFunc(rooms, func(x RegionRoom) bool { return x.Region == r })
		if i < 0 {
			i = len(rooms)
			rooms = append(rooms, RegionRoom{Region: r})
		}
		return &rooms[i]
	}
	for _, r := range also {
		at(r)
	}
	for _, h := range hosts {
		n := h.holds(g)
		if volumeBytes > 0 {
			n = min(n, h.holdsVolumes(volumeBytes))
		}
		at(h.Region).Capacity += n
	}
	slices.SortFunc(rooms, func(a, b RegionRoom) int { return cmp.Compare(a.Region, b.Region) })
	return rooms
}

// Place distributes the Machines of q over hosts. It fills the region with the most room first. Without
// enough room for all, the rest goes to the first region, whose hosts then promise more memory than
// they have. A host takes no Machine if its memory is smaller than one, or its disk has no room for the
// volume: disks are not promised twice. The errors are those of PlatformService.Placements.
func (q *PlacementQuery) Place(regions []Region, hosts []HostRoom) ([]Placement, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	anywhere := q.anywhere() || !slices.ContainsFunc(q.Regions, func(r Region) bool { return slices.Contains(regions, r) })
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(h HostRoom) bool {
		return h.Memory < int64(q.Guest.MemoryMB)<<20 || !anywhere && !slices.Contains(q.Regions, h.Region)
	})
	if len(hosts) == 0 {
		return nil, Errorf(CodeConflict, ReasonInsufficientCapacity,
			"could not reserve resource for machine: insufficient memory available to fulfill request: no host has %d MB", q.Guest.MemoryMB)
	}
	if q.VolumeBytes > 0 {
		var err error
		if hosts, err = q.withDisks(hosts); err != nil {
			return nil, err
		}
	}
	rooms := regionRooms(hosts, q.Guest, q.VolumeBytes, nil)
	slices.SortStableFunc(rooms, func(a, b RegionRoom) int { return cmp.Compare(b.Capacity, a.Capacity) })
	var list []Placement
	left := max(q.Count, 1)
	for i, room := range rooms {
		n := min(left, room.Capacity)
		if n == 0 && i > 0 {
			break
		}
		left -= n
		p := Placement{Region: room.Region, Count: n}
		for _, h := range hosts {
			if h.Region == room.Region {
				p.Concurrency++
			}
		}
		list = append(list, p)
	}
	list[0].Count += left
	return list, nil
}

// withDisks returns the hosts whose disks have room for a volume. It fails if they cannot hold all
// volumes.
func (q *PlacementQuery) withDisks(hosts []HostRoom) ([]HostRoom, error) {
	all := 0
	hosts = slices.DeleteFunc(hosts, func(h HostRoom) bool {
		n := h.holdsVolumes(q.VolumeBytes)
		all += n
		return n == 0
	})
	if all < max(q.Count, 1) {
		return nil, Errorf(CodeConflict, ReasonInsufficientCapacity,
			"could not reserve resource for machine: insufficient disk available to fulfill request: there is room for %d volumes of %d GB, not for %d",
			all, gib(q.VolumeBytes), max(q.Count, 1))
	}
	return hosts, nil
}

// PlatformService says what the platform as a whole can do. Every method answers
// CodeUnauthenticated without a principal.
type PlatformService interface {
	// Regions are the regions where Machines can run, sorted, with their room for Machines of a size.
	// The zero Guest means the default size.
	Regions(ctx context.Context, guest Guest) ([]RegionRoom, error)
	// Placements says where new Machines would go, the best region first. It reserves nothing. If q
	// names only unknown regions, it names others. It answers CodeConflict with
	// ReasonInsufficientCapacity when no host can take one such Machine.
	Placements(ctx context.Context, q PlacementQuery) ([]Placement, error)
}
