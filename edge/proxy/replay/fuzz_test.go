package replay

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/hangar-platform/hangar"
)

// sound checks what all callers rely on in an instruction, or in its refusal.
func sound(t *testing.T, in *Instruction, err error) {
	t.Helper()
	if err != nil {
		var refusal *hangar.EdgeError
		if !errors.As(err, &refusal) || refusal.Code != hangar.EdgeReplayInvalid || refusal.Message == "" {
			t.Fatalf("refused with %#v", err)
		}
		return
	}
	if len(in.Regions) > maxRegions || len(in.State) > MaxState || in.Timeout < 0 || in.Timeout > MaxTimeout {
		t.Fatalf("out of bounds: %+v", in)
	}
	value := Source{Instance: "a1", Region: "loc", Time: 1, State: in.State}.String()
	failed := Failed{Instance: in.Instance, App: in.App, Regions: in.Regions, Source: "a1", Reason: FailRetries}.String()
	if !httpguts.ValidHeaderFieldValue(value) || !httpguts.ValidHeaderFieldValue(failed) {
		t.Fatalf("no headers: %q, %q", value, failed)
	}
	if in.State != "" {
		// The target reads exactly what was sent.
		fields, state := 0, ""
		for rest := value; rest != ""; fields++ {
			name, v, after, err := field(rest)
			if err != nil {
				t.Fatalf("%q: %v", value, err)
			}
			if rest = after; name == "state" {
				state = v
			}
		}
		if fields != 4 || state != in.State {
			t.Fatalf("%q holds %d fields and the state %q, not %q", value, fields, state, in.State)
		}
	}
	if c := in.Cache; c != nil && !c.Invalidate && (c.TTL < MinTTL || c.TTL > MaxTTL || !strings.HasPrefix(c.Prefix, "/") || !strings.HasSuffix(c.Prefix, "/") || isUnclean(c.Prefix)) {
		t.Fatalf("a cache for %+v", c)
	}
	if in.Transform == nil {
		return
	}
	r := &http.Request{Method: http.MethodGet, Host: "web.example", URL: &url.URL{Path: "/"}, Header: http.Header{"Host": {"x"}}}
	if err := in.Transform.Apply(r); err != nil {
		t.Fatal(err)
	}
	line := r.URL.RequestURI()
	if !strings.HasPrefix(line, "/") || strings.HasPrefix(line, "//") || strings.ContainsAny(line, " \t\r\n#") || r.URL.Host != "" {
		t.Fatalf("a request for %q", line)
	}
	for name, values := range r.Header {
		if name != "Host" && edgeOwns(name) {
			t.Fatalf("%s was set", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
				t.Fatalf("a header %q: %q", name, v)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range [][4]string{
		{"region=sjc", "", "", ""},
		{`region="sjc,any";app=x`, "/a/*", "60", "yes"},
		{`state="a;\"b";elsewhere=true`, "invalidate", "", ""},
		{"instance=a1,timeout=10s;fallback=prefer_self", "example.com/*", "10", "no"},
		{`app="x`, "*", "-1", "?"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, text, pattern, ttl, bypass string) {
		h := http.Header{"Fly-Replay": {text}}
		if pattern != "" {
			h["Fly-Replay-Cache"] = []string{pattern}
			h["Fly-Replay-Cache-Ttl-Secs"] = []string{ttl}
			h["Platform-Replay-Cache-Allow-Bypass"] = []string{bypass}
		}
		in, ok, err := Parse(h)
		if !ok {
			t.Fatal("there is a header, and no instruction")
		}
		sound(t, in, err)
	})
}

func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{
		`{"app":"x"}`, `{"region":["sjc","any"],"elsewhere":true}`, `{"transform":{"path":"/a?b","delete_headers":["cookie"],"set_headers":[{"name":"a","value":"b"}]}}`,
		`{"cache":{"prefix":"h.example/a/*","ttl":10,"allow_bypass":true}}`, `{"cache":{"invalidate":true}}`, `{"state":"\u0000"}`, `{"timeout":"1s","fallback":"force_self"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := ParseJSON(body)
		sound(t, in, err)
	})
}
