// Package stream carries transactions from a primary to its replicas, over one HTTP/2 request whose
// bodies flow in both directions.
//
// A replica sends the positions of its databases. The primary sends the transactions after them from its
// logs, and then each transaction as it is committed. If the log lacks transactions that a replica
// needs, or the replica has transactions that the primary never had, the replica sends the checksums of
// its pages and receives the pages that differ. The primary keeps the positions of each replica, but no
// queue, so a slow replica costs no memory. Transactions of one database are in order; databases are
// independent of each other.
package stream

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
)

// Version of the protocol; a primary refuses others.
const Version = 1

// ContentType is the media type of both bodies.
const ContentType = "application/x-hangar-db"

// Beat is the interval of the primary's heartbeats. A replica disconnects from a primary that has been
// silent for Silence.
const (
	Beat    = time.Second
	Silence = 5 * time.Second
)

// maxPayload bounds one frame, in bytes. Longer payloads are split.
const maxPayload = 1 << 20

// kind is the type of a frame. Receivers skip unknown ones.
type kind byte

const (
	kindHello kind = 1 // replica: its identity and positions
	kindAck   kind = 2 // replica: a transaction or pages are stored
	kindSums  kind = 3 // replica: checksums of pages, in parts

	kindWelcome kind = 16 // primary: its identity
	kindTx      kind = 17 // primary: a transaction, in parts
	kindNeed    kind = 18 // primary: request for the checksums of a database
	kindPages   kind = 19 // primary: pages that differ
	kindPos     kind = 20 // primary: the position after the preceding pages
	kindBeat    kind = 21 // primary: a heartbeat, with the positions of its databases
	kindEnd     kind = 22 // primary: end of the stream
	kindEpoch   kind = 23 // primary: epoch of the transactions that follow
)

// hello is the first frame of a replica.
type hello struct {
	Version   int               `json:"version"`
	Node      uint64            `json:"node"`
	Hostname  string            `json:"hostname"`
	Cluster   string            `json:"cluster,omitempty"`
	Candidate bool              `json:"candidate,omitempty"`
	Positions map[string]string `json:"positions"`
}

// welcome is the first frame of a primary.
type welcome struct {
	Cluster  string `json:"cluster"`
	Hostname string `json:"hostname"`
	Epoch    uint64 `json:"epoch"`
}

// beat has the positions of the primary's databases.
type beat struct {
	Positions map[string]string `json:"positions"`
}

// position is the position of a database after pages or a transaction.
type position struct {
	Name      string `json:"name"`
	Pos       string `json:"pos"`
	PageSize  uint32 `json:"pageSize,omitempty"`
	Pages     uint32 `json:"pages,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"`
	Epoch     uint64 `json:"epoch,omitempty"`
	// Chain describes the primary's transactions. Only kindPos has it.
	Chain database.Chain `json:"chain,omitzero"`
}

// epochOf is the epoch of the transactions of a database that follow it.
type epochOf struct {
	Name  string `json:"name"`
	Epoch uint64 `json:"epoch"`
}

// part is a fragment of a payload for a database.
type part struct {
	name string
	last bool
	data []byte
}

// writer writes frames.
type writer struct {
	w     *bufio.Writer
	flush func() error
}

func newWriter(w io.Writer, flush func() error) *writer {
	return &writer{bufio.NewWriterSize(w, 64<<10), flush}
}

func (w *writer) frame(k kind, payload ...[]byte) error {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	var head [5]byte
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(n))
	if _, err := w.w.Write(head[:]); err != nil {
		return err
	}
	for _, p := range payload {
		if _, err := w.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) json(k kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.frame(k, b)
}

// parts writes data of a database in as many frames as needed, and marks the last.
func (w *writer) parts(k kind, name string, data []byte) error {
	head := partHead(name)
	room := maxPayload - len(head)
	for {
		n := min(len(data), room)
		head[0] = 0
		if n == len(data) {
			head[0] = 1
		}
		if err := w.frame(k, head, data[:n]); err != nil {
			return err
		}
		if data = data[n:]; head[0] == 1 {
			return nil
		}
	}
}

func partHead(name string) []byte {
	head := make([]byte, 3, 3+len(name))
	binary.BigEndian.PutUint16(head[1:], uint16(len(name)))
	return append(head, name...)
}

// send flushes the written frames.
func (w *writer) send() error {
	if err := w.w.Flush(); err != nil {
		return err
	}
	if w.flush == nil {
		return nil
	}
	return w.flush()
}

// errFrame is returned for a malformed frame.
var errFrame = errors.New("malformed frame")

// readFrame reads one frame. Its payload is valid until the next is read into buf.
func readFrame(r io.Reader, buf []byte) (kind, []byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, buf, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxPayload {
		return 0, nil, buf, fmt.Errorf("%w: %d bytes", errFrame, n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return 0, nil, buf, fmt.Errorf("frame ends early: %w", err)
	}
	return kind(head[0]), buf, buf, nil
}

func parsePart(b []byte) (part, error) {
	if len(b) < 3 {
		return part{}, errFrame
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if len(b) < 3+n {
		return part{}, errFrame
	}
	return part{name: string(b[3 : 3+n]), last: b[0] == 1, data: b[3+n:]}, nil
}

// assembly joins parts. It is bounded, so that the peer cannot exhaust memory.
type assembly struct {
	name  string
	data  []byte
	limit int
}

// add adds a part and reports whether it was the last.
func (a *assembly) add(p part) (bool, error) {
	if len(a.data) > 0 && a.name != p.name || len(a.data)+len(p.data) > a.limit {
		return false, fmt.Errorf("%w: part of %s after %d bytes of %s", errFrame, p.name, len(a.data), a.name)
	}
	a.name = p.name
	a.data = append(a.data, p.data...)
	return p.last, nil
}

// parsePos parses the format of ltx.Pos.String.
func parsePos(s string) (ltx.Pos, error) {
	var p ltx.Pos
	if len(s) != 33 || s[16] != '/' {
		return p, fmt.Errorf("%w: position %q", errFrame, s)
	}
	if _, err := fmt.Sscanf(s, "%016x/%016x", (*uint64)(&p.TXID), (*uint64)(&p.PostApplyChecksum)); err != nil {
		return p, fmt.Errorf("%w: position %q", errFrame, s)
	}
	return p, nil
}
