package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/ipv6"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// batch is how many messages are read at a time.
	batch = 32
	// backlog is how many full batches in a row mean that questions queue up.
	backlog = 8
	// queueBytes is the size of the kernel's queue of messages, as the kernel counts it.
	queueBytes = 4 << 20
	// maxReaders bounds the readers of one socket.
	maxReaders = 4
	// longestQuery is more bytes than any question has.
	longestQuery = 4096
)

// bind listens on an address over UDP and TCP.
func bind(ctx context.Context, at netip.AddrPort) (*net.UDPConn, *net.TCPListener, error) {
	var errs []error
	for range 10 {
		packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return nil, nil, err
		}
		local := packets.LocalAddr().String()
		stream, err := (&net.ListenConfig{}).Listen(ctx, "tcp", local)
		if err == nil {
			enlarge(packets)
			return packets, stream.(*net.TCPListener), nil
		}
		errs = append(errs, err, packets.Close())
		if at.Port() != 0 {
			break
		}
	}
	return nil, nil, errors.Join(errs...)
}

// enlarge makes room for a burst. Without privileges, the kernel's limit applies.
func enlarge(c *net.UDPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueBytes) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, queueBytes)
		}
	})
}

// servePackets serves a socket until ctx ends. One reader per processor shares its queue, each with a
// descriptor of its own from another, because reads of one descriptor exclude each other.
func (s *Server) servePackets(ctx context.Context, conn *net.UDPConn, another func(*net.UDPConn) (*net.UDPConn, error)) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	readers, ctx := errgroup.WithContext(ctx)
	for i := range min(maxReaders, runtime.GOMAXPROCS(0)) {
		own := conn
		if i > 0 {
			var err error
			if own, err = another(conn); err != nil {
				readers.Go(func() error { return fmt.Errorf("another reader of DNS: %w", err) }) // ends the others
				break
			}
		}
		readers.Go(func() error {
			defer own.Close()
			defer context.AfterFunc(ctx, func() { _ = own.SetReadDeadline(time.Unix(1, 0)) })()
			r := reader{server: s, conn: own, batches: ipv6.NewPacketConn(own), waiting: &waiting}
			return r.run(ctx)
		})
	}
	return readers.Wait()
}

// duplicate returns another descriptor of a socket. conn.File would make the shared socket blocking
// for a moment, and a read that starts then would only end with the next question.
func duplicate(conn *net.UDPConn) (*net.UDPConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var own int
	if controlErr := raw.Control(func(fd uintptr) { own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); controlErr != nil || err != nil {
		return nil, errors.Join(controlErr, err)
	}
	f := os.NewFile(uintptr(own), "dns")
	defer f.Close()
	again, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	return again.(*net.UDPConn), nil
}

// reader reads a socket and answers.
type reader struct {
	server  *Server
	conn    *net.UDPConn
	batches *ipv6.PacketConn
	waiting *sync.WaitGroup
	full    int // full batches in a row

	in, out []ipv6.Message
	query   query
}

func (r *reader) run(ctx context.Context) error {
	r.in, r.out = make([]ipv6.Message, batch), make([]ipv6.Message, 0, batch)
	for i := range r.in {
		r.in[i].Buffers = [][]byte{make([]byte, longestQuery)}
	}
	// The answers of a batch, each in its own buffer.
	answers := make([][]byte, batch)
	for i := range answers {
		answers[i] = make([]byte, 0, maxUDP)
	}
	for {
		n, err := r.batches.ReadBatch(r.in, 0)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			r.server.log.DebugContext(ctx, "read questions", "error", err)
			_ = pause.For(ctx, retryPause)
			continue
		}
		r.full++
		if n < batch {
			r.full = 0
		}
		now := time.Now()
		r.out = r.out[:0]
		for i, m := range r.in[:n] {
			if answer := r.answer(ctx, answers[i][:0], m.Buffers[0][:m.N], m.Addr, now); len(answer) > 0 {
				answers[i] = answer
				r.out = append(r.out, ipv6.Message{Buffers: [][]byte{answer}, Addr: m.Addr})
			}
		}
		r.send()
	}
}

// answer answers a message, now or later.
func (r *reader) answer(ctx context.Context, out, msg []byte, from net.Addr, now time.Time) []byte {
	to := from.(*net.UDPAddr).AddrPort()
	s := r.server
	who := s.asker(to.Addr().Unmap().WithZone(""))
	client := who.client()
	if !s.clients.allow(client, now, r.full >= backlog) {
		s.count(resultLimited)
		return nil
	}
	out, what := s.handle(out, msg, &r.query, who, false, now)
	switch what {
	case done:
		return out
	case lookup:
		if !s.clients.ask(client, now) {
			s.count(resultLimited)
			return nil
		}
		q := r.query.clone()
		r.waiting.Go(func() {
			defer func() { s.clients.asked(client, time.Now()) }()
			answer := s.resolve(ctx, nil, who.network, q, false)
			if ctx.Err() == nil {
				_, _ = r.conn.WriteToUDPAddrPort(answer, to) // a client without an answer asks again
			}
		})
	case drop:
	}
	return nil
}

// clone returns a copy of the query that the reader's next question does not change.
func (q *query) clone() *query {
	c := *q
	c.asked = slices.Clone(q.asked)
	c.name = c.buf[:len(q.name)]
	return &c
}

// send sends the answers. It skips an answer that the kernel refuses.
func (r *reader) send() {
	for rest := r.out; len(rest) > 0; {
		n, _ := r.batches.WriteBatch(rest, 0)
		rest = rest[min(max(n, 1), len(rest)):]
	}
}
