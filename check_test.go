package hangar_test

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestNamedChecks(t *testing.T) {
	c, err := hangar.ParseMachineConfig([]byte(`{"image":"a",
		"checks":{"z":{"type":"tcp","port":1},"alive":{"type":"HTTP","port":2,"method":"head","path":"/x","protocol":"https","tls_server_name":"n","tls_skip_verify":true,
			"interval":"1m","timeout":"3s","grace_period":"10s","headers":{"A":"b"}},"servicecheck-00-tcp-80":{"type":"tcp","port":3}},
		"services":[
			{"internal_port":80,"checks":[{"type":"tcp"},{"type":"http"},{"type":"tcp","port":81}]},
			{"internal_port":80,"protocol":"udp","checks":[{"type":"http","interval":0},{"type":"http"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		name              string
		port              int
		typ, method, path string
		interval, timeout time.Duration
		service           bool
	}
	const usual, usualTimeout = hangar.DefaultCheckInterval, hangar.DefaultCheckTimeout
	want := []row{
		{"alive", 2, "http", "HEAD", "/x", time.Minute, 3 * time.Second, false},
		{"servicecheck-00-tcp-80", 3, "tcp", "GET", "/", usual, usualTimeout, false},
		{"z", 1, "tcp", "GET", "/", usual, usualTimeout, false},
		{"servicecheck-01-tcp-80", 80, "tcp", "GET", "/", usual, usualTimeout, true},
		{"servicecheck-01-http-80", 80, "http", "GET", "/", usual, usualTimeout, true},
		{"servicecheck-02-tcp-81", 81, "tcp", "GET", "/", usual, usualTimeout, true},
		{"servicecheck-00-http-80", 80, "http", "GET", "/", usual, usualTimeout, true},
		{"servicecheck-02-http-80", 80, "http", "GET", "/", usual, usualTimeout, true},
	}
	got := c.NamedChecks()
	if len(got) != len(want) {
		t.Fatalf("%d checks, want %d", len(got), len(want))
	}
	for i, k := range got {
		if r := (row{k.Name, k.Port, k.Type, k.Method, k.Path, k.Interval, k.Timeout, k.Service}); r != want[i] {
			t.Errorf("check %d is %+v, want %+v", i, r, want[i])
		}
	}
	if k := got[0]; !k.TLS || k.ServerName != "n" || !k.SkipVerify || k.Grace != 10*time.Second || len(k.Headers) != 1 {
		t.Errorf("check of https is %+v", k)
	}
}
