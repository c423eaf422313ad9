package wire

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// placeholders stand in texts for what differs from run to run. An id is <kind-N>: the Nth of
// its kind, in the order of first appearance, wherever it appears. A time is <now> if it is not
// after the answer that shows it first, and <now+5m0s> if it is that long after the request; so
// it is wherever it appears again.
type placeholders struct {
	texts  map[string]string        // what stands for a value
	values map[string]string        // the other way round
	began  time.Time                // less what pages are of before
	later  map[string]time.Duration // how long after the request a time was that an answer showed
}

func newPlaceholders() *placeholders {
	return &placeholders{texts: map[string]string{}, values: map[string]string{}, began: time.Now().Add(-hangar.ListingMargin - 2*time.Second), later: map[string]time.Duration{}}
}

func (p *placeholders) has(text string) bool { return p.values[text] != "" }

func (p *placeholders) add(text, value string) { p.texts[value], p.values[text] = text, value }

var placeholder = regexp.MustCompile(`<[a-z]+(?:-[0-9]+)?>`)

// fill replaces placeholders by what they stand for.
func (p *placeholders) fill(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		if value, ok := p.values[name]; ok {
			return value
		}
		return name
	})
}

// kind is what a value is that differs, and how it looks.
type kind struct {
	name    string
	pattern *regexp.Regexp // its group is the value
}

// word is a value that looks like no other, wherever it is.
func word(name, value string) kind { return kind{name, regexp.MustCompile(`\b(` + value + `)`)} }

// member is the value of a property.
func member(name, key, value string) kind {
	return kind{name, regexp.MustCompile(`"(?:` + key + `)": "?(` + value + `)\b`)}
}

const ulid = `0[0-9A-HJKMNP-TV-Z]{25}`

// composed are looked for first: they hold other values that have a placeholder.
var composed = []kind{ //nolint:gochecknoglobals // a table
	word("code", `hg[ip]_[\w-]+`),
	word("invitation", `[0-9a-z]{16}-[0-9a-f]{16}`),
	word("webhook", `wh_[0-9a-z]{16}`),
	word("secret", `hgw_\w+`),
	member("took", "took", `[0-9.]+[mµn]?s`),
}

// kinds are looked for in turn: what one has found is not in the text any more.
var kinds = []kind{ //nolint:gochecknoglobals // a table
	word("jwt", `eyJ[\w-]+\.[\w-]+\.[\w-]+`),
	word("token", `hgr_[\w-]+`),
	word("secret", `hgp[crw]_[0-9a-f]{64}`),
	member("client", "client_id", `[0-9a-z]{16}`),
	member("cursor", "next_token|next_cursor", `ey[IJ][\w-]+`),
	word("certificate", `ssh-ed25519-cert-v01@openssh\.com [\w+/=]+`),
	word("digest", `sha256:[0-9a-f]{64}`),
	member("digest", "digest", `[0-9a-f]{16}`),
	member("modulus", "n", `[\w-]{342}`),
	member("key", "kid", `[a-z2-7]{26}`),
	member("key", "key_id", `\d+`),
	word("volume", `vol_[0-9a-z]+`),
	word("snapshot", `vs_[0-9a-zA-Z]+`),
	{"org", regexp.MustCompile(`"id": "([0-9a-z]{16})",\s+"slug"`)},
	member("org", "org_id", `[0-9a-z]{16}`),
	{"user", regexp.MustCompile(`"id": "([0-9a-z]{16})",\s+"name": "[^"]*",\s+"email"`)},
	word("customer", `[0-9a-z]{16}@customer`),
	{"session", regexp.MustCompile(`"(?:session": "|id": ")([0-9a-z]{16})",?\s+(?:"ttl"|\})`)},
	member("app", "id", `[0-9a-z]{16}`),
	member("credential", "id|token_id", `[a-z2-7]{12}`),
	member("version", "instance_id|version", ulid),
	member("event", "id|event_id", ulid),
	word("machine", `[0-9a-f]{14}\b`),
	member("nonce", "nonce", `[0-9a-f]{12}`),
	member("host", "host|host_id", `[0-9a-f]{8}`),
	member("zone", "zone", `[0-9a-f]{4}`),
	member("name", "name", `[a-z]+-[a-z]+-\d{4}|interactive-[a-z0-9]{8}`),
	member("ip", "private_ip|ip|ip_address", `fd[0-9a-f:]+|127\.[1-9][\d.]+`),
	{"port", regexp.MustCompile(`\.localhost:(\d+)`)},
}

// amounts are numbers that differ, and of which none is another one.
var amounts = []kind{ //nolint:gochecknoglobals // a table
	member("milliseconds", "frozen_ms|rtime", `\d+`),
	member("bytes", "size", `[1-9]\d*`), // of a snapshot: its pieces are compressed and encrypted
	member("room", "capacity", `\d+`),   // the memory of the server decides
	{"duration", regexp.MustCompile(`(?:started in |\()(\d[\d.]*m?s)\b`)},
	word("time", `1\d{18}\b`),        // nanoseconds since 1970
	member("build", "id", `1\d{12}`), // of a build: milliseconds since 1970
}

// number replaces the variable parts of the answer to a request, except for what the request says
// itself.
func (p *placeholders) number(request, answer string, sent time.Time) string {
	answer = p.spot(request, answer, composed)
	answer = p.spot(request, p.known(answer), kinds)
	for _, k := range amounts {
		answer = k.pattern.ReplaceAllStringFunc(answer, func(found string) string {
			return strings.TrimSuffix(found, k.pattern.FindStringSubmatch(found)[1]) + "<" + k.name + ">"
		})
	}
	return p.times(answer, sent)
}

// spot replaces values of kinds, except for what the request says itself.
func (p *placeholders) spot(request, answer string, kinds []kind) string {
	for _, k := range kinds {
		answer = k.pattern.ReplaceAllStringFunc(answer, func(found string) string {
			value := k.pattern.FindStringSubmatch(found)[1]
			if p.texts[value] == "" {
				if strings.Contains(request, value) {
					return found
				}
				p.add(p.next(k.name), value)
			}
			return strings.Replace(found, value, p.texts[value], 1)
		})
	}
	return answer
}

// known replaces what has a placeholder, wherever it is, unless it is so short that it may also
// be a part of something else.
func (p *placeholders) known(text string) string {
	const short = 8
	for value, name := range p.texts {
		if len(value) >= short {
			text = strings.ReplaceAll(text, value, name)
		}
	}
	return text
}

// order is a text by which others sort as they would with placeholders. It is for what has none
// yet, too.
func (p *placeholders) order(text string) string {
	text = p.known(text)
	for _, k := range kinds {
		text = k.pattern.ReplaceAllStringFunc(text, func(found string) string {
			return strings.Replace(found, k.pattern.FindStringSubmatch(found)[1], k.name, 1)
		})
	}
	return text
}

// next is the placeholder of the next value of a kind.
func (p *placeholders) next(kind string) string {
	for n := 1; ; n++ {
		if text := fmt.Sprintf("<%s-%d>", kind, n); !p.has(text) {
			return text
		}
	}
}

var (
	clockTime = regexp.MustCompile(`\b(20\d\d-\d\d-\d\dT[\d:.]+)(Z|\+00:00)`)
	unixTime  = regexp.MustCompile(`("(?:created_at|expires_at|timestamp)": )(\d+)`)
)

// times replaces times that are not before the platform.
func (p *placeholders) times(answer string, sent time.Time) string {
	answer = clockTime.ReplaceAllStringFunc(answer, func(text string) string {
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return text
		}
		unit := ""
		if strings.HasSuffix(text, "+00:00") {
			unit = " with offset"
		}
		return p.time(text, t, sent, unit)
	})
	return unixTime.ReplaceAllStringFunc(answer, func(member string) string {
		parts := unixTime.FindStringSubmatch(member)
		n, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return member
		}
		t, unit := time.UnixMilli(n), " in milliseconds"
		if n < 1e11 {
			t, unit = time.Unix(n, 0), " in seconds"
		}
		return parts[1] + p.time(parts[2], t, sent, unit)
	})
}

func (p *placeholders) time(text string, t, sent time.Time, unit string) string {
	if t.Before(p.began) {
		return text
	}
	later, known := p.later[text]
	if !known {
		if later = t.Sub(sent).Round(timeStep); !t.After(time.Now()) {
			later = 0
		}
		p.later[text] = later
	}
	if later == 0 {
		return "<now" + unit + ">"
	}
	return fmt.Sprintf("<now+%s%s>", later, unit)
}

// timeStep is as exact as times in the future are.
const timeStep = 10 * time.Second
