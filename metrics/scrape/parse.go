package scrape

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/hangar-platform/hangar/metrics"
)

// maxUnreadable is how many lines of a response may be unreadable before the response does not count
// as metrics.
const maxUnreadable = 1000

// maxNumber bounds the text of a value or a timestamp, in bytes.
const maxNumber = 64

// parser reads the text format of Prometheus 0.0.4 and OpenMetrics 1.0
// (prometheus.io/docs/instrumenting/exposition_formats, and the OpenMetrics specification). It skips
// lines that it cannot read, and ignores types, units, timestamps and exemplars.
type parser struct {
	limits Limits
	seed   maphash.Seed

	// The results of the last response.
	text       []byte    // in the format of seriesSet.text
	values     []float64 // of each series
	seen       map[uint64]struct{}
	unreadable int // lines that are not samples
	firstBad   int // number of the first of them
	overLimit  int // samples with too many or too long labels
	duplicates int // samples of repeated series

	labels  []label // of the line
	escaped []byte  // unescaped values of the line
}

type label struct{ name, value []byte }

func newParser(l Limits) parser {
	return parser{limits: l, seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
}

func (p *parser) reset() {
	p.text, p.values = p.text[:0], p.values[:0]
	clear(p.seen)
	p.unreadable, p.firstBad, p.overLimit, p.duplicates = 0, 0, 0, 0
}

// parse reads a response. It returns an error for one that is not metrics, is incomplete, or has too
// many series.
func (p *parser) parse(body []byte, openMetrics bool) error {
	p.reset()
	line, complete := 0, !openMetrics
	for len(body) > 0 {
		line++
		var text []byte
		if i := bytes.IndexByte(body, '\n'); i >= 0 {
			text, body = body[:i], body[i+1:]
		} else {
			text, body = body, nil
		}
		text = trim(text)
		if len(text) == 0 {
			continue
		}
		if text[0] == '#' {
			if openMetrics && string(text) == "# EOF" {
				complete = true
				break
			}
			continue
		}
		switch value, result := p.sample(text); {
		case result == unreadable:
			if p.unreadable++; p.unreadable == 1 {
				p.firstBad = line
			}
			if p.unreadable > maxUnreadable {
				return failure{kind: kindNotText, text: "the answer is not in the text format of Prometheus", penalty: true}
			}
		case result == overLimit:
			p.overLimit++
		case !p.add():
			p.duplicates++
		case len(p.values) == p.limits.Series:
			return failure{kind: kindSeries, text: "there are more than " + strconv.Itoa(p.limits.Series) + " series", penalty: true}
		default:
			p.values = append(p.values, value)
		}
	}
	switch {
	case len(p.values) == 0 && p.unreadable > 0:
		return failure{kind: kindNotText, text: "the answer is not in the text format of Prometheus", penalty: true}
	case !complete:
		return failure{kind: kindIncomplete, text: "the answer is not complete: it does not end with # EOF"}
	}
	return nil
}

// add appends the text of the series with the labels in p.labels. It reports false for a repeated
// series.
func (p *parser) add() bool {
	begin := len(p.text)
	p.text = binary.AppendUvarint(p.text, uint64(len(p.labels)))
	for i := range p.labels {
		p.text = appendWord(appendWord(p.text, p.labels[i].name), p.labels[i].value)
	}
	hash := maphash.Bytes(p.seed, p.text[begin:])
	if _, there := p.seen[hash]; there {
		p.text = p.text[:begin]
		return false
	}
	p.seen[hash] = struct{}{}
	return true
}

// The results of reading a line.
type lineResult int

const (
	readable lineResult = iota
	unreadable
	overLimit
)

var nameLabel = []byte(metrics.NameLabel)

// sample reads a line and leaves the labels of its series in p.labels, sorted by name.
func (p *parser) sample(s []byte) (float64, lineResult) {
	p.labels, p.escaped = p.labels[:0], p.escaped[:0]
	name := nameOf(s, true)
	if len(name) == 0 {
		return 0, unreadable
	}
	p.labels = append(p.labels, label{nameLabel, name})
	rest := skipBlanks(s[len(name):])
	result := readable
	if len(rest) > 0 && rest[0] == '{' {
		rest, result = p.readLabels(rest[1:])
		if result == unreadable {
			return 0, unreadable
		}
		rest = skipBlanks(rest)
	} else if len(rest) == len(s)-len(name) {
		return 0, unreadable // no separator after the name
	}
	value, rest, ok := valueOf(rest)
	if !ok || !ignorable(rest) {
		return 0, unreadable
	}
	if result == overLimit || len(name) > p.limits.LabelName || len(p.labels)-1 > p.limits.Labels {
		return 0, overLimit
	}
	slices.SortFunc(p.labels, func(a, b label) int { return bytes.Compare(a.name, b.name) })
	for i := range p.labels[1:] {
		if bytes.Equal(p.labels[i].name, p.labels[i+1].name) {
			return 0, unreadable
		}
	}
	return value, readable
}

// readLabels reads the labels after an opening brace, up to the closing one. It omits empty labels,
// which mean nothing, and labels that the Machine cannot choose.
func (p *parser) readLabels(s []byte) (rest []byte, result lineResult) {
	for count := 0; ; count++ {
		s = skipBlanks(s)
		if len(s) > 0 && s[0] == '}' {
			return s[1:], result
		}
		name := nameOf(s, false)
		s = skipBlanks(s[len(name):])
		if len(name) == 0 || len(s) == 0 || s[0] != '=' {
			return nil, unreadable
		}
		s = skipBlanks(s[1:])
		if len(s) == 0 || s[0] != '"' {
			return nil, unreadable
		}
		value, after, ok := p.quoted(s[1:])
		if !ok || !utf8.Valid(value) {
			return nil, unreadable
		}
		switch {
		case ofPlatform(name) || len(value) == 0:
		case len(name) > p.limits.LabelName || len(value) > p.limits.LabelValue || len(p.labels) > p.limits.Labels:
			result = overLimit // the rest of the line may still be unreadable
		default:
			p.labels = append(p.labels, label{name, value})
		}
		s = skipBlanks(after)
		if len(s) > 0 && s[0] == ',' {
			s = s[1:]
		} else if len(s) == 0 || s[0] != '}' {
			return nil, unreadable
		}
	}
}

// quoted returns the value before the closing quote, and the rest after it.
func (p *parser) quoted(s []byte) (value, rest []byte, ok bool) {
	value, rest, ok = bytes.Cut(s, []byte{'"'})
	if !ok || bytes.IndexByte(value, '\\') < 0 {
		return value, rest, ok
	}
	begin := len(p.escaped)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return p.escaped[begin:len(p.escaped):len(p.escaped)], s[i+1:], true
		case c != '\\':
			p.escaped = append(p.escaped, c)
		case i+1 == len(s):
			return nil, nil, false
		default:
			i++
			switch s[i] {
			case 'n':
				p.escaped = append(p.escaped, '\n')
			case '"', '\\':
				p.escaped = append(p.escaped, s[i])
			default:
				p.escaped = append(p.escaped, '\\', s[i])
			}
		}
	}
	return nil, nil, false
}

// nameOf returns the name at the beginning of s. The name of a metric may have colons.
func nameOf(s []byte, colons bool) []byte {
	for i, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == ':' && colons:
		case c >= '0' && c <= '9' && i > 0:
		default:
			return s[:i]
		}
	}
	return s
}

// valueOf returns the number at the beginning of s, and the rest after it.
func valueOf(s []byte) (value float64, rest []byte, ok bool) {
	token, rest := token(s)
	if len(token) == 0 || len(token) > maxNumber {
		return 0, nil, false
	}
	if len(token) < 16 { // all digits: below 2^53
		n := 0
		for i, c := range token {
			if c < '0' || c > '9' {
				break
			}
			if n = 10*n + int(c-'0'); i == len(token)-1 {
				return float64(n), rest, true
			}
		}
	}
	if bytes.ContainsAny(token, "xXpP_") { // only Go knows these forms
		return 0, nil, false
	}
	value, err := strconv.ParseFloat(string(token), 64)
	if err != nil && !math.IsInf(value, 0) { // a number that is too large is infinite
		return 0, nil, false
	}
	return value, rest, true
}

// ignorable reports whether the rest of a line after the value is empty, a timestamp or an exemplar.
func ignorable(s []byte) bool {
	if s = skipBlanks(s); len(s) == 0 || s[0] == '#' {
		return true
	}
	_, rest, ok := valueOf(s)
	if !ok {
		return false
	}
	rest = skipBlanks(rest)
	return len(rest) == 0 || rest[0] == '#'
}

func token(s []byte) (token, rest []byte) {
	for i, c := range s {
		if c == ' ' || c == '\t' {
			return s[:i], s[i:]
		}
	}
	return s, nil
}

func skipBlanks(s []byte) []byte {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	return s
}

// trim removes blanks around a line, and a carriage return after it.
func trim(s []byte) []byte {
	s = skipBlanks(s)
	for len(s) > 0 && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t' || s[len(s)-1] == '\r') {
		s = s[:len(s)-1]
	}
	return s
}
