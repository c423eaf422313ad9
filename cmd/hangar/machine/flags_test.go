package machine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func TestParsePort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text     string
		protocol string
		internal int
		port     hangar.ServicePort
	}{
		{"80:8080", "tcp", 8080, hangar.ServicePort{Port: 80, Handlers: []string{"http"}}},
		{"443:8080", "tcp", 8080, hangar.ServicePort{Port: 443, Handlers: []string{"tls", "http"}}},
		{"443:8080/http", "tcp", 8080, hangar.ServicePort{Port: 443, Handlers: []string{"tls", "http"}}},
		{"443:8443/tcp", "tcp", 8443, hangar.ServicePort{Port: 443}},
		{"6379:6379/tls", "tcp", 6379, hangar.ServicePort{Port: 6379, Handlers: []string{"tls"}}},
		{"5432:5432", "tcp", 5432, hangar.ServicePort{Port: 5432}},
		{"53:5353/udp", "udp", 5353, hangar.ServicePort{Port: 53}},
		{"8080", "tcp", 8080, hangar.ServicePort{Port: 8080}},
		{"80:8080/tcp:tls+http", "tcp", 8080, hangar.ServicePort{Port: 80, Handlers: []string{"tls", "http"}}},
		{"8443:8080:tls+http", "tcp", 8080, hangar.ServicePort{Port: 8443, Handlers: []string{"tls", "http"}}},
		{"80:8080/tcp", "tcp", 8080, hangar.ServicePort{Port: 80}},
		{"5432:5432/tcp:pg_tls", "tcp", 5432, hangar.ServicePort{Port: 5432, Handlers: []string{"pg_tls"}}},
		{"25:25:proxy_proto", "tcp", 25, hangar.ServicePort{Port: 25, Handlers: []string{"proxy_proto"}}},
		{"8000-8010:9000", "tcp", 9000, hangar.ServicePort{StartPort: 8000, EndPort: 8010}},
		{"8000-8000:9000/udp", "udp", 9000, hangar.ServicePort{StartPort: 8000, EndPort: 8000}},
		{"80-90:9000/tcp:http", "tcp", 9000, hangar.ServicePort{StartPort: 80, EndPort: 90, Handlers: []string{"http"}}},
		{"65535:1/http", "tcp", 1, hangar.ServicePort{Port: 65535, Handlers: []string{"http"}}},
	} {
		protocol, internal, port, err := parsePort(tt.text)
		if err != nil || protocol != tt.protocol || internal != tt.internal || !reflect.DeepEqual(port, tt.port) {
			t.Errorf("%s: got %s %d %+v, %v", tt.text, protocol, internal, port, err)
		}
	}
	for _, text := range []string{
		"", ":", "80:", ":80", "0:80", "80:0", "65536:80", "-1:80", "80:80:80", "80:80/smtp", "http", "80:x",
		"80:80/udp:tls", "80:80/tcp:", "80:80:", "80:80/tcp:gopher", "80:80:tls:http", "90-80:80", "80-:80", "-80:80", "80-90", "80:80-90", "80-90-100:80", "80:80/", "80:80/tcp/udp",
	} {
		if _, _, _, err := parsePort(text); err == nil || !strings.Contains(err.Error(), "--port") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestMerge runs the examples of RFC 7396, appendix A, that are objects.
func TestMerge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ base, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		base, patch, want := decode(t, tt.base), decode(t, tt.patch), decode(t, tt.want)
		if got := merge(base, patch); !reflect.DeepEqual(got, want) {
			t.Errorf("merge(%s, %s) = %v, want %s", tt.base, tt.patch, got, tt.want)
		}
		if !reflect.DeepEqual(base, decode(t, tt.base)) {
			t.Errorf("merge(%s, %s) changed its base to %v", tt.base, tt.patch, base)
		}
	}
}

func decode(t *testing.T, text string) object {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// patchOf returns the merge patch of a command line for an empty config.
func patchOf(t *testing.T, command []string, args ...string) (object, error) {
	t.Helper()
	return patchOver(t, object{}, command, args...)
}

func patchOver(t *testing.T, base object, command []string, args ...string) (object, error) {
	t.Helper()
	var f configFlags
	cmd := &cobra.Command{}
	f.add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	c := &cli.Invocation{Target: cli.Target{Getenv: func(name string) string { return "value of " + name }}}
	o, err := f.patch(c, cmd, base, command)
	if err != nil {
		return nil, err
	}
	return plainObject(o)
}

func TestFlagsBecomeAPatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args    string
		command []string
		want    string
	}{
		{"", nil, `{}`},
		{"", []string{"a", "b"}, `{"init":{"cmd":["a","b"]}}`},
		{"--env A=1 -e B -e C=x=y", nil, `{"env":{"A":"1","B":"value of B","C":"x=y"}}`},
		{"--memory 1gb --cpus 2 --cpu-kind performance", nil, `{"guest":{"memory_mb":1024,"cpus":2,"cpu_kind":"performance"}}`},
		{"--size shared-cpu-2x", nil, `{"size":"shared-cpu-2x","guest":null}`},
		{"--rm", nil, `{"auto_destroy":true}`},
		{"--rm=false", nil, `{"auto_destroy":false}`},
		{"--restart always", nil, `{"restart":{"policy":"always"}}`},
		{"--restart on-failure:3", nil, `{"restart":{"policy":"on-failure","max_retries":3}}`},
		{"--stop-signal TERM --stop-timeout 30s", nil, `{"stop_config":{"signal":"SIGTERM","timeout":"30s"}}`},
		{"--persist-rootfs always --tty", nil, `{"rootfs":{"persist":"always"},"init":{"tty":true}}`},
		{"--entrypoint /x", []string{"y"}, `{"init":{"entrypoint":["/x"],"cmd":["y"]}}`},
		{
			"-p 80:8080 -p 443:8080 -p 53:53/udp --autostop off", nil,
			`{"services":[
				{"protocol":"tcp","internal_port":8080,"autostart":true,"autostop":"off","ports":[{"port":80,"handlers":["http"]},{"port":443,"handlers":["tls","http"]}]},
				{"protocol":"udp","internal_port":53,"autostart":true,"autostop":"off","ports":[{"port":53}]}]}`,
		},
		{
			"-p 80:80 --autostart=false --min-machines-running 1", nil,
			`{"services":[{"protocol":"tcp","internal_port":80,"autostart":false,"min_machines_running":1,"ports":[{"port":80,"handlers":["http"]}]}]}`,
		},
	} {
		got, err := patchOf(t, tt.command, strings.Fields(tt.args)...)
		if err != nil || !reflect.DeepEqual(got, decode(t, tt.want)) {
			b, _ := json.Marshal(got)
			t.Errorf("%s %v: got %s, %v, want %s", tt.args, tt.command, b, err, tt.want)
		}
	}
	got, err := patchOf(t, nil, strings.Fields("-p 80:80 --autostop suspend --autostop-after 1m --min-running 2 --concurrency 20:50:requests")...)
	if want := decode(t, `{"services":[{"protocol":"tcp","internal_port":80,"autostart":true,"autostop":"suspend","autostop_after":"1m0s","min_machines_running":2,
		"concurrency":{"type":"requests","soft_limit":20,"hard_limit":50},"ports":[{"port":80,"handlers":["http"]}]}]}`); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("services: %v, %v, want %v", got, err, want)
	}
	for _, args := range []string{
		"--autostop-after 1m", "--concurrency 5", "-p 80:80 --concurrency x", "-p 80:80 --concurrency 0", "-p 80:80 --concurrency 5:4", "-p 80:80 --concurrency 1:2:3",
		"-p 80:80 --concurrency requests", "-p 80:80 --concurrency 1:2:bytes",
		"--restart no:3", "--restart on-failure:0", "--restart on-failure:x", "--stop-signal NOPE", "--metadata x",
		"--autostop stop", "--min-machines-running 1", "--file-local /x", "--file-local =x", "--memory 1k", "-p x",
	} {
		if got, err := patchOf(t, nil, strings.Fields(args)...); err == nil {
			t.Errorf("%s: got %v", args, got)
		}
	}
}

// TestServicesThatAreThere: without a port, the flags change the services of the config.
func TestServicesThatAreThere(t *testing.T) {
	t.Parallel()
	base := decode(t, `{"services":[{"protocol":"tcp","internal_port":80,"future":1,"autostart":false,"ports":[{"port":80}]},{"protocol":"tcp","internal_port":81}]}`)
	got, err := patchOver(t, base, nil, strings.Fields("--autostop suspend --concurrency 5")...)
	want := decode(t, `{"services":[
		{"protocol":"tcp","internal_port":80,"future":1,"autostart":false,"ports":[{"port":80}],"autostop":"suspend","concurrency":{"type":"connections","soft_limit":5}},
		{"protocol":"tcp","internal_port":81,"autostart":true,"autostop":"suspend","concurrency":{"type":"connections","soft_limit":5}}]}`)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := patchOver(t, base, nil, "--autostart"); err != nil {
		t.Error(err)
	}
}

// TestUpdateKeepsUnknownKeys: an update keeps a property that only a newer server knows.
func TestUpdateKeepsUnknownKeys(t *testing.T) {
	t.Parallel()
	base := decode(t, `{"image":"a","size":"shared-cpu-1x","guest":{"cpus":1,"memory_mb":256},"future":{"x":[1]}}`)
	config, err := patched(base, decode(t, `{"guest":{"memory_mb":512}}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := asObject(config)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got["future"], base["future"]) {
		t.Errorf("future is %v", got["future"])
	}
	if g := config.Guest; g == nil || g.MemoryMB != 512 || g.CPUs != 1 {
		t.Errorf("guest is %+v", g)
	}
	if base["size"] == nil {
		t.Error("the base was changed")
	}
}

func TestExecArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, names, command string }{
		{"app m ls -l", "app m", "ls -l"},
		{"app m -- ls -l", "app m", "ls -l"},
		{"app -- ls -l", "app", "ls -l"},
		{"app m ls -- x", "app m", "ls -- x"},
		{"app m", "app m", ""},
		{"app --", "app", ""},
	} {
		names, command := execArgs(strings.Fields(tt.args))
		if strings.Join(names, " ") != tt.names || strings.Join(command, " ") != tt.command {
			t.Errorf("%s: got %v and %v", tt.args, names, command)
		}
	}
}

func TestParseConcurrency(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]hangar.ServiceConcurrency{
		"20":           {Type: "connections", SoftLimit: 20},
		"20:50":        {Type: "connections", SoftLimit: 20, HardLimit: 50},
		"20:requests":  {Type: "requests", SoftLimit: 20},
		"5:5:requests": {Type: "requests", SoftLimit: 5, HardLimit: 5},
	} {
		if got, err := parseConcurrency(text); err != nil || *got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}

func FuzzParsePort(f *testing.F) {
	for _, seed := range []string{"80:8080", "443:8080/http", "53:53/udp", "x", ":/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, internal, port, err := parsePort(text)
		first, last := port.Range()
		if err == nil && (internal < 1 || internal > 65535 || first < 1 || last < first || last > 65535) {
			t.Errorf("%q: %d, %+v", text, internal, port)
		}
	})
}

func TestDatabaseFlag(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "litefs.yml")
	if err := os.WriteFile(file, []byte("lease: {type: static}"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &configFlags{db: file}
	cmd := &cobra.Command{}
	f.add(cmd)
	f.db = file
	patch, err := f.patch(&cli.Invocation{}, cmd, object{}, []string{"serve", "--all"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := patched(object{}, patch)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/.hangar/bin/hangar-db", "mount", "--config", "/etc/litefs.yml", "--"}
	if !reflect.DeepEqual(config.Init.Entrypoint, want) || !reflect.DeepEqual(config.Init.Cmd, []string{"serve", "--all"}) {
		t.Errorf("%+v", config.Init)
	}
	if len(config.Files) != 1 || config.Files[0].GuestPath != "/etc/litefs.yml" || string(config.Files[0].RawValue) != "lease: {type: static}" {
		t.Errorf("%+v", config.Files)
	}
	if _, err := f.patch(&cli.Invocation{}, cmd, object{}, nil); err == nil || !strings.Contains(err.Error(), "needs a command after") {
		t.Error(err)
	}
	f.entrypoint = "/bin/sh"
	if _, err := f.patch(&cli.Invocation{}, cmd, object{}, []string{"x"}); err == nil || !strings.Contains(err.Error(), "exclude one another") {
		t.Error(err)
	}
}
