package proxy

import "testing"

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"/a", []string{"/a"}, []string{"/", "/ab", "/a/", "x/a"}},
		{"*", []string{"", "/", "/any/thing"}, nil},
		{"*.js", []string{"/x.js", "/a/b.js"}, []string{"/x.jsx", "/js"}},
		{"/a/*/b", []string{"/a/x/b", "/a/x/y/b", "/a//b"}, []string{"/a/b", "/a/x/b/"}},
		{"/*ab*ab", []string{"/abab", "/xabyab"}, []string{"/ab", "/aab"}},
		{"/api.*", []string{"/api.x"}, []string{"/apix"}},
		{"", []string{""}, []string{"/"}},
	} {
		ps := compile([]string{"/never", c.pattern})
		for _, path := range c.yes {
			if !ps.match(path) {
				t.Errorf("%q does not match %q", c.pattern, path)
			}
		}
		for _, path := range c.no {
			if ps.match(path) {
				t.Errorf("%q matches %q", c.pattern, path)
			}
		}
	}
}
