package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// lossPatience is after which time an answer is lost.
const lossPatience = time.Second

// tally is what clients of one measurement had.
type tally struct {
	took []time.Duration // sorted
	lost int
	span time.Duration
}

func (t *tally) perSecond() float64 {
	if t.span == 0 {
		return 0
	}
	return float64(len(t.took)) / t.span.Seconds()
}

func (t *tally) quantile(q float64) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	return t.took[min(len(t.took)-1, int(q*float64(len(t.took))))]
}

// beats is whether t is a better round than another, which may not have been made.
func (t *tally) beats(other tally) bool {
	if len(t.took) == 0 || len(other.took) == 0 {
		return len(t.took) > 0
	}
	if t.lost != other.lost {
		return t.lost < other.lost
	}
	return t.quantile(.99) < other.quantile(.99)
}

// questions are those that clients choose from.
func questions() ([][]byte, error) {
	var all [][]byte
	for n := range dnsApps * dnsPerApp {
		for _, name := range []string{appName(n) + ".internal.", machineName(n) + ".vm." + appName(n) + ".internal."} {
			b, err := new(dns.Msg).SetQuestion(name, dns.TypeAAAA).SetEdns0(1232, false).Pack()
			if err != nil {
				return nil, err
			}
			all = append(all, b)
		}
	}
	return all, nil
}

// source is the address of a client. Each stands for a Machine.
func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 9, byte(i + 1)}) }

func connect(ctx context.Context, i int, to netip.AddrPort) (*net.UDPConn, error) {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(source(i), 0))}
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// check says whether b is a good answer.
func check(b []byte) error {
	if len(b) < 12 || b[2]&0x80 == 0 || b[3]&0xf != 0 || b[7] == 0 {
		return fmt.Errorf("no answer with records: %x", b[:min(len(b), 12)])
	}
	return nil
}

// clientsOf runs one function for each client, and joins what they had.
func clientsOf(ctx context.Context, to netip.AddrPort, clients int, span time.Duration, client func(conn *net.UDPConn, all [][]byte) (tally, error)) (tally, error) {
	all, err := questions()
	if err != nil {
		return tally{}, err
	}
	var mu sync.Mutex
	var errs []error
	sum := tally{span: span}
	var running sync.WaitGroup
	for i := range clients {
		conn, err := connect(ctx, i, to)
		if err != nil {
			return tally{}, err
		}
		defer conn.Close()
		running.Go(func() {
			t, err := client(conn, all)
			mu.Lock()
			defer mu.Unlock()
			sum.took = append(sum.took, t.took...)
			sum.lost += t.lost
			errs = append(errs, err)
		})
	}
	running.Wait()
	slices.Sort(sum.took)
	return sum, errors.Join(append(errs, ctx.Err())...)
}

// hammer asks with each client again as soon as it has its answer.
func hammer(ctx context.Context, to netip.AddrPort, clients int, span time.Duration) (tally, error) {
	return clientsOf(ctx, to, clients, span, func(conn *net.UDPConn, all [][]byte) (tally, error) {
		var t tally
		buf := make([]byte, 4096)
		end := time.Now().Add(span)
		began := time.Now()
		for began.Before(end) && ctx.Err() == nil {
			if _, err := conn.Write(all[rand.IntN(len(all))]); err != nil { //nolint:gosec // G404: nothing to guess
				return t, err
			}
			if err := conn.SetReadDeadline(began.Add(lossPatience)); err != nil {
				return t, err
			}
			n, err := conn.Read(buf)
			asked, now := began, time.Now()
			began = now
			if err != nil {
				if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
					t.lost++
					continue
				}
				return t, err
			}
			if err := check(buf[:n]); err != nil {
				return t, err
			}
			t.took = append(t.took, now.Sub(asked))
		}
		return t, nil
	})
}

// pace asks at a fixed rate, whether or not answers come: a server that is late does not
// get fewer questions.
func pace(ctx context.Context, to netip.AddrPort, clients, rate int, span time.Duration) (tally, error) {
	return clientsOf(ctx, to, clients, span, func(conn *net.UDPConn, all [][]byte) (tally, error) {
		const window = 1 << 16 // ids
		sent := make([]atomic.Int64, window)
		start := time.Now()
		interval := span * time.Duration(clients) / time.Duration(float64(rate)*span.Seconds())
		done := make(chan int, 1)
		go func() {
			asked := 0
			msg := make([]byte, 512)
			// Clients do not ask all at the same moment.
			next := start.Add(time.Duration(rand.Int64N(int64(interval)))) //nolint:gosec // G404: nothing to guess
			for ; next.Before(start.Add(span)) && ctx.Err() == nil; next = next.Add(interval) {
				time.Sleep(time.Until(next))
				q := all[rand.IntN(len(all))] //nolint:gosec // G404: nothing to guess
				n := copy(msg, q)
				msg[0], msg[1] = byte(asked>>8), byte(asked)
				sent[asked%window].Store(int64(time.Since(start)))
				if _, err := conn.Write(msg[:n]); err != nil {
					break
				}
				asked++
			}
			done <- asked
			time.Sleep(lossPatience / 2)
			_ = conn.SetReadDeadline(time.Now()) // the rest is lost
		}()
		var t tally
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			now := int64(time.Since(start))
			if err != nil {
				t.lost = <-done - len(t.took)
				if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
					return t, err
				}
				return t, nil
			}
			if err := check(buf[:n]); err != nil {
				return t, err
			}
			t.took = append(t.took, time.Duration(now-sent[int(buf[0])<<8|int(buf[1])].Load()))
		}
	})
}

// flood sends as much as one client can until stop is called, which returns how much
// that was.
func flood(ctx context.Context, to netip.AddrPort) (stop func() int) {
	const flooder = 200 // a client of its own
	ctx, cancel := context.WithCancel(ctx)
	sent := make(chan int, 1)
	go func() {
		n := 0
		defer func() { sent <- n }()
		conn, err := connect(ctx, flooder, to)
		if err != nil {
			return
		}
		defer conn.Close()
		all, err := questions()
		if err != nil {
			return
		}
		for ctx.Err() == nil {
			if _, err := conn.Write(all[n%len(all)]); err == nil {
				n++
			}
		}
	}()
	return func() int {
		cancel()
		return <-sent
	}
}

// takeCore keeps a core busy until release is called.
func takeCore(ctx context.Context) (release func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
