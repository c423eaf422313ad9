package dns

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// Bounds of how long an answer of a resolver is cached.
const (
	MaxTTL         = 24 * time.Hour
	MaxNegativeTTL = 15 * time.Minute // RFC 2308 suggests up to three hours
	// MaxStale is how long after its expiry an answer is still used when no resolver answers, and
	// staleTTL the time to live in such an answer: RFC 8767.
	MaxStale = 24 * time.Hour
	staleTTL = 30 // seconds
)

// reply is the answer of a resolver. It never changes.
type reply struct {
	key     string
	wire    []byte // without EDNS
	ttls    []int  // offsets of the times to live in wire
	rcode   int
	secure  bool // the resolver has validated it
	expires time.Time
}

var errBadReply = errors.New("the answer makes no sense")

// newReply converts a resolver's answer that arrived at now.
func newReply(key string, m *dns.Msg, now time.Time) (*reply, error) {
	m.Extra = dropOPT(m.Extra)
	m.Compress = true
	wire, err := m.Pack()
	if err != nil {
		return nil, err
	}
	// The library accepts a record without data, but writes it in an unreadable form.
	if new(dns.Msg).Unpack(wire) != nil {
		return nil, errBadReply
	}
	r := &reply{key: key, wire: wire, rcode: m.Rcode, secure: m.AuthenticatedData}
	r.expires = now.Add(lifetime(m))
	if r.ttls, err = findTTLs(wire); err != nil {
		return nil, err
	}
	return r, nil
}

func dropOPT(extra []dns.RR) []dns.RR {
	var kept []dns.RR
	for _, rr := range extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			kept = append(kept, rr)
		}
	}
	return kept
}

// lifetime is how long an answer may be cached; RFC 2308 defines it for answers without records.
func lifetime(m *dns.Msg) time.Duration {
	least := uint32(MaxTTL / time.Second)
	negative := m.Rcode == dns.RcodeNameError || !answers(m)
	if negative {
		least = 0
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				least = min(soa.Hdr.Ttl, soa.Minttl, uint32(MaxNegativeTTL/time.Second))
			}
		}
	}
	// Even a negative answer is not cached longer than the aliases in it.
	for _, rr := range m.Answer {
		least = min(least, rr.Header().Ttl)
	}
	if !negative {
		for _, rr := range m.Ns {
			least = min(least, rr.Header().Ttl)
		}
	}
	return time.Duration(least) * time.Second
}

// answers reports whether a message has records of the requested type.
func answers(m *dns.Msg) bool {
	return slices.ContainsFunc(m.Answer, func(rr dns.RR) bool {
		return rr.Header().Rrtype == m.Question[0].Qtype || m.Question[0].Qtype == dns.TypeANY
	})
}

// findTTLs returns the offsets of the times to live in a message with one question.
func findTTLs(wire []byte) ([]int, error) {
	at := skipName(wire, headerBytes)
	if at < 0 {
		return nil, errBadReply
	}
	at += 4
	count := 0
	for _, section := range []int{6, 8, 10} {
		count += int(binary.BigEndian.Uint16(wire[section:]))
	}
	ttls := make([]int, 0, count)
	for range count {
		at = skipName(wire, at)
		if at < 0 || at+10 > len(wire) {
			return nil, errBadReply
		}
		ttls = append(ttls, at+4)
		at += 10 + int(binary.BigEndian.Uint16(wire[at+8:]))
	}
	return ttls, nil
}

func (r *reply) fresh(now time.Time) bool { return now.Before(r.expires) }

// write appends the reply as the answer to q, in at most limit bytes. The asker may cache it for left
// seconds.
func (r *reply) write(out []byte, q *query, limit int, left uint32) []byte {
	base := len(out)
	end := headerBytes + len(q.asked) + 4
	size := len(r.wire)
	if q.edns {
		size += optBytes
	}
	if len(r.wire) < end {
		return q.write(out, &answer{rcode: dns.RcodeServerFailure, foreign: true}, limit)
	}
	wire, ttls := r.wire, r.ttls
	cut := size > limit
	if cut {
		wire, ttls = r.shortened(q, limit)
		if len(wire) < end {
			wire, ttls = append([]byte{}, r.wire[:end]...), nil
			clear(wire[6:headerBytes])
		}
	}
	out = append(out, wire...)
	msg := out[base:]
	flags := flagQR | flagRA | q.flags&(flagRD|flagCD) | uint16(r.rcode&0xf)
	if r.secure && (q.do || q.flags&flagAD != 0) {
		flags |= flagAD
	}
	if cut && limit < maxMessage {
		flags |= flagTC
	}
	binary.BigEndian.PutUint16(msg, q.id)
	binary.BigEndian.PutUint16(msg[2:], flags)
	copy(msg[headerBytes:], q.asked) // in the letter case of the question
	for _, at := range ttls {
		binary.BigEndian.PutUint32(msg[at:], min(left, binary.BigEndian.Uint32(msg[at:])))
	}
	if q.edns {
		binary.BigEndian.PutUint16(msg[10:], binary.BigEndian.Uint16(msg[10:])+1)
		out = appendOPT(out, r.rcode, q.do)
	}
	return out
}

// left is how long the reply may still be cached, in seconds. All of its records expire together.
func (r *reply) left(now time.Time) uint32 {
	if !r.fresh(now) {
		return 0
	}
	return uint32((r.expires.Sub(now) + time.Second - 1) / time.Second)
}

// shortened returns the reply with as many records as fit.
func (r *reply) shortened(q *query, limit int) ([]byte, []int) {
	var m dns.Msg
	if m.Unpack(r.wire) != nil {
		return nil, nil
	}
	if q.edns {
		limit -= optBytes
	}
	m.Truncate(limit)
	wire, err := m.Pack()
	if err != nil || len(wire) > limit {
		return nil, nil
	}
	ttls, err := findTTLs(wire)
	if err != nil {
		return nil, nil
	}
	return wire, ttls
}
