package gateway

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/metrics"
)

// heldBytes is how much of an answer is held back before any of it is sent. A shorter answer can
// still become an error.
const heldBytes = 1 << 20

// partBytes is how much of an answer a client has to receive within Limits.Transfer.
const partBytes = 8 << 20

// buffers are the memory for copying an answer. They are reused for answers of any organization, but
// only bytes that were written for the same answer are read from them.
type buffers struct{ in, filtered, held []byte }

const (
	readBytes = 32 << 10  // of an answer at a time
	keptBytes = 256 << 10 // of each buffer that is used again
)

var unusedBuffers = sync.Pool{New: func() any { return &buffers{in: make([]byte, readBytes)} }}

// free returns buffers for reuse, without those that a large answer has enlarged.
func (b *buffers) free() {
	for _, p := range []*[]byte{&b.filtered, &b.held} {
		if *p = (*p)[:0]; cap(*p) > keptBytes {
			*p = nil
		}
	}
	unusedBuffers.Put(b)
}

// answer is what a client receives. Nothing is sent before more than heldBytes are written, or
// finish is called.
type answer struct {
	w       http.ResponseWriter
	limits  Limits
	length  int64 // of what was written
	part    int   // bytes that may be sent until the client gets more time
	held    []byte
	buffers *buffers
	begun   bool
	content string // type
}

// newAnswer returns an answer. The caller must close it.
func newAnswer(w http.ResponseWriter, limits Limits) *answer {
	b := unusedBuffers.Get().(*buffers)
	return &answer{w: w, limits: limits, buffers: b, held: b.held}
}

func (a *answer) close() {
	_ = http.NewResponseController(a.w).SetWriteDeadline(time.Time{}) // for the next answer on the connection
	if a.held != nil {
		a.buffers.held = a.held
	}
	a.buffers.free()
	a.buffers, a.held = nil, nil
}

// Write appends to the answer.
func (a *answer) Write(p []byte) (int, error) {
	if a.length += int64(len(p)); a.length > a.limits.Bytes {
		return 0, errTooLarge
	}
	if a.begun {
		return a.send(p)
	}
	if a.held = append(a.held, p...); len(a.held) <= heldBytes {
		return len(p), nil
	}
	a.header()
	if _, err := a.send(a.held); err != nil {
		return 0, err
	}
	a.held = nil
	return len(p), nil
}

// send passes bytes to the client. It fails if the client takes too long for a part of the answer.
func (a *answer) send(p []byte) (sent int, err error) {
	for len(p) > 0 && err == nil {
		if a.part == 0 {
			err := http.NewResponseController(a.w).SetWriteDeadline(time.Now().Add(a.limits.Transfer))
			if err != nil && !errors.Is(err, http.ErrNotSupported) {
				return sent, err
			}
			a.part = partBytes
		}
		var n int
		n, err = a.w.Write(p[:min(len(p), a.part)])
		a.part, sent, p = a.part-n, sent+n, p[n:]
	}
	return sent, err
}

func (a *answer) header() {
	h := a.w.Header()
	h.Set("Content-Type", a.content)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	a.begun = true
}

// finish sends the rest of the answer, and text after it.
func (a *answer) finish(contentType, text string) error {
	a.content = contentType
	if _, err := io.WriteString(a, text); err != nil {
		return err
	}
	if a.begun {
		return nil
	}
	a.w.Header().Set("Content-Length", strconv.Itoa(len(a.held)))
	a.header()
	_, err := a.send(a.held)
	return err
}

// receive copies an answer of the store, without the hidden label.
func (a *answer) receive(q *query, from io.Reader) error {
	a.content = q.contentType
	if err := a.copy(q, from); err != nil {
		return err
	}
	return a.finish(q.contentType, "")
}

func (a *answer) copy(q *query, from io.Reader) error {
	switch q.kind {
	case labels:
		return copyList(a, q, from, func(name string) bool { return name != metrics.OrgLabel })
	case labelValues:
		if q.limit > 0 {
			return copyList(a, q, from, func(string) bool { return true })
		}
		return a.copyJSON(from)
	case statistics:
		return a.copyStatistics(q, from)
	case federation:
		return redactText(a, from)
	default:
		if q.kind == series && q.limit > 0 {
			return copyList(a, q, from, func(labels map[string]string) bool {
				delete(labels, metrics.OrgLabel)
				return true
			})
		}
		return a.copyJSON(from)
	}
}

func (a *answer) copyJSON(from io.Reader) error {
	filter := newJSONFilter(a, a.buffers.filtered)
	_, err := io.CopyBuffer(filter, from, a.buffers.in)
	a.buffers.filtered = filter.out
	if err != nil {
		return err
	}
	return filter.Close()
}

// decode calls read with a decoder of an answer of at most a.limits.Bytes.
func (a *answer) decode(from io.Reader, read func(*json.Decoder) error) error {
	limited := &io.LimitedReader{R: from, N: a.limits.Bytes + 1}
	err := read(json.NewDecoder(limited))
	if err != nil && limited.N == 0 {
		return errTooLarge
	}
	return err
}

// copyList copies the elements of a list one at a time: up to q.limit of those for which redact, which may
// change them, returns true. It reads the others too, so that an incomplete answer is an error.
func copyList[E any](a *answer, q *query, from io.Reader, redact func(E) bool) error {
	out := bufio.NewWriterSize(a, readBytes)
	status, begun := json.RawMessage(`""`), false
	err := a.decode(from, func(d *json.Decoder) error {
		return readMembers(d, func(name string) error {
			switch {
			case name == "status":
				return d.Decode(&status)
			case name == "data" && !begun:
				begun = true
				if _, err := fmt.Fprintf(out, `{"status":%s,"data":[`, status); err != nil {
					return err
				}
				return copyElements(out, d, q.limit, redact)
			default:
				return d.Decode(new(json.RawMessage))
			}
		})
	})
	if err != nil {
		return err
	}
	if !begun {
		return errBadJSON
	}
	if _, err := out.WriteString("]}\n"); err != nil {
		return err
	}
	return out.Flush()
}

// copyElements copies the elements of a list, without its brackets.
func copyElements[E any](out *bufio.Writer, d *json.Decoder, limit int, redact func(E) bool) error {
	switch begin, err := nextToken(d); {
	case err != nil:
		return err
	case begin == nil: // null
		return nil
	case begin != json.Delim('['):
		return errBadJSON
	}
	for n := 0; d.More(); {
		var element E
		if err := d.Decode(&element); err != nil {
			return err
		}
		if !redact(element) || limit > 0 && n == limit {
			continue
		}
		if n++; n > 1 {
			if err := out.WriteByte(','); err != nil {
				return err
			}
		}
		text, err := json.Marshal(element)
		if err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	_, err := nextToken(d) // the end, or why there is none
	return err
}

// readMembers calls read for each member of an object, with the decoder before its value.
func readMembers(d *json.Decoder, read func(name string) error) error {
	if begin, err := nextToken(d); err != nil {
		return err
	} else if begin != json.Delim('{') {
		return errBadJSON
	}
	for d.More() {
		token, err := nextToken(d)
		if err != nil {
			return err
		}
		name, _ := token.(string) // a decoder takes no other names
		if err := read(name); err != nil {
			return err
		}
	}
	_, err := nextToken(d) // the end, or why there is none
	return err
}

// nextToken returns the next token of an answer that has not ended.
func nextToken(d *json.Decoder) (json.Token, error) {
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	return token, err
}

// statisticsEntry is an element of a list of status/tsdb.
type statisticsEntry struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// copyStatistics copies status/tsdb as it would be without the hidden label, which each series has
// once.
func (a *answer) copyStatistics(q *query, from io.Reader) error {
	var status struct {
		Status string `json:"status"`
		Data   struct {
			TotalSeries          int64             `json:"totalSeries"`
			TotalLabelValuePairs int64             `json:"totalLabelValuePairs"`
			ByMetricName         []statisticsEntry `json:"seriesCountByMetricName"`
			ByLabelName          []statisticsEntry `json:"seriesCountByLabelName"`
			ByFocusLabelValue    []statisticsEntry `json:"seriesCountByFocusLabelValue"`
			ByLabelValuePair     []statisticsEntry `json:"seriesCountByLabelValuePair"`
			ValuesByLabelName    []statisticsEntry `json:"labelValueCountByLabelName"`
		} `json:"data"`
	}
	if err := a.decode(from, func(d *json.Decoder) error { return d.Decode(&status) }); err != nil {
		return err
	}
	d := &status.Data
	d.TotalLabelValuePairs = max(0, d.TotalLabelValuePairs-d.TotalSeries)
	hidden := func(e statisticsEntry) bool { return e.Name == metrics.OrgLabel }
	hiddenPair := func(e statisticsEntry) bool { return strings.HasPrefix(e.Name, metrics.OrgLabel+"=") }
	shown := func(statisticsEntry) bool { return false }
	for list, remove := range map[*[]statisticsEntry]func(statisticsEntry) bool{
		&d.ByMetricName: shown, &d.ByFocusLabelValue: shown,
		&d.ByLabelName: hidden, &d.ValuesByLabelName: hidden, &d.ByLabelValuePair: hiddenPair,
	} {
		kept := slices.DeleteFunc(*list, remove)
		if len(kept) > q.limit {
			kept = kept[:q.limit]
		}
		if kept == nil {
			kept = []statisticsEntry{}
		}
		*list = kept
	}
	return json.NewEncoder(a).Encode(status)
}
