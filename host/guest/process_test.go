package guest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// testMachine has the config that the JSON properties beside its image describe.
func testMachine(t *testing.T, properties string) *hangar.Machine {
	t.Helper()
	config, err := hangar.ParseMachineConfig([]byte(`{"image":"n"` + properties + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return &hangar.Machine{
		ID: "0123456789abcd", App: "web", AppID: "web", Region: "loc", InstanceID: "01J", PrivateIP: netip.MustParseAddr("fdaa:0:1::2"),
		ImageRef: hangar.ImageRef{Registry: "r", Repository: "n", Tag: "1"}, Config: config,
	}
}

var testImage = Image{Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}, Env: []string{"A=image", "B=image"}, WorkDir: "/srv", User: "7"}

func TestProcesses(t *testing.T) {
	for _, tt := range []struct {
		name, properties string
		want             []string
	}{
		{"none", ``, []string{"7 /entry serve"}},
		{"init only", `,"init":{"exec":["/init"]}`, []string{"7 /init"}},
		{"open", `,"processes":[{},{}]`, []string{"7 /entry serve", "7 /entry serve"}},
		{"open with init", `,"init":{"exec":["/init"]},"processes":[{}]`, []string{"7 /init"}},
		{"each its own", `,"processes":[{"exec":["/a","1"],"user":"8:9"},{"entrypoint":["/b"]},{"cmd":["c"]}]`, []string{"8 /a 1", "7 /b serve", "7 /entry c"}},
		{"over init", `,"init":{"exec":["/init"],"cmd":["d"]},"processes":[{"entrypoint":["/b"]}]`, []string{"7 /b d"}},
		{"container", `,"containers":[{"cmd":["k"],"user":"3"}]`, []string{"3 /entry k"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Resolve(testImage, testMachine(t, tt.properties), nil, netip.Addr{})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, p := range got {
				lines = append(lines, strings.Join(append([]string{formatUID(p.UID)}, p.Args...), " "))
				if p.Dir != "/srv" {
					t.Errorf("directory %q", p.Dir)
				}
			}
			if !slices.Equal(lines, tt.want) {
				t.Errorf("runs %q, want %q", lines, tt.want)
			}
		})
	}
}

func formatUID(uid uint32) string { return string(rune('0' + uid)) }

func TestProcessEnvironment(t *testing.T) {
	secrets := map[string]string{"A": "secret", "B": "secret", "KEY": "k", "FLY_REGION": "xyz"}
	for _, tt := range []struct {
		name, properties string
		want             []string
		lacks            string
	}{
		{"secrets over env", `,"env":{"A":"env","C":"env"}`, []string{"A=secret", "B=secret", "C=env", "KEY=k", "FLY_REGION=loc"}, ""},
		{"process over secrets", `,"processes":[{"env":{"A":"process"}}]`, []string{"A=process", "B=secret"}, ""},
		{"process secret over its env", `,"processes":[{"env":{"A":"process"},"secrets":[{"env_var":"A","name":"KEY"}]}]`, []string{"A=k"}, ""},
		{"secret by its own name", `,"processes":[{"ignore_app_secrets":true,"secrets":[{"env_var":"KEY"}]}]`, []string{"KEY=k", "A=image", "B=image"}, ""},
		{"ignored", `,"env":{"C":"env"},"processes":[{"ignore_app_secrets":true}]`, []string{"A=image", "C=env"}, "KEY="},
		{
			"fields", `,"processes":[{"env_from":[{"env_var":"V1","field_ref":"id"},{"env_var":"V2","field_ref":"version"},{"env_var":"V3","field_ref":"app_name"},
			 {"env_var":"V4","field_ref":"private_ip"},{"env_var":"V5","field_ref":"region"},{"env_var":"V6","field_ref":"image"},{"env_var":"A","field_ref":"id"}],"env":{"A":"process"}}]`,
			[]string{"V1=0123456789abcd", "V2=01J", "V3=web", "V4=fdaa:0:1::2", "V5=loc", "V6=r/n:1", "A=process"},
			"",
		},
		{"platform over all", `,"processes":[{"env":{"FLY_APP_NAME":"x","PLATFORM_APP_NAME":"y"}}]`, []string{"FLY_APP_NAME=web", "PLATFORM_APP_NAME=web"}, ""},
		{"container", `,"env":{"C":"env"},"containers":[{"env":{"A":"k"},"secrets":[{"env_var":"S","name":"KEY"}]}]`, []string{"A=k", "S=k", "C=env"}, ""},
		{"memory", `,"guest":{"memory_mb":256,"max_memory_mb":512}`, []string{"FLY_VM_MEMORY_MB=512"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Resolve(testImage, testMachine(t, tt.properties), secrets, netip.Addr{})
			if err != nil {
				t.Fatal(err)
			}
			env := got[0].Env
			for _, want := range tt.want {
				if !slices.Contains(env, want) {
					t.Errorf("environment lacks %q: %q", want, env)
				}
			}
			if tt.lacks != "" && slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, tt.lacks) }) {
				t.Errorf("environment has %q: %q", tt.lacks, env)
			}
		})
	}
}

func TestProcessErrors(t *testing.T) {
	for _, tt := range []struct{ name, properties, want string }{
		{"secret", `,"processes":[{},{"secrets":[{"env_var":"A","name":"NONE"}]}]`, `config.processes[1]: the app has no secret "NONE", which the variable A is made of`},
		{"secret of a container", `,"containers":[{"secrets":[{"env_var":"A"}]}]`, `the app has no secret "A"`},
		{"user", `,"processes":[{},{"user":"nobody-here"}]`, `config.processes[1]: cannot run as user "nobody-here"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Resolve(testImage, testMachine(t, tt.properties), nil, netip.Addr{})
			if hangar.ReasonOf(err) != hangar.ReasonBadConfig || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Resolve: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFiles(t *testing.T) {
	secrets := map[string]string{"GOOD": "aGVsbG8=\n", "BAD": "%"}
	got, err := Files(testMachine(t, `,"files":[{"guest_path":"/a","raw_value":"aGk=","mode":256},{"guest_path":"/b","secret_name":"GOOD"}],
		"containers":[{"files":[{"guest_path":"/c"}]}]`), secrets)
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, want := range []File{{"/a", []byte("hi"), 0o400}, {"/b", []byte("hello"), 0o644}, {"/c", nil, 0o644}} {
		if f := got[i]; f.Path != want.Path || string(f.Content) != string(want.Content) || f.Mode != want.Mode {
			t.Errorf("file %+v, want %+v", f, want)
		}
	}
	for name, want := range map[string]string{"NONE": "has no secret", "BAD": "base64"} {
		_, err := Files(testMachine(t, `,"files":[{"guest_path":"/a","secret_name":"`+name+`"}]`), secrets)
		if hangar.ReasonOf(err) != hangar.ReasonBadConfig || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/a") {
			t.Errorf("file of the secret %s: %v", name, err)
		}
	}
}

func TestEtc(t *testing.T) {
	plain := testMachine(t, ``)
	dns := testMachine(t, `,"dns":{"nameservers":["1.1.1.1","fdaa::3"],"searches":["a.internal","b"],"options":[{"name":"ndots","value":"2"},{"name":"edns0"}],
		"hostname":"web-1","hostname_fqdn":"web-1.example.com.","skip_registration":true}`)
	for _, tt := range []struct{ name, got, want string }{
		{"resolv.conf", ResolvConf(plain, []string{"10.0.0.1"}), "nameserver 10.0.0.1\n"},
		{"resolv.conf with all", ResolvConf(dns, []string{"10.0.0.1"}), "search a.internal b\nnameserver 1.1.1.1\nnameserver fdaa::3\noptions ndots:2 edns0\n"},
		{"hostname", EtcHostname(plain), "0123456789abcd\n"},
		{"hostname of its own", EtcHostname(dns), "web-1\n"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %q, want %q", tt.name, tt.got, tt.want)
		}
	}
	for m, want := range map[*hangar.Machine]string{
		plain: "fdaa:0:1::2\t0123456789abcd fly-local-6pn platform-local-6pn\n",
		dns:   "fdaa:0:1::2\tweb-1.example.com web-1 0123456789abcd fly-local-6pn platform-local-6pn\n",
	} {
		if got, err := EtcHosts(Image{}, m, netip.Addr{}); err != nil || !strings.Contains(got, want) || !strings.HasPrefix(got, "127.0.0.1\tlocalhost\n") {
			t.Errorf("hosts is %q, %v, want the line %q", got, err, want)
		}
	}
}

func TestHostsOfImages(t *testing.T) {
	const (
		local4 = "127.0.0.1\tlocalhost\n"
		local6 = "::1\tlocalhost ip6-localhost ip6-loopback\n"
		own    = "10.0.0.7\tfly-global-services platform-global-services\nfdaa:0:1::2\t0123456789abcd fly-local-6pn platform-local-6pn\n"
	)
	for name, tt := range map[string]struct{ image, want string }{
		"empty":       {"", local4 + local6 + own},
		"entries":     {"192.0.2.7 database\n", "192.0.2.7 database\n" + local4 + local6 + own},
		"no last end": {"192.0.2.7 database", "192.0.2.7 database\n" + local4 + local6 + own},
		"localhost":   {"127.0.0.1 me localhost # localhost\n::1 localhost\n", "127.0.0.1 me localhost # localhost\n::1 localhost\n" + own},
		"one kind":    {"::1 localhost\n", "::1 localhost\n" + local4 + own},
		"comment":     {"# 127.0.0.1 localhost\nbad localhost\n", "# 127.0.0.1 localhost\nbad localhost\n" + local4 + local6 + own},
	} {
		img := Image{Layers: []string{layer(t, map[string]string{"etc/hosts": tt.image})}}
		if got, err := EtcHosts(img, testMachine(t, ``), netip.MustParseAddr("10.0.0.7")); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
	img := Image{Layers: []string{layer(t, map[string]string{"etc/hosts": strings.Repeat("#\n", maxHosts/2+1)})}}
	if _, err := EtcHosts(img, testMachine(t, ``), netip.Addr{}); hangar.ReasonOf(err) != hangar.ReasonBadConfig {
		t.Errorf("hosts without end: %v", err)
	}
}

func TestRoles(t *testing.T) {
	long := testMachine(t, `,"env":{"AWS_ROLE_ARN":"arn:aws:iam::1:role/r"}`)
	long.App = hangar.AppName(strings.Repeat("a", 63))
	for name, tt := range map[string]struct {
		m             *hangar.Machine
		secrets       map[string]string
		assumes       bool
		file, session string
	}{
		"none":   {m: testMachine(t, ``)},
		"empty":  {m: testMachine(t, `,"env":{"AWS_ROLE_ARN":""}`)},
		"config": {testMachine(t, `,"env":{"AWS_ROLE_ARN":"a"}`), nil, true, "/.fly/oidc_token", "web-0123456789abcd"},
		"secret": {testMachine(t, ``), map[string]string{"AWS_ROLE_ARN": "a"}, true, "/.fly/oidc_token", "web-0123456789abcd"},
		"own": {
			testMachine(t, `,"env":{"AWS_ROLE_ARN":"a","AWS_ROLE_SESSION_NAME":"mine","AWS_WEB_IDENTITY_TOKEN_FILE":"/my/token"}`), nil,
			true, "/my/token", "mine",
		},
		"long": {long, nil, true, "/.fly/oidc_token", strings.Repeat("a", 49) + "-0123456789abcd"},
	} {
		got, err := Resolve(testImage, tt.m, tt.secrets, netip.Addr{})
		if err != nil || AssumesRole(got) != tt.assumes {
			t.Errorf("%s: assumes %t, %v", name, AssumesRole(got), err)
		}
		for _, v := range got[0].Env {
			variable, value, _ := strings.Cut(v, "=")
			if variable == "AWS_WEB_IDENTITY_TOKEN_FILE" && value != tt.file || variable == "AWS_ROLE_SESSION_NAME" && value != tt.session {
				t.Errorf("%s: %s", name, v)
			}
		}
	}
	processes, err := Resolve(testImage, testMachine(t, `,"processes":[{},{"env":{"AWS_ROLE_ARN":"a"}}]`), nil, netip.Addr{})
	if err != nil || !AssumesRole(processes) || AssumesRole(processes[:1]) {
		t.Errorf("a role of the second process: %+v, %v", processes, err)
	}
}
