package proxy

import (
	"slices"
	"strings"
)

// patterns match paths. Each pattern is split at its asterisks, which match any characters.
type patterns [][]string

func compile(list []string) patterns {
	var ps patterns
	for _, p := range list {
		ps = append(ps, strings.Split(p, "*"))
	}
	return ps
}

func (ps patterns) match(path string) bool {
	return slices.ContainsFunc(ps, func(parts []string) bool { return matches(parts, path) })
}

// matches reports whether a path consists of the parts in order, with anything between them.
func matches(parts []string, path string) bool {
	path, ok := strings.CutPrefix(path, parts[0])
	if !ok || len(parts) == 1 {
		return ok && path == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		if _, path, ok = strings.Cut(path, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(path, last)
}
