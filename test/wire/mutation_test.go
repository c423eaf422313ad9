package wire

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/racetest"
)

var seed = flag.Uint64("seed", 1, "what the random mutations of TestMutatedConfigs follow from")

// wish uses every property of a config that this server takes.
const wish = `{"name":"mutated","region":"loc","skip_launch":true,"skip_service_registration":false,"config":{
	"image":"nginx","env":{"A":"1","B":"2"},"init":{"exec":["/bin/sh"],"entrypoint":["x"],"cmd":["x"],"tty":false,"kernel_args":["a"]},
	"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256,"kernel_args":["a"]},"metadata":{"a":"b"},"auto_destroy":false,
	"restart":{"policy":"no","max_retries":1},"stop_config":{"timeout":"5s","signal":"SIGTERM"},"disable_machine_autostart":false,
	"persist_rootfs":"never","rootfs":{"persist":"always"},
	"services":[{"protocol":"tcp","internal_port":80,"autostop":"off","autostart":true,"force_instance_key":"x","min_machines_running":0,
		"ports":[{"port":80,"handlers":["http"],"force_https":false,
			"tls_options":{"alpn":["h2"],"versions":["TLSv1.2"],"default_self_signed":false},"proxy_proto_options":{"version":"v2"},
			"http_options":{"compress":true,"h2_backend":false,"idle_timeout":60,"headers_read_timeout":10,
				"response":{"pristine":false,"headers":{"A":"b","C":["d"],"E":false}},
				"replay_cache":[{"path_prefix":"/","ttl_seconds":60,"type":"cookie","name":"a","allow_bypass":true}]}},
			{"start_port":1000,"end_port":2000}],
		"concurrency":{"type":"requests","soft_limit":1,"hard_limit":2},
		"checks":[{"type":"tcp","interval":"15s","timeout":"2s","grace_period":"1s"}]}],
	"checks":{"alive":{"type":"http","port":80,"path":"/","method":"GET","kind":"readiness","protocol":"https","tls_server_name":"x","tls_skip_verify":true,
		"interval":10000000000,"headers":[{"name":"A","values":["b"]}]}},
	"files":[{"guest_path":"/x","raw_value":"eA==","mode":420}],"metrics":{"port":9091,"path":"/metrics","https":false},
	"dns":{"skip_registration":false,"nameservers":["1.1.1.1"],"searches":["a"],"options":[{"name":"ndots","value":"1"}],
		"hostname":"x","hostname_fqdn":"x.y"},
	"statics":[{"guest_path":"/a","url_prefix":"/a","tigris_bucket":"files","index_document":"x"}],"x_unknown":{"a":[1,2.50,null]}}}`

// named is how an error about a body says which property it is about; malformed is
// how one says that the body is no document at all.
var (
	named     = regexp.MustCompile(`(?s)^(volume not found: config\.mounts|invalid (config|name|region|current_version|skip_launch|skip_service_registration|lease_ttl|lsvd)\b.*: .)`)
	malformed = regexp.MustCompile(`^(invalid character|unexpected end of JSON|the body is|json: cannot unmarshal \w+ into Go value|exceeded max depth)`)
)

// TestMutatedConfigs sends valid creations and updates with something wrong in them. No answer is a
// 5xx, each is as the document says, and an error names a property.
func TestMutatedConfigs(t *testing.T) {
	rounds := 10_000
	if testing.Short() || racetest.Enabled {
		rounds = 1_000
	}
	target := newTarget(t)
	all := "/v1/apps/" + string(target.app) + "/machines"
	created := target.send(t, http.MethodPost, all, []byte(wish))
	if created.status != http.StatusOK {
		t.Fatalf("the valid creation is answered %d %s", created.status, created.body)
	}
	target.settle(t)
	m := mutator{rand.New(rand.NewPCG(*seed, 0))}
	accepted := 0
	for round := range rounds {
		body, isDocument := m.body(t)
		path := []string{all, all + "/" + string(target.machine)}[m.IntN(2)]
		a := target.send(t, http.MethodPost, path, body)
		if wrong := wrongAnswer(a, isDocument); wrong != "" || t.Failed() {
			t.Fatalf("round %d of seed %d: POST %s is answered %d %.500s: %s\n%.4000s", round, *seed, path, a.status, a.body, wrong, body)
		}
		if a.status == http.StatusOK {
			accepted++
			target.settle(t)
		}
	}
	// So that neither half of the answers goes untested.
	if accepted < rounds/20 || accepted > rounds*19/20 {
		t.Errorf("%d of %d were accepted", accepted, rounds)
	}
}

func wrongAnswer(a answer, isDocument bool) string {
	var body struct{ Error, Status, Code string }
	switch err := json.Unmarshal(a.body, &body); {
	case err != nil || a.header.Get("Content-Type") != "application/json":
		return "it is not JSON"
	case a.status == http.StatusOK, a.status == http.StatusConflict && strings.Contains(body.Error, "name"):
		return ""
	case a.status < 400 || a.status > 499:
		return "it is no 4xx"
	case a.status == http.StatusRequestEntityTooLarge, body.Status == hangar.ReasonInsufficientCapacity, body.Status == hangar.ReasonImageNotFound:
		return ""
	case !named.MatchString(body.Error) && (isDocument || !malformed.MatchString(body.Error)):
		return "it names no property"
	case len(a.body) > 8<<10:
		return "it is very long"
	default:
		return ""
	}
}

// mutator makes one to three mistakes at a time.
type mutator struct{ *rand.Rand }

// body is a wish with mistakes. It is a document unless they are in its syntax.
func (m mutator) body(t *testing.T) (raw []byte, isDocument bool) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(wish))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	delete(tree, "name") // or it would be taken
	if m.IntN(2) == 0 {  // there are no volumes to mount
		config, _ := tree["config"].(map[string]any)
		config["mounts"] = []any{map[string]any{
			"volume": "vol_0123456789abcdef", "path": "/data", "name": "data", "encrypted": true, "size_gb": 1,
			"extend_threshold_percent": 80, "add_size_gb": 1, "size_gb_limit": 10,
		}}
	}
	for range 1 + m.IntN(3) {
		m.mutate(tree)
	}
	raw = write(nil, tree)
	if m.IntN(10) > 0 {
		return raw, true
	}
	for range 1 + m.IntN(3) {
		at := m.IntN(len(raw))
		switch m.IntN(4) {
		case 0:
			raw[at] = byte(m.IntN(256))
		case 1:
			raw = raw[:at+1]
		case 2:
			raw = slices.Insert(raw, at, []byte(`{}[],:"\`)[m.IntN(8)])
		default:
			raw = slices.Delete(raw, at, min(at+1+m.IntN(8), len(raw)-1)+1)
		}
		if len(raw) == 0 {
			break
		}
	}
	return raw, false
}

// duplicate is an object with a key that stands twice.
type duplicate struct {
	object map[string]any
	key    string
	first  any
}

// mutate makes a mistake somewhere below an object.
func (m mutator) mutate(object map[string]any) {
	keys := slices.Sorted(maps.Keys(object))
	if len(keys) == 0 {
		object[m.text()] = m.value()
		return
	}
	key := keys[m.IntN(len(keys))]
	// Deeper more often than not, or most mistakes would be at the top.
	if m.IntN(8) > 0 {
		switch v := object[key].(type) {
		case map[string]any:
			m.mutate(v)
			return
		case []any:
			if len(v) > 0 {
				at := m.IntN(len(v))
				if sub, ok := v[at].(map[string]any); ok && m.IntN(8) > 0 {
					m.mutate(sub)
				} else {
					v[at] = m.value()
				}
				return
			}
		}
	}
	switch m.IntN(12) {
	case 0:
		delete(object, key)
	case 1:
		object[strings.ToUpper(key)] = object[key]
	case 2:
		object[m.text()] = m.value()
	case 3:
		object[key] = []any{object[key]}
	case 4:
		object[key] = map[string]any{key: object[key]}
	case 5:
		object[key] = object[keys[m.IntN(len(keys))]]
	case 6:
		for i := range 130 {
			object[fmt.Sprint(key, i)] = "x"
		}
	case 7:
		object[key] = slices.Repeat([]any{object[key]}, 70)
	case 8:
		object[key] = duplicate{object: map[string]any{key: object[key]}, key: key, first: m.value()}
	default:
		object[key] = m.value()
	}
}

// value is an unexpected one.
func (m mutator) value() any {
	numbers := []json.Number{
		"0", "-0", "-1", "1", "65535", "65536", "1.5", "1e2", "1e999", "-1e-999", "2147483648", "4294967296", "9223372036854775807",
		"9223372036854775808", "-9223372036854775809", "18446744073709551616", json.Number(strings.Repeat("9", 400)), "0.1e1",
	}
	switch m.IntN(8) {
	case 0:
		return nil
	case 1:
		return m.IntN(2) == 0
	case 2, 3:
		return numbers[m.IntN(len(numbers))]
	case 4:
		nested := any("x")
		for range 1 + m.IntN(100) {
			if m.IntN(2) == 0 {
				nested = []any{nested}
			} else {
				nested = map[string]any{m.text(): nested}
			}
		}
		return nested
	case 5:
		return []any{}
	case 6:
		return map[string]any{}
	default:
		return m.text()
	}
}

// text is one that programs stumble over.
func (m mutator) text() string {
	texts := []string{
		"", " ", "\x00", "\n\r\t", "../../etc/passwd", "/", "//", "-1", "true", "null", "10s", "1h", "SIGKILL", "%s%n", "${HOME}", `"`, `\`, "a=b", "a.b[0]",
		"\u202e", "e\u0301", "\U0001F6F8", "\ufeff", "\u2028", "\ufffd", "ſ", "K", "İ", strings.Repeat("a", 300), strings.Repeat("ü", 300), "image", "guest", "volumes",
	}
	return texts[m.IntN(len(texts))]
}

// write appends the JSON of a tree, with what no encoder would write.
func write(raw []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		raw = append(raw, '{')
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				raw = append(raw, ',')
			}
			raw = pair(raw, k, v[k])
		}
		return append(raw, '}')
	case []any:
		raw = append(raw, '[')
		for i, sub := range v {
			if i > 0 {
				raw = append(raw, ',')
			}
			raw = write(raw, sub)
		}
		return append(raw, ']')
	case duplicate:
		raw = append(pair(append(raw, '{'), v.key, v.first), ',')
		return append(raw, write(nil, v.object)[1:]...)
	case json.Number:
		return append(raw, v...)
	default:
		text, _ := json.Marshal(v)
		return append(raw, text...)
	}
}

func pair(raw []byte, key string, v any) []byte {
	raw = append(write(raw, key), ':')
	return write(raw, v)
}
