package spec_test

import (
	"fmt"
	"strings"
)

// keeps is a row of a property of the config that is accepted, kept and answered as it was
// sent.
func keeps(says, property string) row { return answers(says, property, property) }

// answers is a row of a property that is answered otherwise than it was sent.
func answers(says, sent, answered string) row {
	return row{says: says, do: `
		POST /v1/apps/$app/machines {"config": {"image": "$image", ` + sent + `}, "skip_launch": true}
		200 {"id": "<text as id>", "config": {"image": "$image", ` + answered + `}}
		GET /v1/apps/$app/machines/$id
		200 {"config": {` + answered + `}}`}
}

// refuses is a row of a property that breaks a rule: the error names it by its path, and no
// Machine is made.
func refuses(says, property, path string) row {
	return row{says: says, do: `
		POST /v1/apps/$app/machines {"config": {"image": "$image", ` + property + `}, "skip_launch": true}
		400 {"error": "~` + strings.NewReplacer("[", "\\\\[", "]", "\\\\]").Replace(path) + `"}
		GET /v1/apps/$app/machines
		200 []`}
}

// instead makes a row one of a deliberate difference.
func (r row) instead(differs string) row {
	r.differs = differs
	return r
}

// presets creates a Machine of each size.
func presets() string {
	var do strings.Builder
	size := func(kind string, perCPU int, counts ...int) {
		for _, n := range counts {
			fmt.Fprintf(&do, `POST /v1/apps/$app/machines {"config": {"image": "$image", "size": "%s-%dx"}, "skip_launch": true}
				200 {"config": {"guest": {"cpu_kind": "%s", "cpus": %d, "memory_mb": %d}}}
				`, map[string]string{"shared": "shared-cpu", "performance": "performance"}[kind], n, kind, n, n*perCPU)
		}
	}
	size("shared", 256, 1, 2, 4, 6, 8)
	size("performance", 2048, 1, 2, 4, 6, 8, 10, 12, 14, 16)
	return do.String()
}

func configRows() []row {
	return []row{
		answers("a Machine has one shared CPU and 256 MB unless its config says otherwise", `"env": {}`, `"guest": {"cpu_kind": "shared", "cpus": 1, "memory_mb": 256}`),
		answers("guest.cpus is 1 when it is not given", `"guest": {"memory_mb": 512}`, `"guest": {"cpus": 1, "memory_mb": 512}`),
		answers("guest.memory_mb is 256 when it is not given", `"guest": {"cpu_kind": "shared", "cpus": 1}`, `"guest": {"memory_mb": 256}`),
		answers("guest.memory_mb is 256 when it is not given, whatever the CPUs", `"guest": {"cpu_kind": "performance", "cpus": 2}`, `"guest": {"memory_mb": 4096}`).
			instead("it is 256 for each shared CPU and 2048 for each performance CPU, as in the presets that `size` names"),
		keeps("guest.cpu_kind may be performance", `"guest": {"cpu_kind": "performance", "cpus": 2, "memory_mb": 4096}`),
		refuses("guest.cpu_kind is shared or performance", `"guest": {"cpu_kind": "quantum"}`, "config.guest.cpu_kind"),
		keeps("guest.memory_mb may be any multiple of 256", `"guest": {"cpus": 1, "memory_mb": 768, "cpu_kind": "shared"}`),
		refuses("guest.memory_mb is a multiple of 256", `"guest": {"memory_mb": 384}`, "config.guest.memory_mb"),
		refuses("guest.memory_mb is not negative", `"guest": {"memory_mb": -256}`, "config.guest.memory_mb"),
		refuses("guest.cpus is not negative", `"guest": {"cpus": -1}`, "config.guest.cpus"),
		refuses("guest may have GPUs", `"guest": {"gpus": 1}`, "config.guest.gpus").
			instead("a config with GPUs is refused: sandboxes have none"),
		refuses("guest.host_dedication_id chooses a group of dedicated hosts", `"guest": {"host_dedication_id": "abc"}`, "config.guest.host_dedication_id").
			instead("it is refused: there are no dedicated hosts"),
		keeps("guest.kernel_args and init.kernel_args are passed to the kernel", `"guest": {"kernel_args": ["quiet"]}, "init": {"kernel_args": ["quiet"]}`).
			instead("they are kept and answered, and have no effect: a sandbox has no kernel command line"),
		answers("size names a preset: shared-cpu-2x has two shared CPUs", `"size": "shared-cpu-2x"`, `"guest": {"cpu_kind": "shared", "cpus": 2, "memory_mb": 512}`),
		answers("size names a preset: performance-2x has two CPUs of its own", `"size": "performance-2x"`, `"guest": {"cpu_kind": "performance", "cpus": 2, "memory_mb": 4096}`),
		answers("size is answered as guest", `"size": "shared-cpu-1x"`, `"size": "<absent>"`),
		refuses("size is the name of a preset", `"size": "enormous"`, "config.size"),
		refuses("size and guest exclude each other", `"size": "shared-cpu-2x", "guest": {"cpus": 4}`, "config.size"),
		answers("size and guest exclude each other even when they say the same", `"size": "shared-cpu-1x", "guest": {"cpus": 1, "memory_mb": 256}`, `"guest": {"cpus": 1, "memory_mb": 256}`).
			instead("it is accepted when both say the same, as clients send back what they have read"),
		keeps("auto_destroy is kept", `"auto_destroy": true`),
		keeps("env is kept", `"env": {"A": "1", "B": ""}`),
		keeps("metadata is kept", `"metadata": {"role": "front", "empty": ""}`),
		refuses("metadata has texts as values", `"metadata": {"role": 1}`, "config.metadata"),
		keeps("init.exec, entrypoint and cmd are kept", `"init": {"exec": ["sh", "-c", "sleep 5"], "entrypoint": ["a"], "cmd": ["b"]}`),
		keeps("init.tty is kept", `"init": {"tty": true}`),
		refuses("init.exec is a list of texts", `"init": {"exec": "sh"}`, "config.init.exec"),
		keeps("swap_size_mb stands in init", `"init": {"swap_size_mb": 256}`),
		keeps("restart.policy may be no", `"restart": {"policy": "no"}`),
		keeps("restart.policy may be always", `"restart": {"policy": "always"}`),
		keeps("restart.policy may be on-failure, with max_retries", `"restart": {"policy": "on-failure", "max_retries": 3}`),
		keeps("restart.policy is required with restart", `"restart": {"max_retries": 3}`).instead(
			"`restart` without `policy` is taken as `on-failure`, as `restart` left out is"),
		refuses("restart.policy is one of three", `"restart": {"policy": "sometimes"}`, "config.restart.policy"),
		keeps("schedule may be hourly", `"schedule": "hourly"`),
		keeps("schedule may be daily", `"schedule": "daily"`),
		keeps("schedule may be weekly", `"schedule": "weekly"`),
		keeps("schedule may be monthly", `"schedule": "monthly"`),
		refuses("schedule is one of four", `"schedule": "yearly"`, "config.schedule"),
		keeps("persist_rootfs may be restart", `"guest": {"persist_rootfs": "restart"}`),
		keeps("persist_rootfs may stand at the top of the config", `"persist_rootfs": "always"`),
		refuses("persist_rootfs is never, restart or always", `"persist_rootfs": "sometimes"`, "config.persist_rootfs"),
		answers("stop_config's timeout is in nanoseconds", `"stop_config": {"signal": "SIGTERM", "timeout": 10000000000}`, `"stop_config": {"signal": "SIGTERM", "timeout": "10s"}`),
		refuses("stop_config.signal is a signal", `"stop_config": {"signal": "SIGNOTHING"}`, "config.stop_config.signal"),
		keeps("metrics has a port and a path", `"metrics": {"port": 9091, "path": "/metrics"}`),
		refuses("metrics.port is required in metrics", `"metrics": {"path": "/metrics"}`, "config.metrics.port"),
		refuses("metrics.path is required in metrics", `"metrics": {"port": 9091}`, "config.metrics.path"),
		keeps("a process has an entrypoint, cmd, env and user", `"processes": [{"entrypoint": ["sh"], "cmd": ["-c", "sleep 5"], "env": {"A": "1"}, "user": "nobody"}]`),
		keeps("a process may have exec", `"processes": [{"exec": ["sleep", "5"]}]`),
		keeps("a Machine may have several processes", `"processes": [{"exec": ["sleep", "5"]}, {"exec": ["sleep", "6"]}]`),
		keeps("a process may take variables from properties of its Machine", `"processes": [{"env_from": [{"env_var": "ME", "field_ref": "id"}]}]`),
		refuses("a property that a variable is taken from must be one that there is", `"processes": [{"env_from": [{"env_var": "ME", "field_ref": "shoe_size"}]}]`, "config.processes[0].env_from[0].field_ref"),
		keeps("a process may have secrets under other names, and ignore those of the App", `"processes": [{"ignore_app_secrets": true, "secrets": [{"env_var": "A"}, {"env_var": "B", "name": "OTHER"}]}]`),
		refuses("a secret of a process needs env_var", `"processes": [{"secrets": [{"name": "OTHER"}]}]`, "config.processes[0].secrets[0].env_var"),
		refuses("env_var is a valid name of a variable", `"processes": [{"secrets": [{"env_var": "1 2"}]}]`, "config.processes[0].secrets[0].env_var"),
		keeps("statics have guest_path and url_prefix", `"statics": [{"guest_path": "/public", "url_prefix": "/static"}]`),
		refuses("url_prefix is required in statics", `"statics": [{"guest_path": "/public"}]`, "config.statics[0].url_prefix"),
		refuses("guest_path is required in statics", `"statics": [{"url_prefix": "/static"}]`, "config.statics[0].guest_path"),
		keeps("statics may be in object storage, with an index document", `"statics": [{"guest_path": "/", "url_prefix": "/static", "tigris_bucket": "files", "index_document": "index.html"}]`),
		refuses("an index document works only in object storage", `"statics": [{"guest_path": "/public", "url_prefix": "/static", "index_document": "index.html"}]`, "config.statics[0].index_document"),
		refuses("image is the path of an image in a registry", `"image": "not an image"`, "config.image"),
		refuses("image is a text", `"image": 7`, "config.image"),
		refuses("a standby has no services", `"standbys": ["00000000000000"], "services": [{"internal_port": 80}]`, "config.standbys"),
		keeps("unknown properties are kept", `"something_new": {"a": [1, true, null]}`),
		{
			says: "a standby stands by for a Machine and is not started",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "standbys": ["$machine.id"]}}
				200 {"id": "<text as id>", "config": {"standbys": ["$machine.id"]}}
				GET /v1/apps/$app/machines/$id/wait?state=settled
				200 {"state": "stopped"}`,
		},
		{
			says: "processes have their own environment, and variables from their Machine",
			with: `"env": {"SHARED": "1"},
					"processes": [{"exec": ["sleep", "1000"], "env": {"OWN": "2"}, "env_from": [{"env_var": "ME", "field_ref": "id"}]}]`,
			do: `POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?s)ME=$machine.id.*OWN=2.*SHARED=1"}`,
		},
		{
			says: "with ignore_app_secrets a process has those alone that it names",
			with: `"processes": [{"exec": ["sleep", "1000"], "ignore_app_secrets": true, "secrets": [{"env_var": "RENAMED", "name": "TAKEN"}]}]`,
			do: `POST /v1/apps/$app/secrets {"values": {"TAKEN": "1", "LEFT": "2"}}
				200
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~RENAMED=1"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "!~LEFT|TAKEN"}`,
		},
		keeps("guest.persist_rootfs may be never", `"guest": {"persist_rootfs": "never"}`),
		keeps("rootfs.persist is another place of persist_rootfs", `"rootfs": {"persist": "restart"}`),
		refuses("guest may have a kind of GPU", `"guest": {"gpu_kind": "a10"}`, "config.guest.gpu_kind").
			instead("a config with a kind of GPU is refused: sandboxes have no GPUs"),
		refuses("size may be a preset with GPUs", `"size": "a10"`, "config.size").
			instead("it is refused, as sandboxes have no GPUs"),
		keeps("swap_size_mb may stand at the top of the config", `"swap_size_mb": 256`),
		refuses("swap_size_mb is not negative", `"init": {"swap_size_mb": -1}`, "config.init.swap_size_mb"),
		answers("stop_config's timeout may be a text", `"stop_config": {"timeout": "10s"}`, `"stop_config": {"timeout": "10s"}`),
		keeps("files have a path and their content in base64, and secrets may be files", `"files": [{"guest_path": "/etc/a", "raw_value": "YQ==", "mode": 420}, {"guest_path": "/etc/b", "secret_name": "B"}]`),
		refuses("the path of a file is absolute", `"files": [{"guest_path": "etc/a", "raw_value": "YQ=="}]`, "config.files[0].guest_path"),
		refuses("the content of a file is base64", `"files": [{"guest_path": "/etc/a", "raw_value": "?"}]`, "config.files[0].raw_value"),
		keeps("dns says what names a Machine has and asks", `"dns": {"skip_registration": true, "nameservers": ["fdaa::3"], "searches": ["internal"], "options": [{"name": "ndots", "value": "2"}]}`),
		refuses("two statics have one url_prefix", `"statics": [{"guest_path": "/a", "url_prefix": "/static"}, {"guest_path": "/b", "url_prefix": "/static"}]`, "config.statics[1].url_prefix"),
		refuses("a Machine has 10 statics at most", `"statics": [`+strings.Repeat(`{"guest_path": "/a", "url_prefix": "/a"}, `, 10)+`{"guest_path": "/a", "url_prefix": "/a"}]`, "config.statics"),
		refuses("an environment has names without =", `"env": {"A=B": "1"}`, "config.env"),
		refuses("metadata has no empty keys", `"metadata": {"": "1"}`, "config.metadata"),
		refuses("the port of metrics is a port", `"metrics": {"port": 70000, "path": "/metrics"}`, "config.metrics.port"),
		refuses("standbys is a list of ids", `"standbys": ["not-an-id"]`, "config.standbys"),
		{
			says: "each size that is documented has its CPUs and memory",
			do:   presets(),
		},
		{
			says:    "a standby is started when the hardware of the Machine that it stands by for fails",
			differs: "it is not started by the platform, but can be by a user: a host that does not answer may still run the Machine, and only its owner knows whether two may run at once",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "standbys": ["$machine.id"]}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=stopped
				200
				DELETE $machine?force=true
				200
				GET $machine/wait?state=destroyed
				200
				GET /v1/apps/$app/machines/$id
				200 {"state": "stopped"}
				START /v1/apps/$app/machines/$id`,
		},
		{
			says: "of several processes each has its own variables, and no secret of another",
			with: `"processes": [{"exec": ["sleep", "1000"], "env": {"ONE": "1"}, "ignore_app_secrets": true, "secrets": [{"env_var": "TAKEN"}]},
					{"exec": ["sleep", "1000"], "env": {"TWO": "2"}}]`,
			do: `POST /v1/apps/$app/secrets {"values": {"TAKEN": "1", "LEFT": "2"}}
				200
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?s)ONE=1.*TAKEN=1"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "!~LEFT|TWO"}`,
		},
		{
			says: "a secret that a process names must exist when the Machine boots",
			with: `"processes": [{"exec": ["sleep", "1000"], "secrets": [{"env_var": "MISSING"}]}]`,
			do: `GET $created/wait?state=settled
				200 {"state": "failed"}`,
		},
		{
			says: "env_from takes the properties id, version, app_name, private_ip, region and image",
			with: `"processes": [{"exec": ["sleep", "1000"], "env_from": [{"env_var": "A", "field_ref": "app_name"}, {"env_var": "B", "field_ref": "image"},
					{"env_var": "C", "field_ref": "private_ip"}, {"env_var": "D", "field_ref": "region"}, {"env_var": "E", "field_ref": "version"}]}]`,
			do: `GET $machine
				200 {"private_ip": "<text as address>"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?ms)^A=$app$.*^B=registry.hangar.localhost/personal/web:1$.*^C=$address$.*^D=loc$.*^E=$machine.instance$"}`,
		},
		{
			says: "secrets override env, and what a process says for itself both",
			with: `"env": {"A": "config", "B": "config", "C": "config"}, "processes": [{"exec": ["sleep", "1000"], "env": {"C": "process"}}]`,
			do: `POST /v1/apps/$app/secrets {"values": {"B": "secret", "C": "secret"}}
				200
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?ms)^A=config$.*^B=secret$.*^C=process$"}`,
		},
		refuses("statics are an object", `"statics": {"guest_path": "/public", "url_prefix": "/static"}`, "config.statics").
			instead("they are a list of such objects, as existing clients send them"),
		keeps("guest.cpu_kind says how much of a CPU a Machine may use", `"guest": {"cpu_kind": "performance", "cpus": 1, "memory_mb": 256}`).
			instead("it chooses the memory where none is given; every kind is scheduled alike"),
		refuses("a Machine may have several containers", `"containers": [{"name": "one", "image": "$image"}, {"name": "two", "image": "$image"}]`, "config.containers").
			instead("one at most, which stands for the Machine itself"),
		refuses("containers may share volumes that last as long as their Machine", `"volumes": [{"name": "data", "temp_dir": {"storage_type": "disk"}}]`, "config.volumes").
			instead("they are refused: a Machine has one container, whose root has the room"),
		refuses("a Machine may have a cache drive", `"cache_drive": {"size_mb": 1024}`, "config.cache_drive").instead("it is refused, as there are none"),
		refuses("a Machine may have a spot price", `"spot": {"max_price_fraction": 0.5}`, "config.spot").instead("it is refused, as there are no prices"),
		refuses("restart.policy may be spot-price", `"restart": {"policy": "spot-price"}`, "config.restart.policy").instead("it is refused, as there are no prices"),
		refuses("dns may forward names to other servers", `"dns": {"dns_forward_rules": [{"basename": "corp", "addr": "10.0.0.1:53"}]}`, "config.dns.dns_forward_rules").
			instead("it is refused; `nameservers` replaces the platform's"),
	}
}
