package graphql

import (
	"encoding/base64"
	"maps"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// connection is a page of a list.
type connection struct {
	nodes      []any
	start, end int // places in the list
	total      int
}

// pageInfo says where a page is in its list.
type pageInfo struct {
	start, end, total int
}

const cursorPrefix = "place:"

// cursorOf names the place after an item.
func cursorOf(place int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + strconv.Itoa(place)))
}

func placeOf(cursor string) (int, error) {
	if cursor == "" {
		return 0, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	text, ok := strings.CutPrefix(string(raw), cursorPrefix)
	if err == nil && ok {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 {
			return n, nil
		}
	}
	return 0, hangar.Errorf(hangar.CodeInvalid, "", "invalid after: is not the endCursor of a page")
}

// page returns the part of a list that first and after ask for.
func page[T any](in args, list []T) (connection, error) {
	start, err := placeOf(in.Text("after"))
	if err != nil {
		return connection{}, err
	}
	n, set, err := in.Int("first")
	switch {
	case err != nil:
		return connection{}, err
	case !set:
		n = execute.DefaultItems
	case n < 0:
		return connection{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid first: %d is negative", n)
	}
	start = min(start, len(list))
	end := min(start+min(n, execute.MaxItems), len(list))
	c := connection{nodes: make([]any, 0, end-start), start: start, end: end, total: len(list)}
	for _, item := range list[start:end] {
		c.nodes = append(c.nodes, item)
	}
	return c, nil
}

// connectionFields are the fields of every connection with pages.
func connectionFields() fields[connection] {
	return fields[connection]{
		"nodes":      field(func(c connection) []any { return c.nodes }),
		"pageInfo":   field(func(c connection) pageInfo { return pageInfo{c.start, c.end, c.total} }),
		"totalCount": field(func(c connection) int { return c.total }),
	}
}

// edge is an item with its place.
type edge struct {
	node   any
	cursor string
}

func (c connection) edges() []edge {
	list := make([]edge, 0, len(c.nodes))
	for i, node := range c.nodes {
		list = append(list, edge{node, cursorOf(c.start + i + 1)})
	}
	return list
}

// whole is a connection without pages.
type whole struct{ nodes any }

func defineWhole(s *schema, names ...string) {
	for _, name := range names {
		execute.Define(s, name, fields[whole]{"nodes": field(func(w whole) any { return w.nodes })})
	}
}

func definePages(s *schema, names ...string) {
	for _, name := range names {
		execute.Define(s, name, maps.Clone(connectionFields()))
	}
	execute.Define(s, "PageInfo", fields[pageInfo]{
		"hasNextPage":     field(func(p pageInfo) bool { return p.end < p.total }),
		"hasPreviousPage": field(func(p pageInfo) bool { return p.start > 0 }),
		"startCursor":     field(func(p pageInfo) string { return cursorOf(p.start) }),
		"endCursor":       field(func(p pageInfo) string { return cursorOf(p.end) }),
	})
}
