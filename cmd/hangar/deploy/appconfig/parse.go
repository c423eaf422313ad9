package appconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Parse reads a file. name is only for messages. notes are about keys without an effect. Every error is an
// *Error.
func Parse(name string, raw []byte) (f *File, notes []Finding, err error) {
	if len(raw) > MaxFileBytes {
		return nil, nil, &Error{name, []Finding{{Text: fmt.Sprintf("has more than %d bytes", MaxFileBytes)}}}
	}
	var tree map[string]any
	if err := toml.Unmarshal(raw, &tree); err != nil {
		finding := Finding{Text: strings.TrimPrefix(err.Error(), "toml: ")}
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			finding.Line, _ = at.Position()
		}
		return nil, nil, &Error{name, []Finding{finding}}
	}
	return decode(name, tree, linesOf(raw))
}

// ParseDefinition reads the definition of a release, which is a file as JSON. It is as strict as Parse.
func ParseDefinition(name string, raw []byte) (f *File, notes []Finding, err error) {
	var tree map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, nil, &Error{name, []Finding{{Text: "is not a JSON object"}}}
	}
	return decode(name, tree, nil)
}

func decode(name string, tree map[string]any, lines positions) (*File, []Finding, error) {
	c := &checker{lines: lines}
	c.value("", tree, reflect.TypeFor[File]())
	var f File
	if len(c.errors) == 0 {
		raw, err := json.Marshal(tree)
		if err == nil {
			err = json.Unmarshal(raw, &f)
		}
		if err != nil {
			c.errors = append(c.errors, Finding{Text: err.Error()})
		}
	}
	if len(c.errors) == 0 {
		f.check(c)
	}
	byLine := func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) }
	slices.SortStableFunc(c.errors, byLine)
	slices.SortStableFunc(c.notes, byLine)
	if len(c.errors) > 0 {
		return nil, c.notes, &Error{name, c.errors}
	}
	return &f, c.notes, nil
}

// positions has the lines of keys, by path.
type positions map[string]int

// of returns the line of a path, or of the closest enclosing one, or 0 if that is not known.
func (p positions) of(path string) int {
	for {
		if line, ok := p[path]; ok {
			return line
		}
		at := strings.LastIndexAny(path, ".[")
		if at < 0 {
			return 0
		}
		path = path[:at]
	}
}

// linesOf returns the lines of the keys of a valid document.
func linesOf(raw []byte) positions {
	found, tables, prefix := positions{}, map[string]int{}, ""
	var p unstable.Parser
	p.Reset(raw)
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			prefix = ""
			for keys := e.Key(); keys.Next(); {
				prefix = join(prefix, string(keys.Node().Data))
				line := p.Shape(keys.Node().Raw).Start.Line
				if e.Kind == unstable.ArrayTable && keys.IsLast() {
					tables[prefix]++
				}
				if n := tables[prefix]; n > 0 {
					prefix += "[" + strconv.Itoa(n-1) + "]"
				}
				if _, ok := found[prefix]; !ok || keys.IsLast() {
					found[prefix] = line
				}
			}
			// Tables within the next element are counted from zero again.
			if e.Kind == unstable.ArrayTable {
				for name := range tables {
					if strings.HasPrefix(name, prefix+".") {
						delete(tables, name)
					}
				}
			}
		case unstable.KeyValue:
			found.pair(&p, prefix, e)
		default: // a comment
		}
	}
	return found
}

func (p positions) pair(parser *unstable.Parser, prefix string, e *unstable.Node) {
	for keys := e.Key(); keys.Next(); {
		prefix = join(prefix, string(keys.Node().Data))
		if _, ok := p[prefix]; !ok {
			p[prefix] = parser.Shape(keys.Node().Raw).Start.Line
		}
	}
	p.node(parser, prefix, e.Value())
}

func (p positions) node(parser *unstable.Parser, path string, n *unstable.Node) {
	switch n.Kind {
	case unstable.InlineTable:
		for pairs := n.Children(); pairs.Next(); {
			if pairs.Node().Kind == unstable.KeyValue {
				p.pair(parser, path, pairs.Node())
			}
		}
	case unstable.Array:
		i := 0
		for items := n.Children(); items.Next(); {
			if items.Node().Kind == unstable.Comment {
				continue
			}
			p.node(parser, path+"["+strconv.Itoa(i)+"]", items.Node())
			i++
		}
	default: // a scalar has the line of its key
	}
}
