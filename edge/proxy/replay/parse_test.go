package replay

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func answer(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestParseHeader(t *testing.T) {
	for _, test := range []struct {
		header string
		want   Instruction
	}{
		{"region=sjc", Instruction{Regions: []hangar.Region{"sjc"}}},
		{"region=any", Instruction{AnyRegion: true}},
		{`region="sjc,any";app=x`, Instruction{Regions: []hangar.Region{"sjc"}, AnyRegion: true, App: "x"}},
		{`region="loc, sa,gru"`, Instruction{Regions: []hangar.Region{"loc", "sa", "gru"}}},
		{`app=x,instance=148ed726c12358`, Instruction{App: "x", Instance: "148ed726c12358"}},
		{` App = x ; ; instance = 148ed726c12358 ;`, Instruction{App: "x", Instance: "148ed726c12358"}},
		{`prefer_instance=148ed726c12358;state=a b=c`, Instruction{PreferInstance: "148ed726c12358", State: "a b=c"}},
		{`state="a;b,c\"d\\";elsewhere=true`, Instruction{State: `a;b,c"d\`, Elsewhere: true}},
		{`state=`, Instruction{}},
		{`timeout=800ms;fallback=prefer_self;app=x`, Instruction{Timeout: 800 * time.Millisecond, Fallback: FallbackPrefer, App: "x"}},
		{`timeout="10s";fallback=force_self`, Instruction{Timeout: 10 * time.Second, Fallback: FallbackForce}},
	} {
		for _, name := range []string{hangar.HeaderReplay.Neutral, hangar.HeaderReplay.Original} {
			in, ok, err := Parse(answer(name, test.header))
			if err != nil || !ok || !reflect.DeepEqual(*in, test.want) {
				t.Errorf("%s: %s: %+v, %v, %v, want %+v", name, test.header, in, ok, err, test.want)
			}
		}
	}
	if in, ok, err := Parse(answer("Content-Type", "text/plain")); in != nil || ok || err != nil {
		t.Errorf("no header: %+v, %v, %v", in, ok, err)
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	for header, reason := range map[string]string{
		"":                                   "it is empty",
		" ;, ":                               "it is empty",
		"region":                             `the field "region" has no value`,
		"region=;app=x":                      "region is empty",
		`region="sjc`:                        "quotes around the value of region do not end",
		`region="sjc"x`:                      "continues after its quotes",
		`region=san-jose`:                    `"san-jose" is not a region`,
		`region=sjc,iad`:                     `the field "iad" has no value`,
		"app=x;app=y":                        "app is given twice",
		"app=X":                              `app "X" is not the name`,
		"app=a/b":                            `app "a/b" is not the name`,
		"instance=../x":                      `instance "../x" is not the id`,
		"instance=a1;prefer_instance=b1":     "given both",
		"elsewhere=maybe":                    `elsewhere is "maybe"`,
		"timeout=10":                         "not a duration",
		"timeout=-1s":                        "not above 0",
		"timeout=1h":                         "at most 10m0s",
		"fallback=never":                     `fallback is "never"`,
		"place=x":                            `there is no field "place"`,
		"state=" + strings.Repeat("x", 5000): "state is longer",
		"state=" + strings.Repeat("x", 9000): "longer than 8192 bytes",
		"state=a\x01b":                       "control characters",
	} {
		_, ok, err := Parse(answer("fly-replay", header))
		var refusal *hangar.EdgeError
		if !ok || !errors.As(err, &refusal) || refusal.Code != hangar.EdgeReplayInvalid || !strings.Contains(refusal.Message, reason) {
			t.Errorf("%.40q: %v, %v, want %q", header, ok, err, reason)
		}
	}
}

func TestParseCacheHeaders(t *testing.T) {
	for _, test := range []struct {
		pattern, ttl, bypass string
		want                 *CacheRule
		reason               string
	}{
		{"/some/path/*", "60", "", &CacheRule{Prefix: "/some/path/", TTL: time.Minute}, ""},
		{"/*", "10", "yes", &CacheRule{Prefix: "/", TTL: 10 * time.Second, AllowBypass: true}, ""},
		{"Example.com/*", "10", "no", &CacheRule{Host: "example.com", Prefix: "/", TTL: 10 * time.Second}, ""},
		{"/*", "999999999999", "", &CacheRule{Prefix: "/", TTL: MaxTTL}, ""},
		{"invalidate", "", "", &CacheRule{Invalidate: true}, ""},
		{"/some/path", "60", "", nil, "not [host]/path/*"},
		{"/some/path*", "60", "", nil, "not [host]/path/*"},
		{"example.com:80/*", "60", "", nil, "begins with no host name"},
		{"[::1]/*", "60", "", nil, "begins with no host name"},
		{"/a/../*", "60", "", nil, "not a plain path"},
		{"/a/%2e%2E/*", "60", "", nil, "not a plain path"},
		{"/a b/*", "60", "", nil, "not a plain path"},
		{"/a/*/*", "60", "", nil, "not a plain path"},
		{"/*", "", "", nil, "comes without platform-replay-cache-ttl-secs"},
		{"/*", "9", "", nil, "less than 10s"},
		{"/*", "1m", "", nil, "not a number of seconds"},
		{"/*", "60", "perhaps", nil, "allow-bypass"},
	} {
		h := answer("fly-replay", "app=x", "fly-replay-cache", test.pattern)
		if test.ttl != "" {
			h.Set("platform-replay-cache-ttl-secs", test.ttl)
		}
		if test.bypass != "" {
			h.Set("fly-replay-cache-allow-bypass", test.bypass)
		}
		in, _, err := Parse(h)
		switch {
		case test.reason != "":
			if err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("%+v: %v", test, err)
			}
		case err != nil || !reflect.DeepEqual(in.Cache, test.want):
			t.Errorf("%+v: %+v, %v", test, in, err)
		}
	}
}

func TestParseJSON(t *testing.T) {
	in, err := ParseJSON([]byte(`{"app":"target","region":["iad","any"],"state":"s","elsewhere":"true","timeout":"5s","fallback":"force_self",
		"transform":{"path":"/new/path?param=value","delete_headers":["x-unwanted","cookie","fly-force-instance-id"],
			"set_headers":[{"name":"x-custom","value":"1"},{"name":"X-Custom","value":"2"},{"name":"authorization","value":"Bearer t"}]},
		"cache":{"prefix":"/some/*","ttl":60},"allow_bypass":true}`))
	want := &Instruction{
		App: "target", Regions: []hangar.Region{"iad"}, AnyRegion: true, State: "s", Elsewhere: true, Timeout: 5 * time.Second, Fallback: FallbackForce,
		Transform: &Transform{
			Path: "/new/path?param=value", DeleteHeaders: []string{"X-Unwanted", "Cookie", "Fly-Force-Instance-Id"},
			SetHeaders: []hangar.Header{{Name: "X-Custom", Values: []string{"1", "2"}}, {Name: "Authorization", Values: []string{"Bearer t"}}},
		},
		Cache: &CacheRule{Prefix: "/some/", TTL: time.Minute, AllowBypass: true},
	}
	if err != nil || !reflect.DeepEqual(in, want) {
		t.Errorf("%+v, %v, want %+v", in, err, want)
	}
	if in, err := ParseJSON([]byte(`{"app":"origin-app","cache":{"invalidate":true}}`)); err != nil || !in.Cache.Invalidate {
		t.Errorf("%+v, %v", in, err)
	}
	if in, err := ParseJSON([]byte(`{"region":"iad,us"}`)); err != nil || in.AnyRegion || !slices.Equal(in.Regions, []hangar.Region{"iad", "us"}) {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestParseJSONRefuses(t *testing.T) {
	for body, reason := range map[string]string{
		``:                                  "no complete JSON object",
		`{"app":`:                           "no complete JSON object",
		`null`:                              "no JSON object",
		`[]`:                                "no JSON object",
		`{"app":1}`:                         "app is a JSON number",
		`{"app":"x"} {}`:                    "something follows",
		`{"apps":"x"}`:                      `unknown field "apps"`,
		`{"region":7}`:                      "region is neither",
		`{"elsewhere":7}`:                   "true or false",
		`{"region":"a-b"}`:                  "not a region",
		`{"timeout":"x"}`:                   "timeout",
		`{"state":"a\nb"}`:                  "control characters",
		`{"cache":{"prefix":"/x/*"}}`:       "less than 10s",
		`{"cache":{"ttl":60}}`:              "not [host]/path/*",
		`{"transform":{"path":"new"}}`:      "transform.path",
		`{"transform":{"path":"//evil/x"}}`: "transform.path",
		`{"transform":{"path":"/x y"}}`:     "transform.path",
		`{"transform":{"path":"/x\r\nHost: evil"}}`:                                      "transform.path",
		`{"transform":{"path":"/%zz"}}`:                                                  "transform.path",
		`{"transform":{"path":"http://evil/"}}`:                                          "transform.path",
		`{"transform":{"path":"/a#b"}}`:                                                  "transform.path",
		`{"transform":{"delete_headers":["host"]}}`:                                      "the edge's own",
		`{"transform":{"delete_headers":["fly-client-ip"]}}`:                             "the edge's own",
		`{"transform":{"delete_headers":["a b"]}}`:                                       "no header",
		`{"transform":{"set_headers":[{"name":"Content-Length","value":"0"}]}}`:          "the edge's own",
		`{"transform":{"set_headers":[{"name":"transfer-encoding","value":"chunked"}]}}`: "the edge's own",
		`{"transform":{"set_headers":[{"name":"X-Forwarded-For","value":"1.1.1.1"}]}}`:   "the edge's own",
		`{"transform":{"set_headers":[{"name":"platform-force-region","value":"x"}]}}`:   "the edge's own",
		`{"transform":{"set_headers":[{"name":"x","value":"a\r\nb: c"}]}}`:               "no header can have",
		`{"transform":{"set_headers":[{"name":"x:","value":"a"}]}}`:                      "no header",
		`{"transform":{"set_headers":[{"name":"","value":"a"}]}}`:                        "no header",
		`{"transform":{"delete_headers":[` + strings.Repeat(`"x",`, 64) + `"x"]}}`:       "more than 64",
		`{"app":"x"` + strings.Repeat(" ", MaxJSON) + `}`:                                "longer than 65536",
	} {
		_, err := ParseJSON([]byte(body))
		var refusal *hangar.EdgeError
		if !errors.As(err, &refusal) || refusal.Code != hangar.EdgeReplayInvalid || !strings.Contains(refusal.Message, reason) {
			t.Errorf("%.60s: %v, want %q", body, err, reason)
		}
	}
}

func TestIsJSON(t *testing.T) {
	for kind, want := range map[string]bool{
		"application/vnd.fly.replay+json": true, "application/vnd.platform.replay+json": true,
		"Application/Vnd.Fly.Replay+JSON; charset=utf-8": true, "application/vnd.fly.replay+json; x": true,
		"application/json": false, "": false, "application/vnd.fly.replay+jsonx": false,
	} {
		if got := IsJSON(answer("Content-Type", kind)); got != want {
			t.Errorf("%q: %v", kind, got)
		}
	}
	if !Asked(answer("fly-replay", "")) || Asked(answer("X", "y")) {
		t.Error("an instruction is not seen, or where there is none")
	}
}

func TestRegions(t *testing.T) {
	for list, want := range map[string]string{
		"": "[] false", " , ": "[] false", "any": "[] true", "ANY,sjc": "[sjc] true", "iad, ord ,US,na,iad": "[iad ord us na] false",
		"usa,sa,eu,apac,xyz": "[usa sa eu apac xyz] false",
	} {
		regions, anywhere, err := Regions(list)
		if got := fmt.Sprint(regions, anywhere); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"sjc;app=x", "a", "region-one", "sj c", "ä", strings.Repeat("abc,", 1) + strings.Repeat("d", 9)} {
		if _, _, err := Regions(list); err == nil {
			t.Errorf("%q is accepted", list)
		}
	}
	var many []string
	for i := range maxRegions + 1 {
		many = append(many, fmt.Sprintf("r%d", i))
	}
	if _, _, err := Regions(strings.Join(many, ",")); err == nil {
		t.Error("any number is accepted")
	}
}

func TestHeadersForTargets(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{Source{Instance: "a1", Region: "loc", Time: 1700000000000001}.String(), "instance=a1;region=loc;t=1700000000000001"},
		{Source{Instance: "a1", Region: "loc", Time: 1, State: "x y=z"}.String(), "instance=a1;region=loc;t=1;state=x y=z"},
		{Source{Instance: "a1", Region: "loc", Time: 1, State: `x;instance="b`}.String(), `instance=a1;region=loc;t=1;state="x;instance=\"b"`},
		{
			Failed{Instance: "a1", App: "web", Regions: []hangar.Region{"ams", "sjc"}, Source: "b1", Reason: FailTimeout, Elapsed: 800}.String(),
			`instance=a1;app=web;region="ams,sjc";replay_source=b1;reason=timeout;elapsed_ms=800`,
		},
		{Failed{Regions: []hangar.Region{"ams"}, Source: "b1", Reason: FailNoCandidate}.String(), `region=ams;replay_source=b1;reason=no_candidate;elapsed_ms=0`},
	} {
		if test.got != test.want {
			t.Errorf("%s, want %s", test.got, test.want)
		}
	}
}

func TestApply(t *testing.T) {
	original, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web.example/old?x=y", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	original.Header = answer("Cookie", "a=b", "X-Keep", "1", "X-Set", "old")
	r := original.Clone(t.Context())
	change := &Transform{Path: "/new%20path/%2f?", DeleteHeaders: []string{"Cookie"}, SetHeaders: []hangar.Header{{Name: "X-Set", Values: []string{"new"}}}}
	if err := change.Apply(r); err != nil {
		t.Fatal(err)
	}
	if r.URL.RequestURI() != "/new%20path/%2f?" || r.RequestURI != "/new%20path/%2f?" || r.Host != "web.example" {
		t.Errorf("the target is %q of %q", r.URL.RequestURI(), r.Host)
	}
	if want := answer("X-Keep", "1", "X-Set", "new"); !reflect.DeepEqual(r.Header, want) {
		t.Errorf("the headers are %v", r.Header)
	}
	if original.Header.Get("Cookie") != "a=b" || original.URL.Path != "/old" {
		t.Error("the original request was changed")
	}
	if err := (&Transform{}).Apply(r); err != nil || r.URL.RequestURI() != "/new%20path/%2f?" {
		t.Errorf("an empty transformation leads to %q, %v", r.URL.RequestURI(), err)
	}
}
