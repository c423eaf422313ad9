// Package dns is the name server of Machines: it answers the names of their private network from
// memory, and forwards other questions to the resolvers of the host.
//
// The source address identifies a client; the network prevents forged ones. A client gets the names
// of its own network and learns nothing of any other, not even that it exists. A client on no network
// is refused. Names follow the catalog: an answer is made from the rows that are visible when the
// question is read. Names of the private network, addresses of private networks and other names that
// only have a meaning here never leave the host.
//
// Answers of resolvers are cached for their time to live, within bounds of memory, and a day longer
// for when no resolver answers. Identical questions in flight share one lookup. A client that exceeds
// its rate loses its own questions: over UDP they are dropped before any work, over TCP its
// connection is closed. The clients of one network share at most half of the lookups in flight and of
// the connections.
//
// Each socket has readers of its own, which answer from memory. A question for a resolver waits in a
// goroutine of its own; their number is bounded. Run returns when all have ended.
//
// The package does not validate signatures or transfer zones.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/internal/connlimit"
)

// Bounds of the memory for answers of resolvers.
const (
	cacheEntries = 50_000
	cacheBytes   = 32 << 20
)

// syncPatience is how long questions wait for the catalog after a start.
const syncPatience = 3 * time.Second

// Peer is a device outside the platform on a private network.
type Peer struct {
	Name string
	Addr netip.Addr
}

// Config has the dependencies of a Server.
type Config struct {
	// Listen is where to serve, over UDP and TCP. Port 0 picks a port that both have free.
	Listen  []netip.AddrPort
	Catalog *catalog.Catalog
	Routes  *catalog.Routes // of Apps that the edge serves in private networks; nil: none
	Region  hangar.Region   // of this host
	// Owner returns the Machine that an IPv4 address belongs to, and its network; nil: no Machine has
	// one.
	Owner func(netip.Addr) (hangar.MachineID, hangar.NetworkID, bool)
	// Peers returns the peers of a network; nil: none.
	Peers func(hangar.NetworkID) []Peer
	// Resolvers returns the resolvers for all other names, in order of preference. It is called for
	// each lookup; nil: none.
	Resolvers func() []netip.AddrPort
	Log       *slog.Logger // nil: nothing is logged
}

// Server is the name server. Use New.
type Server struct {
	config   Config
	log      *slog.Logger
	local    local
	resolver resolver
	clients  clients
	counts   counts

	packets []*net.UDPConn     // set by Open
	streams []*net.TCPListener // set by Open, in the order of packets
}

// New returns a Server that Open makes usable.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Resolvers == nil {
		c.Resolvers = func() []netip.AddrPort { return nil }
	}
	return &Server{
		config: c,
		log:    c.Log,
		local:  local{catalog: c.Catalog, routes: c.Routes, region: c.Region, peers: c.Peers},
		resolver: resolver{
			upstreams: c.Resolvers,
			now:       time.Now,
			cache:     newCache(cacheEntries, cacheBytes),
			flights:   make(map[string]*flight),
			failed:    make(map[string]time.Time),
			open:      connlimit.NewCount[hangar.NetworkID](maxLookups, maxLookups),
		},
	}
}

// Open binds all addresses. Questions wait until Run.
func (s *Server) Open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, at := range s.config.Listen {
		packets, stream, err := bind(ctx, at)
		if err != nil {
			return fmt.Errorf("serve DNS for machines: %w", err)
		}
		s.packets = append(s.packets, packets)
		s.streams = append(s.streams, stream)
	}
	return nil
}

// Addrs returns the addresses at which it serves, in the order of Config.Listen.
func (s *Server) Addrs() []netip.AddrPort {
	var all []netip.AddrPort
	for _, c := range s.packets {
		all = append(all, c.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return all
}

// Close releases the addresses; Run must have ended.
func (s *Server) Close() error {
	var errs []error
	for _, c := range s.packets {
		errs = append(errs, ignoreClosed(c.Close()))
	}
	for _, l := range s.streams {
		errs = append(errs, ignoreClosed(l.Close()))
	}
	s.packets, s.streams = nil, nil
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Run serves until ctx ends, and returns its error.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	defer s.resolver.lookups.Wait()
	// Questions right after a start wait until the names are known.
	wait := time.NewTimer(syncPatience)
	defer wait.Stop()
	select {
	case <-s.config.Catalog.Synced():
	case <-wait.C:
		s.log.WarnContext(ctx, "serving DNS before the names of machines are known")
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range s.packets {
		group.Go(func() error { return s.servePackets(ctx, c, duplicate) })
	}
	for _, l := range s.streams {
		group.Go(func() error { return s.serveStreams(ctx, l) })
	}
	group.Go(func() error { return s.sweep(ctx) })
	return group.Wait()
}

// sweep drops idle clients.
func (s *Server) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.clients.sweep(now)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// asker is the client that asked a question.
type asker struct {
	addr    netip.Addr
	network hangar.NetworkID // 0: none
}

// asker returns the client at an address.
func (s *Server) asker(addr netip.Addr) asker {
	id := networkOf(addr)
	if id == 0 && s.config.Owner != nil {
		if _, own, ok := s.config.Owner(addr); ok {
			id = own
		}
	}
	return asker{addr, id}
}

// client returns the client to which an asker's questions count. All askers on no network are one
// client, so that forged addresses gain nothing.
func (a asker) client() netip.Addr {
	if a.network == 0 {
		return netip.Addr{}
	}
	return a.addr
}

// verdict is how to handle a message.
type verdict int

const (
	drop   verdict = iota // send no answer
	done                  // the answer was appended
	lookup                // ask a resolver
)

// handle answers a message from memory if it can. It appends the answer to out, with at most as many
// bytes as q.limit returns. It fills q in any case.
func (s *Server) handle(out, msg []byte, q *query, who asker, stream bool, now time.Time) ([]byte, verdict) {
	rcode, ok := q.parse(msg)
	if !ok {
		s.count(resultInvalid)
		return out, drop
	}
	switch {
	case rcode != dns.RcodeSuccess:
	case who.network == 0, q.qclass != dns.ClassINET, !servedType(q.qtype):
		rcode = dns.RcodeRefused
	}
	limit := q.limit(stream)
	if rcode != dns.RcodeSuccess {
		s.count(resultRefused)
		return q.write(out, &answer{rcode: rcode, foreign: true}, limit), done
	}
	if z, before := q.zone(); z != nil {
		s.count(resultLocal)
		a := s.local.answer(q, who.addr, who.network, z, before)
		return q.write(out, &a, limit), done
	}
	if q.qtype == dns.TypeANY {
		s.count(resultRefused)
		return q.write(out, &answer{records: minimal(), foreign: true}, limit), done
	}
	if got, ok := s.resolver.cached(q, now); ok {
		s.count(resultCached)
		return got.reply.write(out, q, limit, got.left), done
	}
	return out, lookup
}

// limit is the maximum size of the answer, in bytes.
func (q *query) limit(stream bool) int {
	if stream {
		return maxMessage
	}
	return int(q.size)
}

// servedType is false for types that do not ask for data.
func servedType(t uint16) bool {
	switch t {
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB, dns.TypeTKEY, dns.TypeTSIG, dns.TypeOPT, dns.TypeNone:
		return false
	}
	return true
}

// resolve appends the answer of a resolver.
func (s *Server) resolve(ctx context.Context, out []byte, from hangar.NetworkID, q *query, stream bool) []byte {
	got, err := s.resolver.resolve(ctx, from, q)
	if err != nil {
		s.count(resultFailed)
		return q.write(out, &answer{rcode: dns.RcodeServerFailure, foreign: true}, q.limit(stream))
	}
	s.count(resultResolved)
	return got.reply.write(out, q, q.limit(stream), got.left)
}
