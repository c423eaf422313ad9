package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/hangar-platform/hangar/metrics"
)

// jsonFilter copies a JSON text without the members of objects that are named like the hidden label.
// It reads each byte once, and its memory is bounded by the nesting and by maxName.
type jsonFilter struct {
	to    io.Writer
	out   []byte
	state jsonState
	open  []jsonObject
	name  []byte // the name that is being read, without quotes
	escd  bool   // the last byte of a string was a backslash

	depth  int // of brackets in a value that is omitted
	inText bool
}

// jsonObject is an open object or array.
type jsonObject struct {
	array bool
	wrote bool // a member was copied
	named bool // the name of a member was read, but not its value yet
}

type jsonState int

const (
	jsonBetween jsonState = iota
	jsonText              // in a string that is copied
	jsonName              // in the name of a member
	jsonLeftOut           // in a member that is not copied
)

const (
	maxOpen = 16
	// maxName is the length of the hidden label's name with every byte escaped like \u005f.
	maxName = 6 * len(metrics.OrgLabel)
)

var errBadJSON = errors.New("the metrics store answered with JSON of an unexpected form")

// newJSONFilter returns a filter that uses buffer, which may be nil.
func newJSONFilter(to io.Writer, buffer []byte) *jsonFilter { return &jsonFilter{to: to, out: buffer} }

// Write filters a part of the text.
func (f *jsonFilter) Write(p []byte) (int, error) {
	f.out = f.out[:0]
	for i := 0; i < len(p); {
		n, err := f.next(p[i:])
		if err != nil {
			return i, err
		}
		i += n
	}
	if _, err := f.to.Write(f.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close returns an error if the text is incomplete.
func (f *jsonFilter) Close() error {
	if len(f.open) > 0 || f.state != jsonBetween {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// next filters some of the bytes, and returns how many.
func (f *jsonFilter) next(p []byte) (int, error) {
	c := p[0]
	switch f.state {
	case jsonText:
		n := f.textLength(p)
		f.out = append(f.out, p[:n]...)
		return n, nil
	case jsonName:
		f.nameByte(c)
		return 1, nil
	case jsonLeftOut:
		return f.leaveOut(c), nil
	default:
		if n := plainLength(p); n > 0 {
			f.out = append(f.out, p[:n]...)
			return n, nil
		}
		return 1, f.between(c)
	}
}

// structural are the bytes outside of strings that between handles.
var structural = [256]bool{'{': true, '}': true, '[': true, ']': true, '"': true, ',': true}

// plainLength returns the number of bytes before the next structural one.
func plainLength(p []byte) int {
	for i, c := range p {
		if structural[c] {
			return i
		}
	}
	return len(p)
}

// textLength returns how many bytes belong to the current string, and ends the string after its last
// byte.
func (f *jsonFilter) textLength(p []byte) int {
	if n := bytes.IndexByte(p, '"') + 1; n > 0 && !f.escd && bytes.IndexByte(p[:n], '\\') < 0 {
		f.state = jsonBetween
		return n
	}
	for i, c := range p {
		switch {
		case f.escd:
			f.escd = false
		case c == '\\':
			f.escd = true
		case c == '"':
			f.state = jsonBetween
			return i + 1
		}
	}
	return len(p)
}

// between handles a byte outside of strings.
func (f *jsonFilter) between(c byte) error {
	var top *jsonObject
	if len(f.open) > 0 {
		top = &f.open[len(f.open)-1]
	}
	inObject := top != nil && !top.array
	switch c {
	case '{', '[':
		if len(f.open) == maxOpen {
			return errBadJSON
		}
		f.open = append(f.open, jsonObject{array: c == '['})
	case '}', ']':
		if top == nil || top.array != (c == ']') {
			return errBadJSON
		}
		f.open = f.open[:len(f.open)-1]
	case '"':
		if inObject && !top.named {
			f.state, f.name = jsonName, f.name[:0]
			return nil
		}
		f.state = jsonText
	case ',':
		if inObject { // the comma is written before the next copied member
			top.named = false
			return nil
		}
	}
	f.out = append(f.out, c)
	return nil
}

// nameByte handles a byte of a name, or the quote that ends it.
func (f *jsonFilter) nameByte(c byte) {
	ends := c == '"' && !f.escd
	f.escd = c == '\\' && !f.escd
	if !ends {
		if f.name = append(f.name, c); len(f.name) > maxName {
			f.beginMember()
			f.out = append(f.out, f.name...)
			f.state = jsonText // the rest of it
		}
		return
	}
	f.open[len(f.open)-1].named = true
	if isHidden(f.name) {
		f.state, f.depth, f.inText = jsonLeftOut, 0, false
		return
	}
	f.beginMember()
	f.out = append(append(f.out, f.name...), '"')
	f.state = jsonBetween
}

// beginMember writes the bytes before the name of a member.
func (f *jsonFilter) beginMember() {
	top := &f.open[len(f.open)-1]
	top.named = true
	if top.wrote {
		f.out = append(f.out, ',')
	}
	top.wrote = true
	f.out = append(f.out, '"')
}

// isHidden reports whether a member's name, as written, is that of the hidden label.
func isHidden(name []byte) bool {
	if bytes.IndexByte(name, '\\') < 0 {
		return string(name) == metrics.OrgLabel
	}
	var decoded string
	return json.Unmarshal(append(append([]byte{'"'}, name...), '"'), &decoded) == nil && decoded == metrics.OrgLabel
}

// leaveOut handles a byte of an omitted value. It returns how many bytes belong to the value: 0 for
// the byte after its end.
func (f *jsonFilter) leaveOut(c byte) int {
	switch {
	case f.escd:
		f.escd = false
	case f.inText:
		f.escd = c == '\\'
		f.inText = c != '"'
	case c == '"':
		f.inText = true
	case c == '{' || c == '[':
		f.depth++
	case f.depth == 0 && (c == ',' || c == '}'):
		f.state = jsonBetween
		return 0
	case c == '}' || c == ']':
		f.depth--
	}
	return 1
}

// maxSeriesLine bounds a line of the text format, which is a series with its labels.
const maxSeriesLine = 1 << 20

var errBadText = errors.New("the metrics store answered with text of an unexpected form")

// redactText copies series in Prometheus's text format without the hidden label
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
func redactText(to io.Writer, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 64<<10), maxSeriesLine)
	var out []byte
	for lines.Scan() {
		var err error
		if out, err = redactLine(out[:0], lines.Bytes()); err != nil {
			return err
		}
		if _, err := to.Write(append(out, '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

// redactLine appends a line without the hidden label.
func redactLine(out, line []byte) ([]byte, error) {
	name, rest, ok := bytes.Cut(line, []byte{'{'})
	out = append(out, name...)
	if !ok {
		return out, nil
	}
	separator := byte('{')
	for len(rest) > 0 && rest[0] != '}' {
		equals := bytes.IndexByte(rest, '=')
		if equals < 0 || equals+1 >= len(rest) || rest[equals+1] != '"' {
			return nil, errBadText
		}
		n := textEnd(rest[equals+1:])
		if n < 0 {
			return nil, errBadText
		}
		if label := rest[:equals+1+n]; string(rest[:equals]) != metrics.OrgLabel {
			out = append(append(out, separator), label...)
			separator = ','
		}
		if rest = rest[equals+1+n:]; len(rest) > 0 && rest[0] == ',' {
			rest = rest[1:]
		}
	}
	if len(rest) == 0 {
		return nil, errBadText
	}
	if separator == ',' {
		out = append(out, '}')
	}
	return append(out, rest[1:]...), nil
}

// textEnd returns the length of the quoted text that b begins with, or -1.
func textEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}
