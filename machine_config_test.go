package hangar_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestParseMachineConfigEcho(t *testing.T) {
	for _, test := range []struct{ name, sent, want string }{
		{"defaults", `{"image":"a"}`, `{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{}}`},
		{"nulls", `{"image":"a","guest":null,"init":null,"env":null,"size":""}`, `{"env":null,"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{}}`},
		{"partial guest", `{"image":"a","guest":{"cpus":2,"x":1}}`, `{"guest":{"cpu_kind":"shared","cpus":2,"memory_mb":512,"x":1},"image":"a","init":{}}`},
		{"performance", `{"image":"a","guest":{"cpu_kind":"performance"}}`, `{"guest":{"cpu_kind":"performance","cpus":1,"memory_mb":2048},"image":"a","init":{}}`},
		{"size", `{"image":"a","size":"shared-cpu-4x"}`, `{"guest":{"cpu_kind":"shared","cpus":4,"memory_mb":1024},"image":"a","init":{}}`},
		{"size and the same guest", `{"image":"a","size":"performance-2x","guest":{"cpu_kind":"performance","cpus":2,"memory_mb":4096}}`, `{"guest":{"cpu_kind":"performance","cpus":2,"memory_mb":4096},"image":"a","init":{}}`},
		{
			"durations", `{"image":"a","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"stop_config":{"timeout":15000000000,"signal":"SIGTERM"},
			 "checks":{"c":{"type":"tcp","port":1,"interval":"90s","timeout":null}}}`,
			`{"checks":{"c":{"interval":"1m30s","port":1,"timeout":null,"type":"tcp"}},"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"stop_config":{"signal":"SIGTERM","timeout":"15s"}}`,
		},
		{
			"signals", `{"image":"a","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"stop_config":{"signal":15}}`,
			`{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"stop_config":{"signal":"SIGTERM"}}`,
		},
		{
			"no signal", `{"image":"a","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"stop_config":{"signal":{}}}`,
			`{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"stop_config":{"signal":null}}`,
		},
		{
			"headers", `{"image":"a","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"checks":{"c":{"type":"http","port":1,"headers":{"B":["x","y"],"A":"z"}}}}`,
			`{"checks":{"c":{"headers":[{"name":"A","values":["z"]},{"name":"B","values":["x","y"]}],"port":1,"type":"http"}},"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{}}`,
		},
		{
			"services", `{"image":"a","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"services":[
			 {"internal_port":1,"autostop":"off"},{"internal_port":2,"autostop":"stop","force_instance_key":null},{"internal_port":3,"autostop":"suspend","checks":[{"type":"tcp","interval":1000000000}]}]}`,
			`{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a","init":{},"services":[{"autostop":false,"internal_port":1},{"autostop":true,"force_instance_key":null,"internal_port":2},{"autostop":"suspend","checks":[{"interval":"1s","type":"tcp"}],"internal_port":3}]}`,
		},
		{"unknown", `{"image":"a<&>","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"init":{},"x":{"n":1.50,"big":123456789012345678901234567890,"t":9}}`, `{"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"a<&>","init":{},"x":{"big":123456789012345678901234567890,"n":1.50,"t":9}}`},
	} {
		c, err := hangar.ParseMachineConfig([]byte(test.sent))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		got, err := c.MarshalJSON()
		if err != nil || string(got) != test.want {
			t.Errorf("%s: echoed %s, %v\nwant %s", test.name, got, err, test.want)
		}
		again, err := hangar.ParseMachineConfig(got)
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("%s: parsing the echo gives %+v, %v", test.name, again, err)
		}
	}
}

func TestMachineConfigChangedInGo(t *testing.T) {
	const sent = `{"image":"a","x":1,"env":{"A":"1","B":"2"},"auto_destroy":false,
		"services":[{"internal_port":80,"force_instance_key":null,"ports":[{"port":80,"http_options":{"compress":true}}]}]}`
	c, err := hangar.ParseMachineConfig([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	c.Image = "b"
	c.Env["C"] = "3"
	delete(c.Env, "A")
	c.AutoDestroy = true
	c.Services[0].InternalPort = 8080
	c.SetMetadata(map[string]string{"k": "v"})
	const want = `{"auto_destroy":true,"env":{"B":"2","C":"3"},"guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"image":"b","init":{},"metadata":{"k":"v"},` +
		`"services":[{"force_instance_key":null,"internal_port":8080,"ports":[{"http_options":{"compress":true},"port":80}]}],"x":1}`
	got, err := c.MarshalJSON()
	if err != nil || string(got) != want {
		t.Errorf("written as %s, %v\nwant %s", got, err, want)
	}
	c.SetMetadata(nil)
	got, err = c.MarshalJSON()
	if err != nil || strings.Contains(string(got), "metadata") {
		t.Errorf("metadata that was removed is written: %s, %v", got, err)
	}
}

func TestMachineConfigBuiltInGo(t *testing.T) {
	c := hangar.MachineConfig{Image: "a", Size: "shared-cpu-2x", Init: hangar.Init{Exec: []string{"sh"}}}
	if err := c.Normalize(); err != nil {
		t.Fatal(err)
	}
	if c.Size != "" || c.Guest == nil || c.Guest.CPUs != 2 || c.Guest.MemoryMB != 512 || c.Init.Exec[0] != "sh" {
		t.Errorf("normalised to %+v, guest %+v", c, c.Guest)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if err := (&hangar.MachineConfig{Image: "a"}).Validate(); hangar.ReasonOf(err) != hangar.ReasonBadConfig {
		t.Errorf("a config without guest is valid: %v", err)
	}
	raw, err := json.Marshal(hangar.MachineConfig{Image: "a"})
	if err != nil || string(raw) != `{"image":"a","init":{}}` {
		t.Errorf("written as %s, %v", raw, err)
	}
}

func TestParseMachineConfigRefuses(t *testing.T) {
	bad, unsupported := hangar.ReasonBadConfig, hangar.ReasonUnsupported
	for _, test := range []struct{ properties, path, reason string }{
		{`"image":""`, "config.image", bad},
		{`"image":"a b"`, "config.image", bad},
		{`"image":5`, "config.image", bad},
		{`"guest":[]`, "config.guest", bad},
		{`"guest":{"cpu_kind":"turbo"}`, "config.guest.cpu_kind", bad},
		{`"guest":{"cpu_kind":1}`, "config.guest.cpu_kind", bad},
		{`"guest":{"cpus":129}`, "config.guest.cpus", bad},
		{`"guest":{"cpus":-1}`, "config.guest.cpus", bad},
		{`"guest":{"cpus":1.5}`, "config.guest.cpus", bad},
		{`"guest":{"memory_mb":300}`, "config.guest.memory_mb", bad},
		{`"guest":{"memory_mb":-256}`, "config.guest.memory_mb", bad},
		{`"guest":{"memory_mb":262400}`, "config.guest.memory_mb", bad},
		{`"guest":{"memory_mb":"256"}`, "config.guest.memory_mb", bad},
		{`"guest":{"gpu_kind":"a10"}`, "config.guest.gpu_kind", unsupported},
		{`"guest":{"gpus":1}`, "config.guest.gpus", unsupported},
		{`"guest":{"host_dedication_id":"h"}`, "config.guest.host_dedication_id", unsupported},
		{`"size":"huge"`, "config.size", bad},
		{`"size":"shared-cpu-1x","guest":{"memory_mb":512}`, "config.size", bad},
		{`"env":{"":"x"}`, "config.env", bad},
		{`"env":{"A=B":"x"}`, "config.env", bad},
		{`"env":{"A":"\u0000"}`, "config.env.A", bad},
		{`"env":{"A":1}`, "config.env", bad},
		{`"env":{"A":"` + strings.Repeat("x", 131_070) + `"}`, "config.env.A", bad},
		{`"env":{"A":"` + strings.Repeat("x", 100_000) + `","B":"` + strings.Repeat("x", 100_000) + `","C":"` + strings.Repeat("x", 100_000) + `"}`, "config.env", bad},
		{`"init":{"exec":[""]}`, "config.init.exec[0]", bad},
		{`"init":{"cmd":["a","\u0000"]}`, "config.init.cmd[1]", bad},
		{`"init":{"swap_size_mb":-1}`, "config.init.swap_size_mb", bad},
		{`"swap_size_mb":65537`, "config.swap_size_mb", bad},
		{`"init":{"swap_size_mb":"1G"}`, "config.init.swap_size_mb", bad},
		{`"guest":{"memory_mb":512,"max_memory_mb":256}`, "config.guest.max_memory_mb", bad},
		{`"guest":{"memory_mb":512,"max_memory_mb":1000}`, "config.guest.max_memory_mb", bad},
		{`"rootfs":{"size_gb":501}`, "config.rootfs.size_gb", bad},
		{`"metadata":{"":"x"}`, "config.metadata", bad},
		{`"metadata":{"k":"` + strings.Repeat("x", 4097) + `"}`, "config.metadata.k", bad},
		{`"metadata":{"` + strings.Repeat("x", 257) + `":""}`, "config.metadata", bad},
		{`"services":[{"internal_port":0}]`, "config.services[0].internal_port", bad},
		{`"services":[{"internal_port":1},{"internal_port":65536}]`, "config.services[1].internal_port", bad},
		{`"services":[{"internal_port":1,"protocol":"sctp"}]`, "config.services[0].protocol", bad},
		{`"services":[{"internal_port":1,"autostop_after":"500ms"}]`, "config.services[0].autostop_after", bad},
		{`"services":[{"internal_port":1,"autostop_after":"25h"}]`, "config.services[0].autostop_after", bad},
		{`"services":[{"internal_port":1,"autostop":"maybe"}]`, "config.services[0].autostop", bad},
		{`"services":[{"internal_port":1,"ports":[{"port":80},{"port":-1}]}]`, "config.services[0].ports[1].port", bad},
		{`"services":[{"internal_port":1,"ports":[{"start_port":9,"end_port":8}]}]`, "config.services[0].ports[0].end_port", bad},
		{`"services":[{"internal_port":1,"ports":[{"port":80,"handlers":["smtp"]}]}]`, "config.services[0].ports[0].handlers[0]", bad},
		{`"services":[{"internal_port":1,"checks":[{"type":"icmp"}]}]`, "config.services[0].checks[0].type", bad},
		{`"services":[{"internal_port":1,"concurrency":{"type":"users"}}]`, "config.services[0].concurrency.type", bad},
		{`"checks":{"c":{"type":"tcp"}}`, "config.checks.c.port", bad},
		{`"checks":{"c":{"type":"tcp","port":1,"interval":"1ms"}}`, "config.checks.c.interval", bad},
		{`"checks":{"c":{"type":"tcp","port":1,"interval":"soon"}}`, "config.checks.c.interval", bad},
		{`"files":[{"guest_path":"etc/x"}]`, "config.files[0].guest_path", bad},
		{`"files":[{"guest_path":"/etc/../x"}]`, "config.files[0].guest_path", bad},
		{`"files":[{"guest_path":"/x","raw_value":"%%%"}]`, "config.files[0].raw_value", bad},
		{`"files":[{"guest_path":"/x","raw_value":[]}]`, "config.files[0].raw_value", bad},
		{`"services":[{"internal_port":80,"ports":[{"port":80,"tls_options":5}]}]`, "config.services.ports.tls_options", bad},
		{`"checks":{"c":{"type":"http","port":1,"headers":5}}`, "config.checks.headers", bad},
		{`"files":[{"guest_path":"/x","secret_name":"s","raw_value":"aGk="}]`, "config.files[0].secret_name", bad},
		{`"files":[{"guest_path":"/x","secret_name":"a b"}]`, "config.files[0].secret_name", bad},
		{`"files":[{"guest_path":"/dev/shm/x"}]`, "config.files[0].guest_path", bad},
		{`"files":[{"guest_path":"/.hangar/init"}]`, "config.files[0].guest_path", bad},
		{`"files":[{"guest_path":"/x","mode":4096}]`, "config.files[0].mode", bad},
		{`"files":[{"guest_path":"/x"},{"guest_path":"/y","image_config":"z"}]`, "config.files[1].image_config", unsupported},
		{`"restart":{"policy":"sometimes"}`, "config.restart.policy", bad},
		{`"restart":{"policy":"spot-price"}`, "config.restart.policy", unsupported},
		{`"restart":{"policy":"no","max_retries":-1}`, "config.restart.max_retries", bad},
		{`"stop_config":{"timeout":"301s"}`, "config.stop_config.timeout", bad},
		{`"stop_config":{"signal":"SIGNOTHING"}`, "config.stop_config.signal", bad},
		{`"rootfs":{"persist":"sometimes"}`, "config.rootfs.persist", bad},
		{`"metrics":{"port":0,"path":"/"}`, "config.metrics.port", bad},
		{`"statics":[{"guest_path":"x","url_prefix":"/"}]`, "config.statics[0].guest_path", bad},
		{`"mounts":[{"path":"/data"}]`, "config.mounts[0].volume", bad},
		{`"mounts":[{"volume":"vol_1","path":"/data"}]`, "config.mounts[0].volume", bad},
		{`"mounts":[{"volume":"VOL_0123456789abcdef","path":"/data"}]`, "config.mounts[0].volume", bad},
		{mounts(`"path":""`), "config.mounts[0].path", bad},
		{mounts(`"path":"data"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/data/"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/data/../x"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/da\u0000ta"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/da\nta"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/proc"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/dev/shm"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/.fly"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/.platform/x"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/` + strings.Repeat("x", 5000) + `"`), "config.mounts[0].path", bad},
		{mounts(`"path":"/data","size_gb":-1`), "config.mounts[0].size_gb", bad},
		{mounts(`"path":"/data","size_gb":"1"`), "config.mounts.size_gb", bad},
		{mounts(`"path":"/data","extend_threshold_percent":101,"add_size_gb":1`), "config.mounts[0].extend_threshold_percent", bad},
		{mounts(`"path":"/data","extend_threshold_percent":-1`), "config.mounts[0].extend_threshold_percent", bad},
		{mounts(`"path":"/data","extend_threshold_percent":80`), "config.mounts[0].add_size_gb", bad},
		{mounts(`"path":"/data","add_size_gb":1`), "config.mounts[0].add_size_gb", bad},
		{mounts(`"path":"/data","extend_threshold_percent":80,"add_size_gb":501`), "config.mounts[0].add_size_gb", bad},
		{mounts(`"path":"/data","size_gb_limit":10`), "config.mounts[0].size_gb_limit", bad},
		{mounts(`"path":"/data"`, `"path":"/more"`), "config.mounts[1].volume", bad},
		{`"mounts":[{"volume":"vol_0123456789abcdef","path":"/data"},{"volume":"vol_0123456789abcdeg","path":"/data/x"}]`, "config.mounts[1].path", bad},
		{`"mounts":[{"volume":"vol_0123456789abcdef","path":"/data/x"},{"volume":"vol_0123456789abcdeg","path":"/data"}]`, "config.mounts[1].path", bad},
		{`"mounts":[` + strings.Repeat(`{},`, hangar.MaxMounts) + `{}]`, "config.mounts", bad},
		{`"schedule":"yearly"`, "config.schedule", bad},
		{`"standbys":["web"]`, "config.standbys[0]", bad},
		{`"standbys":["00000000000000","00000000000000"]`, "config.standbys[1]", bad},
		{`"standbys":["00000000000000"],"services":[{"internal_port":1}]`, "config.standbys", bad},
		{`"standbys":["00000000000000"],"schedule":"daily"`, "config.standbys", bad},
		{`"checks":{"c":{"type":"tcp","port":1,"timeout":"2m"}}`, "config.checks.c.timeout", bad},
		{`"checks":{"c":{"type":"http","port":1,"path":"/a b"}}`, "config.checks.c.path", bad},
		{`"checks":{"c":{"type":"http","port":1,"method":"G T"}}`, "config.checks.c.method", bad},
		{`"checks":{"c":{"type":"http","port":1,"tls_server_name":"a b"}}`, "config.checks.c.tls_server_name", bad},
		{`"checks":{"c":{"type":"http","port":1,"headers":{"a:b":"c"}}}`, "config.checks.c.headers[0].name", bad},
		{`"checks":{"c":{"type":"http","port":1,"headers":[{"name":"A","values":["b","c\nd"]}]}}`, "config.checks.c.headers[0].values[1]", bad},
		{`"processes":[` + strings.Repeat(`{},`, hangar.MaxProcesses) + `{}]`, "config.processes", bad},
		{`"processes":[{},{}],"init":{"tty":true}`, "config.init.tty", unsupported},
		{`"processes":[{},{"exec":[""]}]`, "config.processes[1].exec[0]", bad},
		{`"processes":[{"cmd":["\u0000"]}]`, "config.processes[0].cmd[0]", bad},
		{`"processes":[{"user":"a b"}]`, "config.processes[0].user", bad},
		{`"processes":[{"env":{"A=":"x"}}]`, "config.processes[0].env", bad},
		{`"processes":[{"env":{"A":"\u0000"}}]`, "config.processes[0].env.A", bad},
		{`"processes":[{"env_from":[{"env_var":"A","field_ref":"secret"}]}]`, "config.processes[0].env_from[0].field_ref", bad},
		{`"processes":[{"env_from":[{"env_var":"1A","field_ref":"id"}]}]`, "config.processes[0].env_from[0].env_var", bad},
		{`"processes":[{"secrets":[{"env_var":"A"},{"name":"A"}]}]`, "config.processes[0].secrets[1].env_var", bad},
		{`"processes":[{"secrets":[{"env_var":"A-B"}]}]`, "config.processes[0].secrets[0].env_var", bad},
		{`"processes":[{"secrets":[{"env_var":"A","name":"a b"}]}]`, "config.processes[0].secrets[0].name", bad},
		{`"processes":[{"secrets":"A"}]`, "config.processes.secrets", bad},
		{`"processes":[{"Exec":["a"]}]`, "config.processes[0].Exec", bad},
		{`"dns":{"nameservers":["one"]}`, "config.dns.nameservers[0]", bad},
		{`"dns":{"searches":["a b"]}`, "config.dns.searches[0]", bad},
		{`"dns":{"options":[{"name":"ndots","value":"1\nnameserver 1.2.3.4"}]}`, "config.dns.options[0].value", bad},
		{`"dns":{"options":[{"value":"1"}]}`, "config.dns.options[0].name", bad},
		{`"dns":{"hostname":"-a"}`, "config.dns.hostname", bad},
		{`"dns":{"hostname_fqdn":"a..b"}`, "config.dns.hostname_fqdn", bad},
		{`"dns":{"dns_forward_rules":[{"basename":"corp","addr":"10.0.0.1"}]}`, "config.dns.dns_forward_rules", unsupported},
		{`"image":"","containers":[{"name":"a"}]`, "config.image", bad},
		{`"containers":[{"image":"a b"}]`, "config.containers[0].image", bad},
		{`"containers":[{"exec":[""]}]`, "config.containers[0].exec[0]", bad},
		{`"containers":[{}],"processes":[{}]`, "config.processes", bad},
		{`"containers":[{"depends_on":[{"name":"b"}]}]`, "config.containers[0].depends_on", bad},
		{`"containers":[{"healthchecks":[{"name":"h"}]}]`, "config.containers[0].healthchecks", unsupported},
		{`"containers":[{"mounts":[{"name":"v","path":"/v"}]}]`, "config.containers[0].mounts", unsupported},
		{`"containers":[{"files":[{"guest_path":"x"}]}]`, "config.containers[0].files[0].guest_path", bad},
		{`"containers":[{"restart":{"policy":"sometimes"}}]`, "config.containers[0].restart.policy", bad},
		{`"containers":[{"stop":{"timeout":"301s"}}]`, "config.containers[0].stop.timeout", bad},
		{`"containers":[{"stop":{"signal":"SIGNOTHING"}}]`, "config.containers[0].stop.signal", bad},
		{`"containers":[{"name":"a"},{"name":"b"}]`, "config.containers", unsupported},
		{`"volumes":[{"name":"a"}]`, "config.volumes", unsupported},
		{`"Image":"a"`, "config.Image", bad},
		{`"guest":{"CPUs":2}`, "config.guest.CPUs", bad},
		{`"deep":` + strings.Repeat("[", 100) + strings.Repeat("]", 100), "config.deep", bad},
		{`"big":"` + strings.Repeat("x", hangar.MaxConfigBytes) + `"`, "config", bad},
	} {
		sent := `{"image":"a",` + test.properties + `}`
		c, err := hangar.ParseMachineConfig([]byte(sent))
		name := test.properties[:min(len(test.properties), 80)]
		var e *hangar.Error
		switch {
		case !errors.As(err, &e):
			t.Errorf("%s: accepted as %+v, %v", name, c, err)
		case e.Code != hangar.CodeInvalid || e.Reason != test.reason || !strings.HasPrefix(e.Message, "invalid "+test.path):
			t.Errorf("%s: refused with %s %q %q, want %q about %s", name, e.Code, e.Reason, e.Message[:min(len(e.Message), 200)], test.reason, test.path)
		}
	}
}

func TestParseMachineConfigAccepts(t *testing.T) {
	for _, properties := range []string{
		`"schedule":"hourly"`, `"standbys":["0123456789abcd"]`,
		`"checks":{"c":{"type":"HTTP","port":1,"method":"get","path":"/a?b=%20c","tls_server_name":"a.test","headers":{"X-A":["b c"]}}}`,
		mounts(`"path":"/data"`), mounts(`"path":"/var/lib/data","name":"data","encrypted":true,"size_gb":3`),
		mounts(`"path":"/data","extend_threshold_percent":80,"add_size_gb":1,"size_gb_limit":10`),
		`"mounts":[],"processes":[],"standbys":[],"containers":null,"schedule":""`,
		`"dns":{"skip_registration":true},"metrics":{"port":9091,"path":"/metrics"},"statics":[{"guest_path":"/a","url_prefix":"/b"}]`,
		`"files":[{"guest_path":"/etc/x","raw_value":"aGk=","mode":420}]`,
		`"rootfs":{"persist":2},"persist_rootfs":"always","guest":{"persist_rootfs":"never"}`,
		`"stop_config":{"signal":{"signal":"SIGTERM"},"timeout":"300s"}`,
		`"stop_config":{"signal":null,"timeout":null}`,
		`"restart":{"policy":"on-failure","max_retries":3}`,
		`"services":[{"internal_port":1,"ports":[{"start_port":1000,"end_port":2000}],"checks":[{"type":"http","path":"/x","headers":[{"name":"A","values":["b"]}]}]}]`,
		`"guest":{"cpus":128,"memory_mb":262144,"cpu_kind":"performance","kernel_args":["a"]}`,
		`"guest":{"cpus":1,"memory_mb":256,"max_memory_mb":1024},"init":{"swap_size_mb":512,"kernel_args":["a"],"tty":true},"swap_size_mb":0`,
		`"rootfs":{"size_gb":8,"persist":"restart"}`,
		`"processes":[{"exec":["a"],"env":{"A":"b"},"user":"1:2"},{"cmd":["b"],"secrets":[{"env_var":"A_1","name":"b-c"}],"env_from":[{"env_var":"IP","field_ref":"private_ip"}],"ignore_app_secrets":true}]`,
		`"processes":[{}],"init":{"tty":true}`,
		`"dns":{"nameservers":["fdaa::3","8.8.8.8"],"searches":["internal.","a_b.c"],"options":[{"name":"ndots","value":"2"},{"name":"edns0"}],"hostname":"web","hostname_fqdn":"web.example.com"}`,
		`"files":[{"guest_path":"/device"},{"guest_path":"/system/x"}]`,
		`"files":[{"guest_path":"/etc/x","secret_name":"s","image_config":null}]`,
		`"containers":[{"name":"a","image":"b","depends_on":[],"healthchecks":[],"stop":{"timeout":10000000000,"signal":15},"x":1}]`,
	} {
		if _, err := hangar.ParseMachineConfig([]byte(`{"image":"a",` + properties + `}`)); err != nil {
			t.Errorf("%s: %v", properties, err)
		}
	}
	for _, size := range hangar.Presets() {
		if _, err := hangar.ParseMachineConfig([]byte(`{"image":"a","size":"` + size + `"}`)); err != nil {
			t.Errorf("size %s: %v", size, err)
		}
	}
}

func TestMachineConfigDefaults(t *testing.T) {
	c := hangar.MachineConfig{}
	if p, n := c.RestartPolicy(); p != hangar.RestartOnFailure || n != hangar.DefaultMaxRetries {
		t.Errorf("restart policy is %s, %d", p, n)
	}
	if c.StopSignal() != hangar.DefaultStopSignal || c.StopTimeout() != 5*time.Second || c.Persist() != hangar.PersistNever {
		t.Errorf("stops with %s after %s, persists %s", c.StopSignal(), c.StopTimeout(), c.Persist())
	}
	parsed, err := hangar.ParseMachineConfig([]byte(`{"image":"a","restart":{"policy":"always","max_retries":3},
		"stop_config":{"signal":15,"timeout":"2s"},"guest":{"persist_rootfs":"restart"},"rootfs":{"persist":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	if p, n := parsed.RestartPolicy(); p != hangar.RestartAlways || n != 0 {
		t.Errorf("restart policy is %s, %d", p, n)
	}
	if parsed.StopSignal().String() != "SIGTERM" || parsed.StopTimeout() != 2*time.Second || parsed.Persist() != hangar.PersistAlways {
		t.Errorf("stops with %s after %s, persists %s", parsed.StopSignal(), parsed.StopTimeout(), parsed.Persist())
	}
}

func TestCanSuspend(t *testing.T) {
	for _, test := range []struct {
		config hangar.MachineConfig
		want   string
	}{
		{hangar.MachineConfig{}, ""},
		{hangar.MachineConfig{Guest: &hangar.Guest{MemoryMB: 2048}}, ""},
		{hangar.MachineConfig{Guest: &hangar.Guest{MemoryMB: 2304}}, "2304 MB"},
		{hangar.MachineConfig{Guest: &hangar.Guest{GPUs: 1}}, "GPU"},
		{hangar.MachineConfig{Init: hangar.Init{SwapSizeMB: 1}}, "swap"},
		{hangar.MachineConfig{Schedule: "daily"}, "schedule"},
	} {
		err := test.config.CanSuspend()
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || hangar.CodeOf(err) != hangar.CodeFailedPrecondition) {
			t.Errorf("%+v: %v, want %q", test.config, err, test.want)
		}
	}
}

func FuzzParseMachineConfig(f *testing.F) {
	for _, seed := range []string{
		`{"image":"nginx"}`, `{"image":"a","size":"shared-cpu-2x"}`, `{"image":"a","guest":{"cpus":2},"x":[1,{"y":null}]}`,
		`{"image":"a","services":[{"internal_port":80,"autostop":"off","checks":[{"type":"tcp","interval":1}]}]}`,
		`{"image":"a","stop_config":{"timeout":"1h","signal":{"signal":9}}}`, `[]`, `null`, `{"image":1e999}`, `{"IMAGE":"x"}`,
		`{"image":"a","image":"b","env":{"A":"\ud800","A":null},"metadata":{"a":"b"},"init":{"exec":["x"],"tty":null},"restart":{"policy":"no","max_retries":1}}`,
		`{"image":"a","checks":{"c":{"type":"http","port":80,"path":"/","interval":"90","headers":{"A":["b"]}}},"metrics":{"port":1,"path":"/"},"statics":[{"guest_path":"/","url_prefix":"/"}]}`,
		`{"image":"a","files":[{"guest_path":"/x","raw_value":"eA==","mode":420}],"dns":{"options":[{"name":"ndots"}]},"rootfs":{"persist":1},"persist_rootfs":"always"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := hangar.ParseMachineConfig(raw)
		if err != nil {
			if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.HasPrefix(err.Error(), "invalid config") {
				t.Fatalf("refused with %s, without a property: %v", hangar.CodeOf(err), err)
			}
			return
		}
		echo, err := c.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		again, err := hangar.ParseMachineConfig(echo)
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("the echo %s is read as %+v, %v", echo, again, err)
		}
		for range 2 {
			if err := errors.Join(again.Normalize(), again.Validate()); err != nil {
				t.Fatalf("the echo %s becomes invalid: %v", echo, err)
			}
		}
		if second, err := again.MarshalJSON(); err != nil || string(second) != string(echo) {
			t.Fatalf("the echo of %s is %s, %v", echo, second, err)
		}
		c.SetMetadata(map[string]string{"fuzzed": "yes"})
		if c.Metadata["fuzzed"] != "yes" {
			t.Fatal("metadata is lost")
		}
		changed, err := c.MarshalJSON()
		if err != nil || !strings.Contains(string(changed), `"fuzzed":"yes"`) {
			t.Fatalf("metadata is not written: %s, %v", changed, err)
		}
	})
}

func BenchmarkMachineConfig(b *testing.B) {
	raw := []byte(`{"image":"nginx:alpine","env":{"A":"1","B":"2"},"services":[{"internal_port":80,"ports":[{"port":80,"handlers":["http"]},{"port":443,"handlers":["tls","http"]}]}],"metadata":{"role":"web"}}`)
	b.Run("parse", func(b *testing.B) {
		for b.Loop() {
			if _, err := hangar.ParseMachineConfig(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	c, err := hangar.ParseMachineConfig(raw)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("marshal", func(b *testing.B) {
		for b.Loop() {
			if _, err := json.Marshal(c); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// mounts returns the JSON of a list with one mount of one volume, with other properties.
func mounts(properties ...string) string {
	var list []string
	for _, p := range properties {
		list = append(list, `{"volume":"vol_0123456789abcdef",`+p+`}`)
	}
	return `"mounts":[` + strings.Join(list, ",") + `]`
}
