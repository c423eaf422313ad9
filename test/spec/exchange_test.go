package spec_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// exchange runs what a row writes: requests and the answers that are wanted.
//
//	POST $machine/lease {"ttl": 60}                 a request and its body, which may go on in the next lines
//	> platform-machine-lease-nonce: $nonce          a header of the request; an empty one is not sent
//	201 {"data": {"nonce": "<text as nonce>"}}      the status that is wanted and a pattern of the body
//	< content-type: ~^application/json              a header of the answer
//
// A path begins with /v1 or a variable; a whole URL goes to the edge. UNTIL is a GET that
// is repeated until the answer is as wanted.
//
// The pattern of an object may leave out members. An array has as many elements as its
// pattern, unless that begins with "<has>" or "<lacks>": then some element matches each of
// the others, or none does. A text is itself, or
//
//	"<text>", "<integer>", "<bool>", "<time>", "<any>"   anything of the kind; a text is not empty
//	"<positive>"                                         an integer above 0
//	"<absent>"                                           the member is not there
//	"<text as x>"                                        the same, and from now on $x is its value
//	"<not a>"                                            another text than a
//	"~expression", "!~expression"                        a text that the regular expression finds something in, or nothing
//
// A status alone says nothing of the body; "<empty>" says that there is none. A pattern that
// begins with ~ or !~ is an expression for a body that is not JSON, and one that begins with jwt
// is for the claims of a token.
//
// Variables are made when they are first used: $org is a new organization, $app a new App;
// $machine, $stopped, $suspended and $destroyed are the paths of new Machines of it in that
// state, $prepared of one that was created with skip_launch, $created of one that may not have
// booted yet, and $volume of a new volume. A number at the end, as in $app2, makes another one.
// $machine.id, .name and .instance are its properties. $config is the config of these Machines:
// the image, and what the row adds in its member with. $new is a name that nothing has, $image
// the reference of an image, and $token the administrator's.
//
// A line such as STOP $machine {"timeout": "1"} is a named step, short for requests and their
// expected answers; see namedSteps.
type exchange struct {
	*world
	t      *testing.T
	with   string
	values map[string]string
}

// step is a request and what it is to be answered.
type step struct {
	method, path, body string
	until              bool
	header             [][2]string
	status             int
	want               string
	wantHeader         [][2]string
}

var (
	requestLine = regexp.MustCompile(`^(GET|POST|PUT|PATCH|DELETE|UNTIL) (\S+)\s*(.*)$`)
	statusLine  = regexp.MustCompile(`^(\d{3})(?:\s+(.*))?$`)
)

// namedSteps are exchanges that many rows need. PATH and BODY stand for what a row has behind the
// name.
var namedSteps = map[string]string{
	"GIVEN":   "GET PATH\n200",
	"START":   "POST PATH/start\n200\nGET PATH/wait?state=started\n200",
	"STOP":    "POST PATH/stop BODY\n200\nGET PATH/wait?state=stopped\n200",
	"SUSPEND": "POST PATH/suspend\n200\nGET PATH/wait?state=suspended\n200",
	"UPDATE":  "POST PATH {\"config\": $config}\n200 {\"instance_id\": \"<text as version>\"}\nGET PATH/wait?instance_id=$version\n200",
	"EXEC":    "POST PATH/exec {\"command\": BODY}\n200 {\"exit_code\": 0}",
	"LEASE":   "POST PATH/lease {\"ttl\": 60}\n201 {\"data\": {\"nonce\": \"<text as nonce>\"}}",
}

var namedStep = regexp.MustCompile(`(?m)^\s*([A-Z]+) (\S+) *(.*)$`)

// expand replaces named steps by their exchanges.
func expand(script string) string {
	return namedStep.ReplaceAllStringFunc(script, func(line string) string {
		m := namedStep.FindStringSubmatch(line)
		requests, ok := namedSteps[m[1]]
		if !ok {
			return line
		}
		return "\n" + strings.NewReplacer("PATH", m[2], "BODY", m[3]).Replace(requests)
	})
}

func parse(script string) ([]step, error) {
	var steps []step
	for line := range strings.Lines(expand(script)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if m := requestLine.FindStringSubmatch(line); m != nil {
			s := step{method: m[1], path: m[2], body: m[3]}
			if s.method == "UNTIL" {
				s.method, s.until = "GET", true
			}
			steps = append(steps, s)
			continue
		}
		if len(steps) == 0 {
			return nil, fmt.Errorf("%q comes before any request", line)
		}
		s := &steps[len(steps)-1]
		switch m := statusLine.FindStringSubmatch(line); {
		case m != nil && s.status != 0:
			return nil, fmt.Errorf("%s %s has two statuses", s.method, s.path)
		case m != nil:
			s.status, _ = strconv.Atoi(m[1])
			s.want = m[2]
		case strings.HasPrefix(line, "> "), strings.HasPrefix(line, "< "):
			name, value, ok := strings.Cut(line[2:], ":")
			if !ok {
				return nil, fmt.Errorf("%q is no header", line)
			}
			h := [2]string{name, strings.TrimSpace(value)}
			if line[0] == '>' {
				s.header = append(s.header, h)
			} else {
				s.wantHeader = append(s.wantHeader, h)
			}
		case s.status != 0:
			s.want += line
		default:
			s.body += line
		}
	}
	for _, s := range steps {
		if s.status == 0 {
			return nil, fmt.Errorf("%s %s has no status that is wanted", s.method, s.path)
		}
	}
	return steps, nil
}

// answer is what a request was answered.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (x *exchange) run(script string) {
	x.t.Helper()
	steps, err := parse(script)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, s := range steps {
		x.step(s)
	}
}

// patience bounds how long an UNTIL is repeated.
const patience = time.Minute

func (x *exchange) step(s step) {
	x.t.Helper()
	s.path, s.body = x.fill(s.path), x.fill(s.body)
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) {
		a := x.send(s)
		err := x.compare(s, a)
		if err == nil {
			return
		}
		if !s.until || time.Since(began) > patience {
			x.t.Fatalf("%s %s %s\nis answered %d %s\nwant %d %s\n%v", s.method, s.path, s.body, a.status, a.body, s.status, x.fill(s.want), err)
		}
	}
}

func (x *exchange) send(s step) answer {
	x.t.Helper()
	url, by := x.api+s.path, x.calls
	if strings.HasPrefix(s.path, "http") {
		url, by = s.path, x.edge
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(x.t.Context()), s.method, url, strings.NewReader(s.body))
	if err != nil {
		x.t.Fatal(err)
	}
	if by == x.calls {
		req.Header.Set("Authorization", "Bearer "+x.admin)
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range s.header {
		if value := x.fill(h[1]); value != "" {
			req.Header.Set(h[0], value)
		} else {
			req.Header.Del(h[0])
		}
	}
	res, err := by.Do(req)
	if err != nil {
		if s.until {
			return answer{body: []byte(err.Error())}
		}
		x.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		x.t.Fatalf("%s %s: %v", s.method, s.path, err)
	}
	return answer{res.StatusCode, res.Header, body}
}

func (x *exchange) compare(s step, a answer) error {
	if a.status != s.status {
		return errors.New("the status is another one")
	}
	for _, h := range s.wantHeader {
		got, want := a.header.Get(h[0]), x.fill(h[1])
		if expression, ok := strings.CutPrefix(want, "~"); ok && !regexp.MustCompile(expression).MatchString(got) || !ok && got != want {
			return fmt.Errorf("the header %s is %q, want %q", h[0], got, want)
		}
	}
	want := x.fill(s.want)
	switch {
	case want == "<empty>", a.status == http.StatusNoContent:
		if len(a.body) > 0 {
			return errors.New("there is a body")
		}
		return nil
	case want == "":
		return nil
	case strings.HasPrefix(want, "~"), strings.HasPrefix(want, "!~"):
		return x.matchText("body", string(a.body), want)
	}
	body := string(a.body)
	if claims, ok := strings.CutPrefix(want, "jwt "); ok {
		parts := strings.Split(body, ".")
		if len(parts) != 3 {
			return errors.New("the body is no token")
		}
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			return err
		}
		want, body = claims, string(raw)
	}
	pattern, err := decode(want)
	if err != nil {
		return fmt.Errorf("the pattern: %w", err)
	}
	got, err := decode(body)
	if err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	return x.match("body", got, pattern)
}

func decode(text string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return v, d.Decode(&v)
}

// match returns how got is not as the pattern says.
func (x *exchange) match(at string, got, pattern any) error {
	switch pattern := pattern.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is no object", at)
		}
		for name, p := range pattern {
			value, there := object[name]
			if there == (p == "<absent>") {
				return fmt.Errorf("%s.%s is there: %t", at, name, there)
			}
			if !there {
				continue
			}
			if err := x.match(at+"."+name, value, p); err != nil {
				return err
			}
		}
		return nil
	case []any:
		return x.matchList(at, got, pattern)
	case string:
		return x.matchText(at, got, pattern)
	default:
		if got != pattern {
			return fmt.Errorf("%s is %v, want %v", at, got, pattern)
		}
		return nil
	}
}

func (x *exchange) matchList(at string, got any, pattern []any) error {
	list, ok := got.([]any)
	if !ok {
		return fmt.Errorf("%s is no array", at)
	}
	if len(pattern) > 0 && (pattern[0] == "<has>" || pattern[0] == "<lacks>") {
		for _, p := range pattern[1:] {
			has := slices.ContainsFunc(list, func(v any) bool { return x.match(at, v, p) == nil })
			if has != (pattern[0] == "<has>") {
				return fmt.Errorf("%s has an element like %v: %t", at, p, has)
			}
		}
		return nil
	}
	if len(list) != len(pattern) {
		return fmt.Errorf("%s has %d elements, want %d", at, len(list), len(pattern))
	}
	for i := range list {
		if err := x.match(fmt.Sprintf("%s[%d]", at, i), list[i], pattern[i]); err != nil {
			return err
		}
	}
	return nil
}

var kindOf = regexp.MustCompile(`^<(text|integer|positive|bool|time|any)(?: as ([a-z]+))?>$`)

func (x *exchange) matchText(at string, got any, pattern string) error {
	text, isText := got.(string)
	if expression, ok := strings.CutPrefix(pattern, "~"); ok {
		if !isText || !regexp.MustCompile(expression).MatchString(text) {
			return fmt.Errorf("%s is %v, want one like %s", at, got, expression)
		}
		return nil
	}
	if expression, ok := strings.CutPrefix(pattern, "!~"); ok {
		if !isText || regexp.MustCompile(expression).MatchString(text) {
			return fmt.Errorf("%s is %v, want none like %s", at, got, expression)
		}
		return nil
	}
	if other, ok := strings.CutPrefix(pattern, "<not "); ok {
		if !isText || text == strings.TrimSuffix(other, ">") {
			return fmt.Errorf("%s is %v", at, got)
		}
		return nil
	}
	kind := kindOf.FindStringSubmatch(pattern)
	if kind == nil {
		if !isText || text != pattern {
			return fmt.Errorf("%s is %v, want %q", at, got, pattern)
		}
		return nil
	}
	number, isNumber := got.(json.Number)
	isKind := true
	switch kind[1] {
	case "text":
		isKind = text != ""
	case "integer":
		_, err := number.Int64()
		isKind = isNumber && err == nil
	case "positive":
		n, err := number.Int64()
		isKind = isNumber && err == nil && n > 0
	case "bool":
		_, isKind = got.(bool)
	case "time":
		at, err := time.Parse(time.RFC3339, text)
		_, offset := at.Zone()
		isKind = err == nil && offset == 0
	}
	if !isKind {
		return fmt.Errorf("%s is %v, want %s", at, got, pattern)
	}
	if kind[2] != "" {
		x.values[kind[2]] = fmt.Sprint(got)
	}
	return nil
}

var variable = regexp.MustCompile(`\$[a-z]+\d*(?:\.(?:id|name|instance))?`)

// fill replaces the variables of a text, and makes those that are not there yet.
func (x *exchange) fill(text string) string {
	x.t.Helper()
	return variable.ReplaceAllStringFunc(text, func(name string) string {
		x.t.Helper()
		return x.value(name[1:])
	})
}

func (x *exchange) value(name string) string {
	x.t.Helper()
	if value, ok := x.values[name]; ok {
		return value
	}
	whole, property, _ := strings.Cut(name, ".")
	switch {
	case name == "image":
		x.values[name] = x.image
	case name == "config":
		config := `{"image": "$image"`
		if x.with != "" {
			config += ", " + x.with
		}
		x.values[name] = x.fill(config + "}")
	case name == "token":
		x.values[name] = x.admin
	case name == "new":
		x.values[name] = fmt.Sprintf("spec-%08x", rand.Uint32())
	case property != "":
		if _, made := x.values[whole]; made {
			x.t.Fatalf("$%s has no %s", whole, property)
		}
		x.value(whole)
	default:
		x.make(name)
	}
	value, ok := x.values[name]
	if !ok {
		x.t.Fatalf("$%s is nothing that was bound or can be made", name)
	}
	return value
}

// make makes what a variable stands for.
func (x *exchange) make(name string) {
	x.t.Helper()
	kind := strings.TrimRight(name, "0123456789")
	switch kind {
	case "org":
		org := fmt.Sprintf("spec-%08x", rand.Uint32())
		x.run(`POST /v1/orgs {"slug": "` + org + `", "name": "Of this row"}
			201`)
		x.values[name] = org
	case "app":
		app := fmt.Sprintf("spec-%08x", rand.Uint32())
		x.run(`POST /v1/apps {"app_name": "` + app + `", "org_slug": "personal"}
			201`)
		x.values[name] = app
	case "volume":
		x.run(`POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "region": "loc"}
			200 {"id": "<text as made>", "state": "created"}`)
		x.values[name+".id"] = x.values["made"]
		x.values[name] = x.fill("/v1/apps/$app/volumes/$made")
	case "created", "machine", "stopped", "suspended", "destroyed", "prepared":
		x.machine(name, kind)
	}
}

// clean destroys the Apps of the row, and all that they have.
func (x *exchange) clean() {
	x.t.Helper()
	for name, app := range x.values {
		if strings.TrimRight(name, "0123456789") == "app" {
			x.send(step{method: http.MethodDelete, path: "/v1/apps/" + app})
		}
	}
}

func (x *exchange) machine(name, state string) {
	x.t.Helper()
	more := ""
	if state == "prepared" {
		more = `, "skip_launch": true`
	}
	x.run(`POST /v1/apps/$app/machines {"config": $config` + more + `}
		200 {"id": "<text as made>", "name": "<text as madename>", "instance_id": "<text as madeversion>"}`)
	path := x.fill("/v1/apps/$app/machines/$made")
	x.values[name], x.values[name+".id"], x.values[name+".name"], x.values[name+".instance"] = path, x.values["made"], x.values["madename"], x.values["madeversion"]
	reach := func(state string) { x.run("GET " + path + "/wait?state=" + state + "\n200") }
	if state != "created" && state != "prepared" {
		reach("started")
	}
	switch state {
	case "prepared":
		reach("stopped")
	case "stopped":
		x.run("STOP " + path)
	case "suspended":
		x.run("SUSPEND " + path)
	case "destroyed":
		x.run("DELETE " + path + "?force=true\n200")
		reach("destroyed")
	}
}
