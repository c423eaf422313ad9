package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/racetest"
	"github.com/hangar-platform/hangar/test/platform"
)

// described is an operation of the document, as the attacks need it.
type described struct {
	method, path string
	parameters   []string // of the query
	body         []byte   // an example; nil: none is taken
}

func (d described) String() string { return d.method + " " + d.path }

// operations are those of the document, sorted.
func (t target) operations(tb testing.TB) []described {
	tb.Helper()
	var document struct {
		Paths map[string]map[string]struct {
			Parameters  []struct{ Name, In string }
			RequestBody struct {
				Content map[string]struct{ Example json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal(t.send(tb, http.MethodGet, "/v1/openapi.json", nil).body, &document); err != nil {
		tb.Fatal(err)
	}
	var list []described
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(document.Paths[path])) {
			op := document.Paths[path][method]
			d := described{method: strings.ToUpper(method), path: path, body: op.RequestBody.Content["application/json"].Example}
			for _, p := range op.Parameters {
				if p.In == "query" {
					d.parameters = append(d.parameters, p.Name)
				}
			}
			list = append(list, d)
		}
	}
	return list
}

// target is a platform with an App of the test's own and a Machine, whose answers are checked.
type target struct {
	platform  *platform.Platform
	client    *client.Client
	transport http.RoundTripper
	app       hangar.AppName
	machine   hangar.MachineID
	// leaveAfter is how long callers wait for an answer; 0: as long as it takes.
	leaveAfter time.Duration
}

func newTarget(tb testing.TB) target {
	tb.Helper()
	p := platform.Start(tb, platform.Options{Config: func(c *daemon.Config) { c.CPUOvercommit, c.MemoryOvercommit = 100, 100 }})
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	tb.Cleanup(transport.CloseIdleConnections)
	return target{platform: p, client: p.Client(), transport: p.Checked(transport)}.with(tb, "web")
}

// with is a target on the same platform, with another App.
func (t target) with(tb testing.TB, app hangar.AppName) target {
	tb.Helper()
	t.app = app
	if _, err := t.client.CreateApp(tb.Context(), hangar.AppCreate{Name: app}); err != nil {
		tb.Fatal(err)
	}
	m, err := t.client.CreateMachine(tb.Context(), app, hangar.MachineCreate{
		Config: hangar.MachineConfig{Image: "nginx", Metadata: map[string]string{"role": "web"}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	t.machine = m.ID
	tb.Cleanup(func() { // its Machines take room from those of other tests; a hostile request may have destroyed it
		_ = t.client.DestroyApp(context.WithoutCancel(tb.Context()), app, true)
	})
	return t
}

// settle waits until the Machine can be updated.
func (t target) settle(tb testing.TB) {
	tb.Helper()
	ref := hangar.MachineRef{App: t.app, ID: t.machine}
	if _, err := t.client.WaitMachine(tb.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}}); err != nil {
		tb.Fatal(err)
	}
}

// answer is what a request was answered; the status is 0 where its caller had left before.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (t target) send(tb testing.TB, method, path string, body []byte) answer {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	if t.leaveAfter > 0 {
		defer time.AfterFunc(t.leaveAfter, cancel).Stop()
	}
	r, err := http.NewRequestWithContext(ctx, method, t.platform.URL(), bytes.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	aim(tb, r, path)
	r.Header.Set("Authorization", "Bearer "+t.platform.Token())
	var raw []byte
	res, err := t.transport.RoundTrip(r)
	if err == nil {
		defer res.Body.Close()
		raw, err = io.ReadAll(res.Body)
	}
	switch {
	case ctx.Err() != nil:
		return answer{}
	case err != nil:
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{res.StatusCode, res.Header, raw}
}

// aim makes target what a request is for, byte by byte, also where it is no path that a client
// would send.
func aim(tb testing.TB, r *http.Request, target string) {
	tb.Helper()
	var err error
	r.URL.Opaque, r.URL.RawQuery, _ = strings.Cut(target, "?")
	if r.URL.Path, err = url.PathUnescape(r.URL.Opaque); err != nil {
		tb.Fatal(err)
	}
	r.URL.RawPath = r.URL.Opaque
	if strings.HasPrefix(target, "//") {
		r.URL.Opaque = ""
	}
}

// at fills in the path of an operation.
func (t target) at(d described, value func(name string) string) string {
	return regexp.MustCompile(`\{(\w+)\}`).ReplaceAllStringFunc(d.path, func(braces string) string {
		name := strings.Trim(braces, "{}")
		if v := value(name); v != "" {
			return url.PathEscape(v)
		}
		switch name {
		case "app":
			return string(t.app)
		case "machine":
			return string(t.machine)
		default:
			return "role"
		}
	})
}

// about says what an error about the body of a request begins with.
var about = regexp.MustCompile(`(?s)^(invalid [a-z_]|Validation failed|the body|json: cannot unmarshal \w+ into Go value|invalid character|unexpected end of JSON|exceeded max depth)`)

// wrongRefusal says what is wrong with an answer that refuses a request. Queries of metrics are refused in the form
// that Prometheus has, with an errorType in place of a code.
func wrongRefusal(a answer) string {
	var body struct{ Error, Status, Code, ErrorType string }
	switch {
	case a.status < 400:
		return ""
	case a.status > 499:
		return "it is no 4xx"
	case a.header.Get("Content-Type") != "application/json" || json.Unmarshal(a.body, &body) != nil || body.Error == "" || body.Code == "" && body.ErrorType == "":
		return "it is no error in JSON"
	case a.status == http.StatusBadRequest && body.Code == "invalid" && body.Status == "" && !about.MatchString(body.Error):
		return "it does not say what it is about"
	case len(a.body) > 8<<10:
		return "it is very long"
	default:
		return ""
	}
}

// leaveAfter is when the caller of a hostile request leaves: some follow what never ends.
const leaveAfter = 50 * time.Millisecond

// TestHostileRequests sends unusual requests to every operation of the document: paths, queries
// and bodies that are broken in ever other ways.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	rounds := 200
	if testing.Short() || racetest.Enabled {
		rounds = 20
	}
	shared := newTarget(t)
	list := shared.operations(t)
	shared.leaveAfter = leaveAfter
	for i, d := range list {
		t.Run(strings.ReplaceAll(d.String(), "/", "|"), func(t *testing.T) {
			t.Parallel()
			h := fnv.New64a()
			_, _ = io.WriteString(h, d.String())
			m := mutator{rand.New(rand.NewPCG(*seed, h.Sum64()))} // the same for any set of other operations
			target := shared.with(t, hangar.AppName(fmt.Sprintf("web-%d", i)))
			for round := range rounds {
				path := target.at(d, func(string) string {
					if m.IntN(10) == 0 {
						return m.text()
					}
					return ""
				}) + "?" + m.query(d.parameters)
				var body []byte
				if d.body != nil {
					body = m.spoilt(t, d.body)
				} else if m.IntN(10) == 0 {
					body = []byte(m.text())
				}
				if !sendable(path) {
					continue
				}
				a := target.send(t, d.method, path, body)
				if wrong := wrongRefusal(a); wrong != "" || t.Failed() {
					t.Fatalf("round %d of seed %d: %s %s is answered %d %.500s: %s\n%.4000s", round, *seed, d.method, path, a.status, a.body, wrong, body)
				}
			}
		})
	}
}

// sendable reports whether net/http would hand a path and a query to a handler.
func sendable(path string) bool {
	_, err := url.ParseRequestURI(path)
	return err == nil && !strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' })
}

// query gives some of the parameters values.
func (m mutator) query(parameters []string) string {
	values := url.Values{}
	for _, name := range parameters {
		for range m.IntN(3) {
			value := m.text()
			if n, ok := m.value().(json.Number); ok {
				value = n.String()
			}
			if m.IntN(4) == 0 {
				name += "." + m.text()
			}
			values.Add(name, value)
		}
	}
	if m.IntN(20) == 0 {
		return values.Encode() + "&%zz;" + m.text()
	}
	return values.Encode()
}

// spoilt is a body with up to three mistakes.
func (m mutator) spoilt(t *testing.T, example []byte) []byte {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(example))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	for range m.IntN(4) {
		m.mutate(tree)
	}
	return write(nil, tree)
}

// FuzzRequests sends any body, and any value of a parameter, to any operation of
// the document.
func FuzzRequests(f *testing.F) {
	shared := newTarget(f)
	list := shared.operations(f)
	shared.leaveAfter = leaveAfter
	odd := []string{"{}", "null", "[]", `""`, `{"timeout":1e300,"signal":-1}`, "\xff"}
	for i, d := range list {
		f.Add(uint8(i), uint8(0), "", d.body)
		f.Add(uint8(i), uint8(i), "1", []byte(odd[i%len(odd)]))
	}
	f.Fuzz(func(t *testing.T, index, parameter uint8, value string, body []byte) {
		d := list[int(index)%len(list)]
		const app = "fuzzed"
		target := shared.with(t, app)
		path := target.at(d, func(string) string { return "" })
		if n := len(d.parameters); n > 0 && value != "" {
			path += "?" + url.Values{d.parameters[int(parameter)%n]: {value}}.Encode()
		}
		a := target.send(t, d.method, path, body)
		if wrong := wrongRefusal(a); wrong != "" {
			t.Fatalf("%s %s is answered %d %.500s: %s", d.method, path, a.status, a.body, wrong)
		}
		if err := target.client.DestroyApp(t.Context(), app, true); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Fatal(err)
		}
	})
}
