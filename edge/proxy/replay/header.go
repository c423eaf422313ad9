package replay

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// spelled are the two names of a header, canonical.
type spelled [2]string

func spell(pair hangar.NamePair) spelled {
	return spelled{textproto.CanonicalMIMEHeaderKey(pair.Neutral), textproto.CanonicalMIMEHeaderKey(pair.Original)}
}

// Headers that are looked up in every request or answer.
var (
	keyReplay       = spell(hangar.HeaderReplay)
	keyCache        = spell(hangar.HeaderReplayCache)
	keyCacheTTL     = spell(hangar.HeaderReplayCacheTTL)
	keyCacheBypass  = spell(hangar.HeaderReplayCacheAllowBypass)
	keyCacheControl = spell(hangar.HeaderReplayCacheControl)
)

// header returns the value of a header under either of its names, and whether it is there.
func header(h http.Header, names spelled) (string, bool) {
	for _, name := range names {
		if v := h[name]; len(v) > 0 {
			return v[0], true
		}
	}
	return "", false
}

// Parse reads the instruction in the headers of an answer; false: there is none. Its fields
// are separated by semicolons, or by commas outside of quotes.
func Parse(h http.Header) (*Instruction, bool, error) {
	text, ok := header(h, keyReplay)
	if !ok {
		return nil, false, nil
	}
	if len(text) > maxHeader {
		return nil, true, refused("it is longer than %d bytes", maxHeader)
	}
	in := &Instruction{}
	rest, seen := text, map[string]bool{}
	if strings.Trim(text, ";, \t") == "" {
		return nil, true, refused("it is empty")
	}
	for rest != "" {
		name, value, after, err := field(rest)
		if err != nil {
			return nil, true, err
		}
		rest = after
		if name == "" {
			continue // two separators in a row
		}
		if seen[name] {
			return nil, true, refused("%s is given twice", name)
		}
		seen[name] = true
		if err := in.set(name, value); err != nil {
			return nil, true, err
		}
	}
	if err := in.cacheHeaders(h); err != nil {
		return nil, true, err
	}
	return in, true, in.validate()
}

// field takes one field off the front of a header. Name and value come without surrounding blanks,
// and the value without its quotes.
func field(text string) (name, value, rest string, err error) {
	end := strings.IndexAny(text, "=;,")
	if end < 0 || text[end] != '=' {
		if end < 0 {
			end = len(text)
		}
		name = strings.TrimSpace(text[:end])
		if name != "" {
			return "", "", "", refused("the field %q has no value", name)
		}
		return "", "", strings.TrimLeft(text[end:], ";, \t"), nil
	}
	name = strings.ToLower(strings.TrimSpace(text[:end]))
	rest = strings.TrimLeft(text[end+1:], " \t")
	if !strings.HasPrefix(rest, `"`) {
		end := strings.IndexAny(rest, ";,")
		if end < 0 {
			end = len(rest)
		}
		return name, strings.TrimSpace(rest[:end]), strings.TrimLeft(rest[end:], ";, \t"), nil
	}
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '\\' && i+1 < len(rest):
			i++
			b.WriteByte(rest[i])
		case c == '"':
			after := strings.TrimLeft(rest[i+1:], " \t")
			if after != "" && after[0] != ';' && after[0] != ',' {
				return "", "", "", refused("the value of %s continues after its quotes", name)
			}
			return name, b.String(), strings.TrimLeft(after, ";, \t"), nil
		default:
			b.WriteByte(c)
		}
	}
	return "", "", "", refused("the quotes around the value of %s do not end", name)
}

// set applies one field of the header form.
func (in *Instruction) set(name, value string) (err error) {
	switch name {
	case "region":
		in.Regions, in.AnyRegion, err = regions(value)
	case "instance":
		in.Instance = hangar.MachineID(value)
	case "prefer_instance":
		in.PreferInstance = hangar.MachineID(value)
	case "app":
		in.App = hangar.AppName(value)
	case "state":
		in.State = value
	case "elsewhere":
		in.Elsewhere, err = truth(name, value)
	case "timeout":
		in.Timeout, err = timeout(value)
	case "fallback":
		in.Fallback = Fallback(value)
	default:
		return refused("there is no field %q", name)
	}
	return err
}

func truth(name, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true", "yes", "1":
		return true, nil
	case "false", "no", "0":
		return false, nil
	}
	return false, refused("%s is %q, not \"true\" or \"false\"", name, value)
}

// timeout parses a duration with its unit, such as 10s or 800ms.
func timeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		return 0, refused("timeout is %q, not a duration such as \"10s\" or \"800ms\"", value)
	}
	if d <= 0 || d > MaxTimeout {
		return 0, refused("timeout is %s, not above 0 and at most %s", d, MaxTimeout)
	}
	return d, nil
}

// cacheHeaders parses the headers beside the one of the instruction.
func (in *Instruction) cacheHeaders(h http.Header) error {
	pattern, ok := header(h, keyCache)
	if !ok {
		return nil
	}
	if pattern = strings.TrimSpace(pattern); pattern == "invalidate" {
		in.Cache = &CacheRule{Invalidate: true}
		return nil
	}
	rule, err := cacheRule(pattern)
	if err != nil {
		return err
	}
	seconds, ok := header(h, keyCacheTTL)
	if !ok {
		return refused("%s comes without %s", hangar.HeaderReplayCache.Neutral, hangar.HeaderReplayCacheTTL.Neutral)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(seconds), 10, 64)
	if err != nil {
		return refused("%s is %q, not a number of seconds", hangar.HeaderReplayCacheTTL.Neutral, seconds)
	}
	if rule.TTL, err = ttl(n); err != nil {
		return err
	}
	if bypass, ok := header(h, keyCacheBypass); ok {
		if rule.AllowBypass, err = truth(hangar.HeaderReplayCacheAllowBypass.Neutral, strings.TrimSpace(bypass)); err != nil {
			return err
		}
	}
	in.Cache = rule
	return nil
}

func ttl(seconds int64) (time.Duration, error) {
	if seconds < int64(MinTTL/time.Second) {
		return 0, refused("the cache is to live for %d s, less than %s", seconds, MinTTL)
	}
	return time.Duration(min(seconds, int64(MaxTTL/time.Second))) * time.Second, nil
}

// cacheRule parses the pattern [host]/path/*.
func cacheRule(pattern string) (*CacheRule, error) {
	slash := strings.IndexByte(pattern, '/')
	prefix, ok := strings.CutSuffix(pattern, "*")
	if slash < 0 || !ok || !strings.HasSuffix(prefix, "/") {
		return nil, refused("the cache's pattern %q is not [host]/path/*", pattern)
	}
	rule := &CacheRule{Prefix: prefix[slash:]}
	if host := pattern[:slash]; host != "" {
		rule.Host = string(hangar.Canonical(host))
		if rule.Host == "" || strings.Contains(host, ":") {
			return nil, refused("the cache's pattern %q begins with no host name", pattern)
		}
	}
	if !plainPath(rule.Prefix) {
		return nil, refused("the cache's path %q is not a plain path that begins with a slash", rule.Prefix)
	}
	return rule, nil
}

// plainPath reports whether a path consists of printable ASCII, without a query, a fragment, a
// wildcard or a segment that leads upwards.
func plainPath(path string) bool {
	if !strings.HasPrefix(path, "/") || len(path) > maxPath {
		return false
	}
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("*?#\\\"<>", c) >= 0 {
			return false
		}
	}
	return !isUnclean(path)
}

// isUnclean reports whether a path, as sent, has segments that a normalizer would remove, so that
// it leads elsewhere than it appears to.
func isUnclean(path string) bool {
	for step := range strings.SplitSeq(path, "/") {
		if len(step) <= 6 && strings.HasPrefix(step, ".") || strings.HasPrefix(step, "%") {
			switch strings.ReplaceAll(strings.ToLower(step), "%2e", ".") {
			case ".", "..":
				return true
			}
		}
	}
	return false
}
