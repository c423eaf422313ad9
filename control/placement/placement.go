// Package placement chooses hosts for Machines and volumes, as a market: hosts bid, and the best bid
// is tried first.
//
// Hosts with the fewest Machines of the App come first, so that it survives the loss of one, then
// those in zones with the fewest, then those that hold the image, then those with the largest share
// of memory left. Bids promise nothing: the host that is chosen takes the Machine or refuses it, and
// then the next is tried. Nothing waits for room.
//
// For a volume, the hosts with the fewest volumes of its name come first, then those in zones with
// the fewest, then those with the largest share of their disk left. Hosts with too little of it come
// last: they can make room only by removing destroyed volumes, which may still be undeleted.
//
// Of many hosts a random sample is asked, weighted by size; when none of it takes the Machine,
// another sample, twice as large, is asked, until all were.
//
// The package keeps nothing and starts no goroutine that outlives a call.
package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
)

const (
	// sample is how many hosts are asked first.
	sample = 8
	// askedAtOnce bounds how many are asked at the same time.
	askedAtOnce = 64
	// bidTimeout is how long a host may take to bid. One that takes longer counts as refusing.
	bidTimeout = 2 * time.Second
	// maxReasons is how many different reasons an error names.
	maxReasons = 8
)

// Bidder asks a host for its bid.
type Bidder func(ctx context.Context, host hangar.HostID, ask hangar.MachineAsk) (hangar.MachineBid, error)

// Market finds a host for one Machine or volume. It is used by one goroutine.
type Market struct {
	ask      hangar.MachineAsk
	bid      Bidder
	hosts    []hangar.Host // that were not asked yet, in order
	load     spread
	refusals []refused
}

// refused is a host that does not take it.
type refused struct {
	host hangar.HostID
	err  error
}

// spread counts the Machines of an App, or the volumes of a name, by host and by zone.
type spread struct {
	host map[hangar.HostID]int
	zone map[string]int
}

// New returns a Market of hosts. load is how many Machines of the App, or volumes of the name, each
// host has. Among equals a large host comes first more often than a small one; the order depends on
// the seed, such as the id of the Machine.
func New(hosts []hangar.Host, load map[hangar.HostID]int, seed string, ask hangar.MachineAsk, bid Bidder) *Market {
	m := &Market{ask: ask, bid: bid, load: spread{host: load, zone: map[string]int{}}}
	for _, h := range hosts {
		if h.Zone != "" {
			m.load.zone[h.Zone] += load[h.ID]
		}
	}
	m.hosts = m.load.order(hosts, seed)
	return m
}

// order is weighted rendezvous hashing within each load.
func (s spread) order(hosts []hangar.Host, seed string) []hangar.Host {
	type ranked struct {
		hangar.Host

		load, zone int
		rank       float64
	}
	list := make([]ranked, len(hosts))
	for i, h := range hosts {
		list[i] = ranked{h, s.host[h.ID], s.zone[h.Zone], rank(h, seed)}
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.zone, b.zone), cmp.Compare(b.rank, a.rank), cmp.Compare(a.ID, b.ID))
	})
	ordered := make([]hangar.Host, len(list))
	for i := range list {
		ordered[i] = list[i].Host
	}
	return ordered
}

func rank(h hangar.Host, seed string) float64 {
	f := fnv.New64a()
	_, _ = f.Write([]byte(string(h.ID) + "/" + seed))
	// FNV alone changes the high bits too little between similar inputs.
	x := f.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	uniform := (float64(x>>11) + 0.5) / (1 << 53)
	return float64(max(h.Memory, 1)) / -math.Log(uniform)
}

// offer is a host with its bid.
type offer struct {
	host hangar.Host
	bid  hangar.MachineBid
	err  error // it did not bid
	full bool  // its disk has less room than the volume needs
	at   int   // in the order of asking
}

// Hosts yields hosts in the order in which the Machine or volume is to be offered to them. Hosts
// that would refuse it, or did not bid, are left out.
func (m *Market) Hosts(ctx context.Context) iter.Seq[hangar.Host] {
	return func(yield func(hangar.Host) bool) {
		var full []hangar.Host
		for size := sample; len(m.hosts) > 0; size *= 2 {
			if len(m.hosts) < 2*size {
				size = len(m.hosts) // a small rest is not worth a round of its own
			}
			asked := m.hosts[:size]
			m.hosts = m.hosts[size:]
			for _, o := range m.offers(ctx, asked) {
				switch {
				case o.err != nil:
					m.Refuse(o.host.ID, o.err)
				case o.bid.Refusal != "":
					m.Refuse(o.host.ID, errors.New(o.bid.Refusal))
				case o.full:
					full = append(full, o.host)
				case !yield(o.host):
					return
				}
			}
		}
		for _, h := range full {
			if !yield(h) {
				return
			}
		}
	}
}

// offers asks hosts and sorts what they bid, the best first. A host that has no rival need not bid.
func (m *Market) offers(ctx context.Context, hosts []hangar.Host) []offer {
	offers := make([]offer, len(hosts))
	if len(hosts) == 1 && len(m.hosts) == 0 && len(m.refusals) == 0 {
		return []offer{{host: hosts[0]}}
	}
	ctx, cancel := context.WithTimeout(ctx, bidTimeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, h := range hosts {
		group.Go(func() error {
			bid, err := m.bid(ctx, h.ID, m.ask)
			offers[i] = offer{h, bid, err, bid.Volumes < m.ask.Volume, i}
			return nil
		})
	}
	_ = group.Wait() // every error is in its offer
	slices.SortFunc(offers, m.compare)
	return offers
}

func (m *Market) compare(a, b offer) int {
	return cmp.Or(
		cmp.Compare(m.load.host[a.host.ID], m.load.host[b.host.ID]),
		cmp.Compare(m.load.zone[a.host.Zone], m.load.zone[b.host.Zone]),
		before(a.bid.Image, b.bid.Image),
		cmp.Compare(m.left(b.bid), m.left(a.bid)),
		cmp.Compare(a.at, b.at),
	)
}

// left is the share of its memory, or for a volume of its disk, that a host would have left.
func (m *Market) left(b hangar.MachineBid) float64 {
	if m.ask.Volume > 0 {
		return float64(b.Volumes-m.ask.Volume) / float64(max(b.Volumes+b.VolumesPromised, 1))
	}
	return float64(b.Free-int64(m.ask.Guest.MemoryMB)<<20) / float64(max(b.Memory, 1))
}

// before sorts true before false.
func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// Refuse notes why a host does not take the Machine or volume.
func (m *Market) Refuse(host hangar.HostID, err error) {
	m.refusals = append(m.refusals, refused{host, err})
}

// Refused reports whether a host has refused.
func (m *Market) Refused() bool { return len(m.refusals) > 0 }

// Err says why no host takes the Machine or volume: the different reasons, up to maxReasons, each with a host or with
// their number and one of them.
func (m *Market) Err() error {
	if len(m.refusals) == 1 {
		if known, ok := errors.AsType[*hangar.Error](m.refusals[0].err); ok {
			return known
		}
	}
	var reasons []string
	hosts := map[string][]string{}
	for _, r := range m.refusals {
		why := hangar.MessageOf(r.err)
		if hosts[why] == nil {
			reasons = append(reasons, why)
		}
		hosts[why] = append(hosts[why], string(r.host))
	}
	var text []string
	for _, why := range reasons[:min(len(reasons), maxReasons)] {
		switch named := hosts[why]; {
		case len(named) == 1:
			text = append(text, fmt.Sprintf("host %s: %s", named[0], why))
		default:
			text = append(text, fmt.Sprintf("%d hosts, such as %s: %s", len(named), named[0], why))
		}
	}
	if more := len(reasons) - maxReasons; more > 0 {
		text = append(text, fmt.Sprintf("and %d more reasons", more))
	}
	if len(text) == 0 {
		text = append(text, "no host takes new machines or volumes")
	}
	answered := slices.ContainsFunc(m.refusals, func(r refused) bool { return hangar.CodeOf(r.err) != hangar.CodeUnavailable })
	if len(m.refusals) > 0 && !answered {
		return hangar.Errorf(hangar.CodeUnavailable, "", "no host of the region can be reached: %s", strings.Join(text, "; "))
	}
	what := "aborted: could not reserve resource for machine"
	if m.ask.Volume > 0 {
		what = "no capacity"
	}
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "%s: %s", what, strings.Join(text, "; "))
}
