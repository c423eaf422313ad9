package spec_test

func sandboxRows() []row {
	return []row{
		{
			says: "a Machine is reachable in its network at its id below vm, the App and internal",
			do: `POST $machine/exec {"command": ["call", "GET", "http://$machine2.id.vm.$app.internal:8080/"]}
				200 {"stdout": "200 $machine2.id\n"}`,
		},
		{
			says: "a Machine is reachable in its network at its private address",
			do: `GET $machine2
				200 {"private_ip": "<text as address>"}
				POST $machine/exec {"command": ["call", "GET", "http://[$address]:8080/"]}
				200 {"stdout": "200 $machine2.id\n"}`,
		},
		{
			says: "Machines in a network of their own do not reach the organization's other Apps, but each other",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal", "network": "apart"}
				201
				POST /v1/apps/$new/machines {"config": {"image": "$image"}}
				200 {"id": "<text as one>", "private_ip": "<text as address>"}
				POST /v1/apps/$new/machines {"config": {"image": "$image"}}
				200 {"id": "<text as two>"}
				GET /v1/apps/$new/machines/$one/wait
				200
				GET /v1/apps/$new/machines/$two/wait
				200
				POST /v1/apps/$new/machines/$two/exec {"command": ["call", "GET", "http://[$address]:8080/"]}
				200 {"stdout": "200 $one\n"}
				POST /v1/apps/$new/machines/$two/exec {"command": ["call", "GET", "http://$one.vm.$new.internal:8080/"]}
				200 {"stdout": "200 $one\n"}
				POST $machine/exec {"command": ["call", "GET", "http://[$address]:8080/"]}
				200 {"exit_code": 1, "stdout": ""}
				POST $machine/exec {"command": ["call", "GET", "http://$one.vm.$new.internal:8080/"]}
				200 {"exit_code": 1, "stdout": "", "stderr": "~no such host"}`,
		},
		{
			says: "a Machine suspends itself over its local socket, without a token",
			// It is refused until the Machine is started, which its program may be sooner.
			with: `"restart": {"policy": "no"}, "init": {"exec": ["sh", "-c",
					"until case $(call POST http://local/v1/apps/$FLY_APP_NAME/machines/$FLY_MACHINE_ID/suspend) in 200*) ;; *) false;; esac; do sleep 1; done; sleep 1000"]}`,
			do: `GET $created/wait?state=suspended
				200
				GET $created
				200 {"state": "suspended", "events": ["<has>", {"type": "suspend", "source": "machine"}]}`,
		},
		{
			says: "a Machine does not suspend another one over its local socket",
			do: `POST $machine/exec {"command": ["call", "POST", "http://local/v1/apps/$app/machines/$machine2.id/suspend"]}
				200 {"stdout": "~^404 "}
				GET $machine2
				200 {"state": "started"}`,
		},
		{
			says: "a Machine gets an identity token of its own over its local socket, as plain text and without a token",
			do: `POST $machine/exec {"command": ["call", "POST", "http://local/v1/tokens/oidc", "{\"aud\":\"a\"}"]}
				200 {"stdout": "~^200 [\\w-]+\\.[\\w-]+\\.[\\w-]+$"}`,
		},
		{
			says: "a volume has a file system once a Machine has it, and keeps its files over a stop",
			with: mounted,
			do: `GIVEN $machine
				UNTIL $volume
				200 {"fstype": "ext4", "blocks": "<positive>", "block_size": "<positive>", "blocks_free": "<positive>", "blocks_avail": "<positive>"}
				EXEC $machine ["sh", "-c", "echo kept >/data/file; echo gone >/file"]
				STOP $machine {"timeout": "1"}
				START $machine
				POST $machine/exec {"command": ["cat", "/data/file"]}
				200 {"stdout": "kept\n"}
				POST $machine/exec {"command": ["ls", "/file"]}
				200 {"stdout": "", "exit_code": 1}`,
		},
		{
			says: "extending the volume of a Machine that runs says whether it needs a restart, and afterwards there is the space",
			with: mounted,
			do: `GIVEN $machine
				PUT $volume/extend {"size_gb": 2}
				200 {"volume": {"size_gb": 2}, "needs_restart": "<bool>"}
				POST $machine/restart?timeout=1s
				200
				UNTIL $machine
				200 {"state": "started", "events": ["<has>", {"type": "restart"}]}
				POST $machine/exec {"command": ["sh", "-c", "df -m /data | tail -1"]}
				200 {"stdout": "~ (19|20)\\d\\d "}`,
		},
		{
			says: "a volume that was restored from a snapshot has its files",
			with: mounted,
			do: `EXEC $machine ["sh", "-c", "echo kept >/data/file"]
				STOP $machine {"timeout": "1"}
				` + snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap"}
				200 {"id": "<text as restored>"}
				UNTIL /v1/apps/$app/volumes/$restored
				200 {"state": "created"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "mounts": [{"volume": "$restored", "path": "/data"}]}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				POST /v1/apps/$app/machines/$other/exec {"command": ["cat", "/data/file"]}
				200 {"stdout": "kept\n"}`,
		},
		{
			says: "a Machine for which there is no room cannot be created",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "guest": {"cpus": 1, "memory_mb": 262144}}}
				409 {"error": "~could not reserve resource for machine", "status": "insufficient_capacity"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "init.exec, entrypoint and cmd override what the image says",
			with: `"init": {"entrypoint": ["sh", "-c"], "cmd": ["echo by cmd >/said; sleep 1000"]}`,
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "init": {"exec": ["sh", "-c", "echo by exec >/said; sleep 1000"], "entrypoint": ["false"], "cmd": ["false"]}}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				POST $machine/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "by cmd\n"}
				POST /v1/apps/$app/machines/$other/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "by exec\n"}`,
		},
		{
			says: "a volume that is fuller than its threshold is extended, up to its limit",
			with: `"mounts": [{"volume": "$volume.id", "path": "/data", "extend_threshold_percent": 1, "add_size_gb": 5, "size_gb_limit": 2}]`,
			do: `EXEC $machine ["sh", "-c", "printf %1048576d 0 >/data/a; for i in 1 2 3 4 5; do cat /data/a /data/a >/data/b; cat /data/b >/data/a; done"]
				UNTIL $volume
				200 {"size_gb": 2}`,
		},
		{
			says: "init.cmd alone overrides what the image says, and init.entrypoint alone comes before it",
			with: `"init": {"cmd": ["sh", "-c", "echo by cmd >/said; sleep 1000"]}`,
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "init": {"entrypoint": ["sh", "-c", "echo $0 $1 >/said; sleep 1000"]}}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				POST $machine/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "by cmd\n"}
				POST /v1/apps/$app/machines/$other/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "sh -c\n"}`,
		},
		{
			says: "with init.tty the program has a terminal, and without it none",
			with: `"init": {"tty": true, "exec": ["sh", "-c", "if [ -t 0 ]; then echo yes >/said; fi; echo no >>/said; sleep 1000"]}`,
			do: `POST $machine/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "~^yes\n"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "init": {"exec": ["sh", "-c", "if [ -t 0 ]; then echo yes >/said; fi; echo no >>/said; sleep 1000"]}}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				POST /v1/apps/$app/machines/$other/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "no\n"}`,
		},
		{
			says: "a process runs as its user",
			with: `"processes": [{"exec": ["sh", "-c", "cat /proc/self/status >/tmp/said; sleep 1000"], "user": "1000"}]`,
			do: `POST $machine/exec {"command": ["sh", "-c", "until [ -s /tmp/said ]; do sleep 0.05; done; cat /tmp/said"]}
				200 {"stdout": "~Uid:\\s+1000\\s"}`,
		},
		{
			says: "a process may be of an entrypoint and its arguments",
			with: `"processes": [{"entrypoint": ["sh", "-c"], "cmd": ["echo $A >/said; sleep 1000"], "env": {"A": "mine"}}, {"exec": ["sleep", "1000"]}]`,
			do: `POST $machine/exec {"command": ["sh", "-c", "until [ -s /said ]; do sleep 0.05; done; cat /said"]}
				200 {"stdout": "mine\n"}`,
		},
		{
			says: "a Machine that does not run has no name in its network",
			do: `STOP $machine2 {"timeout": "1"}
				POST $machine/exec {"command": ["call", "GET", "http://$machine2.id.vm.$app.internal:8080/"]}
				200 {"exit_code": 1, "stderr": "~no such host"}`,
		},
		{
			says: "the Machines of an App have a name together, and one by their process group",
			with: `"metadata": {"fly_process_group": "web"}`,
			do: `GIVEN $machine2
				POST $machine/exec {"command": ["call", "GET", "http://$app.internal:8080/"]}
				200 {"stdout": "~^200 ($machine.id|$machine2.id)\n"}
				POST $machine/exec {"command": ["call", "GET", "http://web.process.$app.internal:8080/"]}
				200 {"stdout": "~^200 ($machine.id|$machine2.id)\n"}`,
		},
		{
			says: "a Machine sets its metadata over its local socket, and no other's",
			do: `POST $machine/exec {"command": ["call", "POST", "http://local/v1/apps/$app/machines/$machine.id/metadata/role", "{\"value\":\"primary\"}"]}
				200 {"stdout": "~^204 "}
				GET $machine/metadata
				200 {"role": "primary"}
				POST $machine/exec {"command": ["call", "POST", "http://local/v1/apps/$app/machines/$machine2.id/metadata/role", "{\"value\":\"primary\"}"]}
				200 {"stdout": "~^404 "}`,
		},
		{
			says: "the programs of a Machine and what they listen on are listed",
			do: `UNTIL $machine/ps
				200 ["<has>", {"pid": "<positive>", "command": "~httpd", "listen_sockets": [{"proto": "tcp", "address": "~:8080$"}]}]`,
		},
		{
			says: "metrics of a Machine's own are queried with the labels of the platform, whatever it says itself",
			with: `"files": [{"guest_path": "/www/metrics", "raw_value": "IyBUWVBFIHNwZWNfbWV0cmljIGdhdWdlCnNwZWNfbWV0cmlje21pbmU9InllcyIsYXBwPSJmb3JnZWQifSA3Cg=="}], "metrics": {"port": 8080, "path": "/metrics"}`,
			do: `GIVEN $machine
				UNTIL /prometheus/personal/api/v1/query?query=spec_metric%7Bapp%3D%22$app%22%7D
				200 {"status": "success", "data": {"result": [{"metric": {"app": "$app", "region": "loc", "host": "~^[0-9a-f]{4}$", "instance": "$machine.id", "mine": "yes"}, "value": ["<any>", "7"]}]}}`,
		},
		{
			says: "a Machine gets an identity token over its local socket without a body",
			do: `POST $machine/exec {"command": ["call", "POST", "http://local/v1/tokens/oidc"]}
				200 {"stdout": "~^200 [\\w-]+\\.[\\w-]+\\.[\\w-]+$"}`,
		},
		{
			says: "a suspended Machine goes on where it was",
			with: `"init": {"exec": ["sh", "-c", "echo boot >>/boots; i=0; while :; do i=$((i+1)); echo ${i} >>/count; sleep 0.05; done"]}`,
			do: `EXEC $machine ["sh", "-c", "until [ -s /count ]; do sleep 0.05; done"]
				SUSPEND $machine
				POST $machine/start
				200 {"previous_state": "suspended"}
				GET $machine/wait
				200
				EXEC $machine ["sh", "-c", "until [ $(tail -n 1 /count) -gt 20 ]; do sleep 0.05; done"]
				POST $machine/exec {"command": ["sh", "-c", "sort -n /count | uniq -d; head -n 1 /count; cat /boots"]}
				200 {"stdout": "1\nboot\n"}`,
		},
		{
			says: "a Machine that was stopped while it was suspended boots again",
			with: `"guest": {"persist_rootfs": "restart"}, "init": {"exec": ["sh", "-c", "echo boot >>/boots; sleep 1000"]}`,
			do: `EXEC $machine ["sh", "-c", "until [ -s /boots ]; do sleep 0.05; done"]
				SUSPEND $machine
				STOP $machine
				START $machine
				EXEC $machine ["sh", "-c", "until [ $(cat /boots | wc -l) = 2 ]; do sleep 0.05; done"]`,
		},
		{
			says: "the program gets the signal of a stop, and may end in its own way",
			with: `"restart": {"policy": "no"}, "init": {"exec": ["sh", "-c", "trap 'exit 7' INT; trap 'exit 8' TERM; echo >/ready; while :; do sleep 0.05; done"]}`,
			do: `EXEC $machine ["sh", "-c", "until [ -e /ready ]; do sleep 0.05; done"]
				STOP $machine
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 7, "guest_signal": -1, "requested_stop": true}}}]}
				EXEC $machine2 ["sh", "-c", "until [ -e /ready ]; do sleep 0.05; done"]
				STOP $machine2 {"signal": "SIGTERM"}
				GET $machine2
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 8, "requested_stop": true}}}]}`,
		},
		{
			says: "a program that goes on after the signal is killed when the timeout has passed",
			with: `"init": {"exec": ["sh", "-c", "trap '' INT; echo >/ready; while :; do sleep 0.05; done"]}`,
			do: `EXEC $machine ["sh", "-c", "until [ -e /ready ]; do sleep 0.05; done"]
				STOP $machine {"timeout": "1"}
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 9, "requested_stop": true}}}]}`,
		},
		{
			says: "when one of a Machine's processes ends the others end, too",
			with: `"restart": {"policy": "no"}, "processes": [{"exec": ["sleep", "1000"]}, {"exec": ["sh", "-c", "sleep 0.2"]}]`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 0, "requested_stop": false}}}]}`,
		},
		{
			says: "a Machine sees its memory",
			with: `"guest": {"memory_mb": 512}`,
			do: `POST $machine/exec {"command": ["cat", "/proc/meminfo"]}
				200 {"stdout": "~MemTotal: +524288 kB"}`,
		},
		{
			says:    "swap_size_mb is swap that the Machine sees",
			differs: "programs see none; where the server has swap, as much of the Machine may be swapped out beyond its memory",
			with:    `"init": {"swap_size_mb": 256}`,
			do: `POST $machine/exec {"command": ["cat", "/proc/meminfo"]}
				200 {"stdout": "~SwapTotal: +0 kB"}`,
		},
		{
			says:    "a Machine sees as many CPUs as it has",
			differs: "programs see at least two; the CPUs of the config are a quota of processor time",
			with:    `"guest": {"cpus": 1, "memory_mb": 256}`,
			do: `POST $machine/exec {"command": ["nproc"]}
				200 {"stdout": "2\n"}`,
		},
		{
			says: "a Machine and its volume have the series of the platform, with its labels",
			with: mounted,
			do: `GIVEN $machine
				UNTIL /prometheus/personal/api/v1/query?query=platform_instance_up%7Bapp%3D%22$app%22%7D
				200 {"data": {"result": [{"metric": {"app": "$app", "region": "loc", "host": "~^[0-9a-f]{4}$", "instance": "$machine.id"}, "value": ["<any>", "1"]}]}}
				UNTIL /prometheus/personal/api/v1/query?query=platform_volume_size_bytes%7Bapp%3D%22$app%22%7D
				200 {"data": {"result": [{"metric": {"id": "$volume.id", "instance": "<absent>"}, "value": ["<any>", "~^[1-9]"]}]}}`,
		},
	}
}
