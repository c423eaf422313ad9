package spec_test

// mounted is what a config says that mounts the row's volume.
const mounted = `"mounts": [{"volume": "$volume.id", "path": "/data"}]`

func configEdgeRows() []row {
	mount := func(more string) string {
		return `"mounts": [{"volume": "$volume.id", "path": "/data"` + more + `}]`
	}
	return []row{
		keeps("a service needs internal_port alone", `"services": [{"internal_port": 8080}]`),
		refuses("a service needs internal_port", `"services": [{"ports": [{"port": 80}]}]`, "config.services[0].internal_port"),
		refuses("internal_port is a port", `"services": [{"internal_port": 70000}]`, "config.services[0].internal_port"),
		keeps("a service may count connections", `"services": [{"internal_port": 8080, "concurrency": {"type": "connections", "soft_limit": 10, "hard_limit": 20}}]`),
		keeps("a service may count requests", `"services": [{"internal_port": 8080, "concurrency": {"type": "requests", "soft_limit": 10}}]`),
		refuses("concurrency.type is connections or requests", `"services": [{"internal_port": 8080, "concurrency": {"type": "bytes"}}]`, "config.services[0].concurrency.type"),
		refuses("soft_limit is not negative", `"services": [{"internal_port": 8080, "concurrency": {"soft_limit": -1}}]`, "config.services[0].concurrency.soft_limit"),
		refuses("hard_limit is not negative", `"services": [{"internal_port": 8080, "concurrency": {"hard_limit": -1}}]`, "config.services[0].concurrency.hard_limit"),
		keeps("a port of a service has handlers", `"services": [{"internal_port": 8080, "ports": [{"port": 443, "handlers": ["tls", "http"]}]}]`),
		keeps("tcp is a handler", `"services": [{"internal_port": 8080, "ports": [{"port": 1234, "handlers": ["tcp"]}]}]`),
		refuses("a handler is one that there is", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["gopher"]}]}]`, "config.services[0].ports[0].handlers[0]"),
		keeps("a service may have a range of ports", `"services": [{"internal_port": 8080, "ports": [{"start_port": 9000, "end_port": 9010}]}]`),
		refuses("a range of ports does not end before it begins", `"services": [{"internal_port": 8080, "ports": [{"start_port": 9010, "end_port": 9000}]}]`, "config.services[0].ports[0].end_port"),
		refuses("a port is one or a range", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "start_port": 9000, "end_port": 9010}]}]`, "config.services[0].ports[0].port"),
		keeps("force_https is kept", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"], "force_https": true}]}]`),
		keeps("http_options are kept", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"],
			"http_options": {"compress": true, "h2_backend": true, "response": {"headers": {"x-a": "1"}, "pristine": true}}}]}]`),
		keeps("tls_options are kept", `"services": [{"internal_port": 8080, "ports": [{"port": 443, "handlers": ["tls"], "tls_options": {"alpn": ["h2"], "versions": ["TLSv1.3"]}}]}]`),
		keeps("proxy_proto_options.version may ask for version 2", `"services": [{"internal_port": 8080, "ports": [{"port": 8001, "handlers": ["proxy_proto"], "proxy_proto_options": {"version": "v2"}}]}]`),
		refuses("there are two versions of the PROXY protocol", `"services": [{"internal_port": 8080, "ports": [{"port": 8001, "handlers": ["proxy_proto"], "proxy_proto_options": {"version": "v3"}}]}]`, "config.services[0].ports[0].proxy_proto_options.version"),
		keeps("autostart and min_machines_running are kept", `"services": [{"internal_port": 8080, "autostart": true, "min_machines_running": 2}]`),
		refuses("min_machines_running is not negative", `"services": [{"internal_port": 8080, "autostart": true, "min_machines_running": -1}]`, "config.services[0].min_machines_running"),
		answers("autostop may be off, which is false", `"services": [{"internal_port": 8080, "autostop": "off"}]`, `"services": [{"internal_port": 8080, "autostop": false}]`),
		answers("autostop may be stop, which is true", `"services": [{"internal_port": 8080, "autostop": "stop"}]`, `"services": [{"internal_port": 8080, "autostop": true}]`),
		keeps("autostop may be false", `"services": [{"internal_port": 8080, "autostop": false}]`),
		keeps("autostop may be true", `"services": [{"internal_port": 8080, "autostop": true}]`),
		keeps("autostop may be suspend", `"services": [{"internal_port": 8080, "autostop": "suspend"}]`),
		refuses("autostop is off, stop, suspend or a boolean", `"services": [{"internal_port": 8080, "autostop": "maybe"}]`, "config.services[0].autostop"),

		keeps("a check may be of type tcp", `"checks": {"alive": {"type": "tcp", "port": 8080}}`),
		answers("a check's interval, timeout and grace_period are in nanoseconds", `"checks": {"alive": {"type": "tcp", "port": 8080, "interval": 15000000000, "timeout": 2000000000, "grace_period": 1000000000}}`,
			`"checks": {"alive": {"interval": "15s", "timeout": "2s", "grace_period": "1s"}}`),
		keeps("a check may be of type http, with method, path and protocol", `"checks": {"alive": {"type": "http", "port": 8080, "method": "GET", "path": "/ok", "protocol": "http"}}`),
		keeps("a check by https may have a server name or skip verification", `"checks": {"alive": {"type": "http", "port": 8080, "path": "/", "protocol": "https", "tls_server_name": "example.com", "tls_skip_verify": true}}`),
		answers("a check's headers are an object of lists of texts", `"checks": {"alive": {"type": "http", "port": 8080, "path": "/", "headers": {"X-A": ["1", "2"]}}}`,
			`"checks": {"alive": {"headers": [{"name": "X-A", "values": ["1", "2"]}]}}`).
			instead("such an object is accepted; answered is a list of objects with `name` and `values`, which is accepted, too, and which existing clients send and decode"),
		keeps("there may be several checks", `"checks": {"one": {"type": "tcp", "port": 8080}, "two": {"type": "tcp", "port": 8081}}`),
		refuses("the type of a check is tcp or http", `"checks": {"alive": {"type": "icmp", "port": 8080}}`, "config.checks.alive.type"),
		refuses("a check needs a port", `"checks": {"alive": {"type": "tcp"}}`, "config.checks.alive.port"),
		refuses("the protocol of a check is http or https", `"checks": {"alive": {"type": "http", "port": 8080, "path": "/", "protocol": "ftp"}}`, "config.checks.alive.protocol"),

		answers("a mount has the id of a volume and a path", mounted, `"mounts": [{"volume": "$volume.id", "path": "/data", "name": "data", "size_gb": 1}]`),
		refuses("a mount needs a volume", `"mounts": [{"path": "/data"}]`, "config.mounts[0].volume"),
		refuses("a mount needs a path", `"mounts": [{"volume": "$volume.id"}]`, "config.mounts[0].path"),
		refuses("the path of a mount is absolute", `"mounts": [{"volume": "$volume.id", "path": "data"}]`, "config.mounts[0].path"),
		keeps("a volume may extend itself", mount(`, "extend_threshold_percent": 80, "add_size_gb": 1, "size_gb_limit": 5`)),
		keeps("size_gb_limit is optional", mount(`, "extend_threshold_percent": 80, "add_size_gb": 1`)),
		refuses("add_size_gb is required with extend_threshold_percent", mount(`, "extend_threshold_percent": 80`), "config.mounts[0].add_size_gb"),
		refuses("extend_threshold_percent is a percentage", mount(`, "extend_threshold_percent": 180, "add_size_gb": 1`), "config.mounts[0].extend_threshold_percent"),
		refuses("a Machine has one volume", `"mounts": [{"volume": "$volume.id", "path": "/data"}, {"volume": "$volume2.id", "path": "/more"}]`, "config.mounts"),
		{
			says: "a volume that does not exist cannot be mounted",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "mounts": [{"volume": "vol_0000000000000000", "path": "/data"}]}}
				400 {"error": "~volume not found"}`,
		},
		{
			says: "a volume of another App cannot be mounted",
			do: `POST /v1/apps/$app2/volumes {"name": "data", "size_gb": 1, "region": "loc"}
				200 {"id": "<text as other>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "mounts": [{"volume": "$other", "path": "/data"}]}}
				400 {"error": "~volume not found"}`,
		},
		{
			says: "a volume is attached to one Machine at most",
			with: mounted,
			do: `GIVEN $prepared
				POST /v1/apps/$app/machines {"config": $config}
				412 {"error": "~$prepared.id"}
				GET $volume
				200 {"attached_machine_id": "$prepared.id"}`,
		},
		{
			says: "the volume of a Machine cannot be changed by an update",
			with: mounted,
			do: `POST $prepared {"config": {"image": "$image", "mounts": [{"volume": "$volume2.id", "path": "/data"}]}}
				400 {"error": "~config.mounts"}
				GET $prepared
				200 {"config": {"mounts": [{"volume": "$volume.id"}]}}
				GET $volume2
				200 {"attached_machine_id": null}`,
		},
		{
			says: "a volume cannot be taken from a Machine by an update",
			with: mounted,
			do: `POST $prepared {"config": {"image": "$image"}}
				400 {"error": "~config.mounts"}`,
		},
		{
			says: "to change the volume a Machine is destroyed and created again",
			with: mounted,
			do: `DELETE $prepared
				200
				GET $prepared/wait?state=destroyed
				200
				UNTIL $volume
				200 {"attached_machine_id": null}
				POST /v1/apps/$app/machines {"config": $config, "skip_launch": true}
				200 {"id": "<text as again>"}
				GET $volume
				200 {"attached_machine_id": "$again"}`,
		},
		answers("defaults of a service are not written into it", `"services": [{"internal_port": 8080, "protocol": "tcp"}]`,
			`"services": [{"internal_port": 8080, "protocol": "tcp", "concurrency": "<absent>", "autostart": "<absent>", "autostop": "<absent>", "min_machines_running": "<absent>"}]`),
		keeps("a service may have the protocol udp", `"services": [{"internal_port": 8080, "protocol": "udp", "ports": [{"port": 5353}]}]`),
		refuses("the protocol of a service is tcp or udp", `"services": [{"internal_port": 8080, "protocol": "sctp"}]`, "config.services[0].protocol"),
		keeps("pg_tls and edge_http are handlers", `"services": [{"internal_port": 5432, "ports": [{"port": 5432, "handlers": ["pg_tls"]}, {"port": 80, "handlers": ["edge_http"]}]}]`),
		refuses("force_https needs the handler http", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "force_https": true}]}]`, "config.services[0].ports[0].force_https"),
		refuses("the versions of tls_options are TLSv1.2 and TLSv1.3", `"services": [{"internal_port": 8080, "ports": [{"port": 443, "handlers": ["tls"], "tls_options": {"versions": ["SSLv3"]}}]}]`, "config.services[0].ports[0].tls_options.versions"),
		keeps("tls_options may have a certificate of its own", `"services": [{"internal_port": 8080, "ports": [{"port": 443, "handlers": ["tls"], "tls_options": {"default_self_signed": true, "versions": ["TLSv1.2", "TLSv1.3"]}}]}]`),
		keeps("http_options may have timeouts and sessions", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"],
			"http_options": {"idle_timeout": 60, "headers_read_timeout": 10, "replay_cache": [{"path_prefix": "/", "ttl_seconds": 60, "type": "cookie", "name": "id"}]}}]}]`),
		keeps("a header of answers may be a text, a list of texts or false", `"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"],
			"http_options": {"response": {"headers": {"x-a": "1", "x-b": ["1", "2"], "x-c": false}}}}]}]`),
		refuses("the port of a service is a port", `"services": [{"internal_port": 8080, "ports": [{"port": 70000}]}]`, "config.services[0].ports[0].port"),
		keeps("proxy_proto_options may be without a version, which is 1", `"services": [{"internal_port": 8080, "ports": [{"port": 8001, "handlers": ["proxy_proto"], "proxy_proto_options": {}}]}]`),
		keeps("a service may have checks", `"services": [{"internal_port": 8080, "checks": [{"type": "http", "path": "/", "interval": "15s", "timeout": "2s"}]}]`),
		keeps("a check may decide about requests", `"checks": {"alive": {"type": "tcp", "port": 8080, "kind": "readiness"}}`),
		refuses("the kind of a check is informational or readiness", `"checks": {"alive": {"type": "tcp", "port": 8080, "kind": "sometimes"}}`, "config.checks.alive.kind"),
		refuses("a check needs a type", `"checks": {"alive": {"port": 8080}}`, "config.checks.alive.type"),
		refuses("the port of a check is a port", `"checks": {"alive": {"type": "tcp", "port": 70000}}`, "config.checks.alive.port"),
		refuses("the interval of a check is not negative", `"checks": {"alive": {"type": "tcp", "port": 8080, "interval": -1}}`, "config.checks.alive.interval"),
		refuses("the timeout of a check is not negative", `"checks": {"alive": {"type": "tcp", "port": 8080, "timeout": -1}}`, "config.checks.alive.timeout"),
		refuses("the grace_period of a check is not negative", `"checks": {"alive": {"type": "tcp", "port": 8080, "grace_period": -1}}`, "config.checks.alive.grace_period"),
		{
			says: "a check has its name, and one of a service is named after service, type and port",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "checks": {"alive": {"type": "tcp", "port": 8080}},
					"services": [{"internal_port": 8080, "checks": [{"type": "http", "path": "/"}]}]}, "skip_launch": true}
				200 {"checks": ["<has>", {"name": "alive"}, {"name": "servicecheck-00-http-8080"}]}`,
		},
		answers("a mount says of its volume whether it is encrypted, whatever was sent", mount(`, "encrypted": false, "name": "another", "size_gb": 7`), `"mounts": [{"name": "data", "size_gb": 1, "encrypted": true}]`),
		refuses("the path of a mount is not that of the root", `"mounts": [{"volume": "$volume.id", "path": "/"}]`, "config.mounts[0].path"),
		refuses("size_gb_limit is not negative", mount(`, "extend_threshold_percent": 80, "add_size_gb": 1, "size_gb_limit": -1`), "config.mounts[0].size_gb_limit"),
		refuses("add_size_gb is not negative", mount(`, "extend_threshold_percent": 80, "add_size_gb": -1`), "config.mounts[0].add_size_gb"),
		{
			says: "a mount follows the size of its volume",
			with: mounted,
			do: `GIVEN $prepared
				PUT $volume/extend {"size_gb": 2}
				200
				UNTIL $prepared
				200 {"config": {"mounts": [{"volume": "$volume.id", "size_gb": 2}]}}`,
		},
		{
			says: "an update keeps the volume of a Machine",
			with: mounted,
			do: `UPDATE $machine
				GET $volume
				200 {"attached_machine_id": "$machine.id"}`,
		},
		{
			says: "a volume cannot be given to a Machine by an update",
			do: `POST $prepared {"config": {"image": "$image", "mounts": [{"volume": "$volume.id", "path": "/data"}]}}
				400 {"error": "~config.mounts"}
				GET $volume
				200 {"attached_machine_id": null}`,
		},
	}
}
