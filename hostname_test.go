package hangar_test

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestParseHostname(t *testing.T) {
	for text, want := range map[string]hangar.Hostname{
		"www.example.com":                        "www.example.com",
		"WWW.Example.COM.":                       "www.example.com",
		"example.com":                            "example.com",
		"*.example.com":                          "*.example.com",
		"*.EXAMPLE.com.":                         "*.example.com",
		"bücher.example":                         "xn--bcher-kva.example",
		"Bücher.example":                         "xn--bcher-kva.example",
		"1.example.com":                          "1.example.com",
		"a--b.example.com":                       "a--b.example.com",
		"xn--bcher-kva.de":                       "xn--bcher-kva.de",
		strings.Repeat("a", 63) + ".example.com": hangar.Hostname(strings.Repeat("a", 63) + ".example.com"),
	} {
		if got, err := hangar.ParseHostname(text); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "com", "com.", "*", "*.", "*.com", "**.example.com", "www.*.example.com", "*.*.example.com", "a*.example.com", "*example.com",
		"127.0.0.1", "1.2.3", "::1", "[::1]", "2001:db8::1", "fe80::1%eth0", "example.com:443", "https://example.com", "example.com/x", "a b.com",
		"a..com", ".example.com", "-a.com", "a-.com", "a_b.com", "example.com..", "a\x00.com", "a\n.com", "xn--\xff.com", "xn--a.com", "example.123",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", strings.Repeat("a", 4096),
	} {
		if got, err := hangar.ParseHostname(text); hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), "invalid hostname: ") {
			t.Errorf("%.40q is %q, %v; want an error", text, got, err)
		}
	}
}

func FuzzParseHostname(f *testing.F) {
	for _, text := range []string{"www.example.com", "*.example.com", "bücher.example", "1.2.3.4", "a..b", "xn--bcher-kva.de."} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := hangar.ParseHostname(text)
		if err != nil {
			return
		}
		if again, err := hangar.ParseHostname(string(name)); err != nil || again != name {
			t.Errorf("%q is %q, which is %q, %v", text, name, again, err)
		}
		if strings.ContainsFunc(strings.TrimPrefix(string(name), "*."), func(c rune) bool {
			return c != '.' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
		}) || len(name) > 253 || !strings.Contains(string(name), ".") {
			t.Errorf("%q is %q", text, name)
		}
	})
}

func TestHostname(t *testing.T) {
	for name, want := range map[hangar.Hostname][2]hangar.Hostname{
		"www.example.com": {"example.com", "*.example.com"},
		"*.example.com":   {"example.com", "*.example.com"},
		"com":             {"", "*."},
	} {
		if got := [2]hangar.Hostname{name.Parent(), name.Covering()}; got != want {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
	if !hangar.Hostname("a.b.c").Below("c") || hangar.Hostname("c").Below("c") || hangar.Hostname("abc").Below("c") {
		t.Error("Below is wrong")
	}
}
