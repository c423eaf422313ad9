package dns

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/miekg/dns"
)

// Sizes of the wire format, RFC 1035 and RFC 6891, in bytes.
const (
	headerBytes  = 12
	maxNameBytes = 255
	maxLabels    = 127
	optBytes     = 11
	plainUDP     = 512   // of an answer over UDP, unless the query allows more
	maxUDP       = 1232  // fits every tunnel without fragmentation
	maxMessage   = 65535 // over TCP
)

// The bits of a header's second word.
const (
	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagAD = 1 << 5
	flagCD = 1 << 4

	opcodeMask = 0xf << 11
)

// rcodeBadVersion is the extended code of RFC 6891 for an unknown version of EDNS.
const rcodeBadVersion = dns.RcodeBadVers

// query is a parsed question. It is reused for the next one.
type query struct {
	id     uint16
	flags  uint16
	qtype  uint16
	qclass uint16
	asked  []byte // the name in the question, in wire format; part of the message
	// known means that the question was read, so an answer repeats it.
	known bool

	edns bool
	do   bool   // DNSSEC records are wanted
	size uint16 // the largest answer over UDP that the asker accepts

	name   []byte // the name in lowercase, part of buf
	buf    [maxNameBytes]byte
	starts [maxLabels]uint8 // where in name each label begins
	labels int
}

// parse reads a message. It returns false for a message that gets no answer. Otherwise it returns the
// code of the answer: success if the question may be answered.
func (q *query) parse(msg []byte) (rcode int, ok bool) {
	q.known, q.edns, q.do, q.size, q.labels = false, false, false, plainUDP, 0
	if len(msg) < headerBytes {
		return 0, false
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	switch {
	case q.flags&flagQR != 0:
		return 0, false
	case q.flags&opcodeMask != 0:
		return dns.RcodeNotImplemented, true
	case binary.BigEndian.Uint16(msg[4:]) != 1, // one question
		binary.BigEndian.Uint32(msg[6:]) != 0: // neither answers nor authorities
		return dns.RcodeFormatError, true
	}
	at, ok := q.parseName(msg, headerBytes)
	if !ok || at+4 > len(msg) {
		return dns.RcodeFormatError, true
	}
	q.qtype = binary.BigEndian.Uint16(msg[at:])
	q.qclass = binary.BigEndian.Uint16(msg[at+2:])
	q.known = true
	return q.parseAdditional(msg, at+4, int(binary.BigEndian.Uint16(msg[10:]))), true
}

// parseName reads the name of the question, which is never compressed.
func (q *query) parseName(msg []byte, at int) (end int, ok bool) {
	begin := at
	for at < len(msg) {
		n := int(msg[at])
		if n == 0 {
			q.asked = msg[begin : at+1]
			q.name = q.buf[:len(q.asked)]
			for i, c := range q.asked {
				q.name[i] = lower(c)
			}
			return at + 1, true
		}
		// The label and the end of the name must fit.
		if n > 63 || at+1+n >= len(msg) || at-begin+n+2 > maxNameBytes {
			return 0, false
		}
		q.starts[q.labels] = uint8(at - begin)
		q.labels++
		at += 1 + n
	}
	return 0, false
}

// lower does not change the lengths of labels, which are below 'A'.
func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// parseAdditional reads the EDNS record.
func (q *query) parseAdditional(msg []byte, at, count int) (rcode int) {
	for range count {
		owner := at
		at = skipName(msg, at)
		if at < 0 || at+10 > len(msg) {
			return dns.RcodeFormatError
		}
		rtype := binary.BigEndian.Uint16(msg[at:])
		class := binary.BigEndian.Uint16(msg[at+2:])
		extended := binary.BigEndian.Uint32(msg[at+4:])
		end := at + 10 + int(binary.BigEndian.Uint16(msg[at+8:]))
		if end > len(msg) {
			return dns.RcodeFormatError
		}
		if rtype == dns.TypeOPT {
			if q.edns || msg[owner] != 0 {
				return dns.RcodeFormatError
			}
			q.edns = true
			q.do = extended&(1<<15) != 0
			q.size = min(max(class, plainUDP), maxUDP)
			if extended>>16&0xff != 0 {
				return rcodeBadVersion
			}
		}
		at = end
	}
	return dns.RcodeSuccess
}

// skipName returns the offset after a name, which may be compressed, or -1.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			if at+2 > len(msg) {
				return -1
			}
			return at + 2
		case n > 63:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}

// label returns a label of the name in lowercase; 0 is the leftmost.
func (q *query) label(i int) string {
	at := int(q.starts[i])
	return string(q.name[at+1 : at+1+int(q.name[at])])
}

// from returns the rest of the name from a label on.
func (q *query) from(i int) []byte {
	if i == q.labels {
		return q.name[len(q.name)-1:]
	}
	return q.name[q.starts[i]:]
}

// records are the records of one name and type, ready to be sent: the owner of each is a pointer to
// the name in the question.
type records struct {
	wire  []byte
	count int
	each  int  // bytes of each, if all have the same size and a subset is useful
	fixed bool // the order matters
}

// answer is the answer to a question.
type answer struct {
	rcode   int
	records records
	// zone is the zone whose SOA says how long a name without records may be cached; nil: none. labels
	// is the number of the question's labels before it.
	zone   *zone
	labels int
	// foreign means that the answer is not about the platform's own names.
	foreign bool
}

// write appends the answer to out, in at most limit bytes. It omits records that do not fit, and sets
// the TC flag if the asker can repeat the question over TCP.
func (q *query) write(out []byte, a *answer, limit int) []byte {
	base := len(out)
	flags := flagQR | flagRA | q.flags&(opcodeMask|flagRD|flagCD) | uint16(a.rcode&0xf)
	if q.known && !a.foreign {
		flags |= flagAA
	}
	out = binary.BigEndian.AppendUint16(out, q.id)
	out = append(out, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	room := limit - headerBytes
	if q.known {
		binary.BigEndian.PutUint16(out[base+4:], 1)
		out = append(out, q.asked...)
		out = binary.BigEndian.AppendUint16(out, q.qtype)
		out = binary.BigEndian.AppendUint16(out, q.qclass)
		room -= len(q.asked) + 4
	}
	if q.edns {
		room -= optBytes
	}

	wire, count := a.records.wire, a.records.count
	if len(wire) > room {
		// Every client can use a subset of the addresses, even one without TCP.
		count = 0
		if a.records.each > 0 {
			count = room / a.records.each
		}
		if limit < maxMessage {
			flags |= flagTC
		}
	}
	out = a.records.append(out, count)
	binary.BigEndian.PutUint16(out[base+6:], uint16(count))

	if a.zone != nil && count == 0 && flags&flagTC == 0 && len(a.zone.soa)+2 <= room {
		out = q.appendOwner(out, a.labels)
		out = append(out, a.zone.soa...)
		binary.BigEndian.PutUint16(out[base+8:], 1)
	}
	if q.edns {
		binary.BigEndian.PutUint16(out[base+10:], 1)
		out = appendOPT(out, a.rcode, q.do)
	}
	binary.BigEndian.PutUint16(out[base+2:], flags)
	return out
}

// append appends count of the records. Without a fixed order it begins with a random one, because
// clients that use the first address then spread over all.
func (r *records) append(out []byte, count int) []byte {
	if r.each == 0 || r.fixed || r.count < 2 {
		if count < r.count {
			return append(out, r.wire[:count*r.each]...)
		}
		return append(out, r.wire...)
	}
	first := int(rand.Uint32N(uint32(r.count))) * r.each //nolint:gosec // G115, G404: at most 64 KiB, and nothing to guess
	rest := count * r.each
	head := min(rest, len(r.wire)-first)
	out = append(out, r.wire[first:first+head]...)
	return append(out, r.wire[:rest-head]...)
}

// appendOwner appends a pointer to the part of the question's name from a label on.
func (q *query) appendOwner(out []byte, label int) []byte {
	if label == q.labels {
		return append(out, 0)
	}
	return binary.BigEndian.AppendUint16(out, 0xc000|uint16(headerBytes+int(q.starts[label])))
}

func appendOPT(out []byte, rcode int, do bool) []byte {
	out = append(out, 0)
	out = binary.BigEndian.AppendUint16(out, dns.TypeOPT)
	out = binary.BigEndian.AppendUint16(out, maxUDP)
	out = append(out, byte(rcode>>4), 0)
	var flags uint16
	if do {
		flags = 1 << 15
	}
	out = binary.BigEndian.AppendUint16(out, flags)
	return binary.BigEndian.AppendUint16(out, 0)
}

// pointer is the compressed owner of every record of an answer: the question's name.
const pointer = 0xc000 | headerBytes

// appendRecord appends a record for the question's name.
func appendRecord(out []byte, rtype uint16, data []byte) []byte {
	out = binary.BigEndian.AppendUint16(out, pointer)
	return appendBody(out, rtype, TTL, data)
}

// appendBody appends the part of a record after its owner.
func appendBody(out []byte, rtype uint16, ttl uint32, data []byte) []byte {
	out = binary.BigEndian.AppendUint16(out, rtype)
	out = binary.BigEndian.AppendUint16(out, dns.ClassINET)
	out = binary.BigEndian.AppendUint32(out, ttl)
	out = binary.BigEndian.AppendUint16(out, uint16(len(data)))
	return append(out, data...)
}

// wireName converts a name of ordinary labels, separated by dots, to the wire format.
func wireName(name string) []byte {
	out := make([]byte, 0, len(name)+2)
	begin := 0
	for i := 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			if i > begin {
				out = append(out, byte(i-begin))
				out = append(out, name[begin:i]...)
			}
			begin = i + 1
		}
	}
	return append(out, 0)
}
