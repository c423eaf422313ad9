package spec_test

// stubborn is the config of a Machine that takes a minute to stop.
const stubborn = `"env": {"HANGAR_FAKE_STOP": "ignore"}, "stop_config": {"timeout": 60000000000}`

func stateRows() []row {
	return []row{
		{
			says:    "a Machine that runs is running",
			differs: "the state is `started`, as existing clients know it",
			do: `GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "starting a stopped Machine leads to a Machine that runs",
			do: `POST $stopped/start
				200
				GET $stopped/wait?state=started
				200 {"state": "started"}
				GET $stopped
				200 {"state": "started", "events": ["<has>", {"type": "start", "status": "starting"}, {"type": "start", "status": "started"}]}`,
		},
		{
			says: "a start answers the state before it",
			do: `POST $stopped/start
				200 {"previous_state": "stopped"}
				POST $suspended/start
				200 {"previous_state": "suspended"}`,
		},
		{
			says: "a stopped Machine is reset completely to its original state when it starts",
			do: `EXEC $machine ["write", "/kept", "by this boot"]
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"exit_code": 0, "stdout": "~by this boot"}
				STOP $machine
				START $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "", "stderr": "~not exist"}`,
		},
		{
			says: "a stopped Machine starts with another memory",
			do: `EXEC $machine ["incr"]
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^1"}
				STOP $machine
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^0"}`,
		},
		{
			says: "starting a Machine that runs changes nothing",
			do: `POST $machine/start
				200 {"previous_state": "started"}
				GET $machine
				200 {"state": "started", "instance_id": "$machine.instance"}`,
		},
		{
			says: "a suspended Machine resumes from its snapshot: memory and files are as they were",
			do: `EXEC $machine ["incr"]
				EXEC $machine ["incr"]
				EXEC $machine ["write", "/kept", "by this boot"]
				POST $machine/suspend
				200 {"ok": true}
				GET $machine/wait?state=suspended
				200
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^2"}
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "~by this boot"}`,
		},
		{
			says: "a snapshot that cannot be used means a cold boot, which keeps the files",
			with: `"env": {"HANGAR_FAKE_RESUME_ERROR": "snapshot unusable"}`,
			do: `EXEC $machine ["incr"]
				EXEC $machine ["write", "/kept", "by this boot"]
				SUSPEND $machine
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^0"}
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "~by this boot"}`,
		},
		{
			says: "suspending answers that it is ok and leads to a suspended Machine",
			do: `POST $machine/suspend
				200 {"ok": true}
				GET $machine/wait?state=suspended
				200
				GET $machine
				200 {"state": "suspended", "events": ["<has>", {"type": "suspend", "status": "suspending"}, {"type": "suspend", "status": "suspended"}]}`,
		},
		{
			says: "suspending a suspended Machine changes nothing",
			do: `POST $suspended/suspend
				200 {"ok": true}
				GET $suspended
				200 {"state": "suspended"}`,
		},
		{
			says: "a stopped Machine cannot be suspended",
			do: `POST $stopped/suspend
				412 {"error": "<text>"}
				GET $stopped
				200 {"state": "stopped"}`,
		},
		{
			says: "a Machine of 2 GB can be suspended",
			with: `"guest": {"memory_mb": 2048}`,
			do: `POST $machine/suspend
				200
				GET $machine/wait?state=suspended
				200`,
		},
		{
			says: "a Machine of more than 2 GB cannot be suspended",
			with: `"guest": {"memory_mb": 2304}`,
			do: `POST $machine/suspend
				412 {"error": "~memory"}
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "a Machine with swap cannot be suspended",
			with: `"init": {"swap_size_mb": 256}`,
			do: `POST $machine/suspend
				412 {"error": "~swap"}`,
		},
		{
			says: "a Machine with a schedule cannot be suspended",
			with: `"schedule": "monthly"`,
			do: `POST $machine/suspend
				412 {"error": "~schedule"}`,
		},
		{
			says: "stopping answers that it is ok and leads to a stopped Machine",
			do: `POST $machine/stop
				200 {"ok": true}
				GET $machine/wait?state=stopped
				200
				GET $machine
				200 {"state": "stopped"}`,
		},
		{
			says: "the body of a stop may leave out signal and timeout",
			do: `POST $machine/stop {}
				200
				GET $machine/wait?state=stopped
				200 {"state": "stopped"}`,
		},
		{
			says: "stop sends SIGINT unless it is told otherwise",
			do: `STOP $machine
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"requested_stop": true, "guest_signal": 2}}}]}`,
		},
		{
			says: "stop sends the signal that it is given",
			do: `STOP $machine {"signal": "SIGTERM"}
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 15}}}]}`,
		},
		{
			says: "stop sends the signal of stop_config",
			with: `"stop_config": {"signal": "SIGQUIT"}`,
			do: `STOP $machine
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 3}}}]}`,
		},
		{
			says: "a Machine that does not end on the signal is killed when the timeout has passed",
			with: `"env": {"HANGAR_FAKE_STOP": "ignore"}`,
			do: `STOP $machine {"timeout": "1"}
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 9, "requested_stop": true}}}]}`,
		},
		{
			says: "stop_config.timeout says how long a Machine has before it is killed",
			with: `"env": {"HANGAR_FAKE_STOP": "ignore"}, "stop_config": {"timeout": 100000000}`,
			do: `POST $machine/stop
				200
				GET $machine/wait?state=stopped&timeout=3
				200
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 9}}}]}`,
		},
		{
			says: "the signal of a stop is one that there is",
			do: `POST $machine/stop {"signal": "SIGNOTHING"}
				400 {"error": "~signal"}
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "stopping a stopped Machine changes nothing",
			do: `POST $stopped/stop
				200 {"ok": true}
				GET $stopped
				200 {"state": "stopped"}`,
		},
		{
			says: "stopping a suspended Machine drops its snapshot: the next start is a cold boot",
			do: `EXEC $machine ["incr"]
				SUSPEND $machine
				POST $machine/stop
				200 {"ok": true}
				GET $machine/wait?state=stopped
				200
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^0"}`,
		},
		{
			says: "a Machine that runs is not deleted without force",
			do: `DELETE $machine
				412 {"error": "~not currently stopped"}
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "with force a Machine that runs is deleted",
			do: `DELETE $machine?force=true
				200 {"ok": true}
				GET $machine/wait?state=destroyed
				200
				GET $machine
				200 {"state": "destroyed"}`,
		},
		{
			says: "a stopped Machine is deleted without force",
			do: `DELETE $stopped
				200 {"ok": true}
				GET $stopped/wait?state=destroyed
				200`,
		},
		{
			says: "a suspended Machine is deleted without force",
			do: `DELETE $suspended
				200 {"ok": true}
				GET $suspended/wait?state=destroyed
				200`,
		},
		{
			says: "a deletion cannot be undone",
			do: `POST $destroyed/start
				412
				POST $destroyed {"config": {"image": "$image"}}
				412
				GET $destroyed
				200 {"state": "destroyed"}`,
		},
		{
			says: "with auto_destroy a Machine is deleted when its main process completes",
			with: `"auto_destroy": true, "init": {"exec": ["sh", "-c", "exit 0"]}`,
			do: `GET $created/wait?state=destroyed
				200
				GET $created
				200 {"state": "destroyed", "events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 0}}}]}`,
		},
		{
			says: "without auto_destroy a Machine whose main process completes is stopped",
			with: `"init": {"exec": ["sh", "-c", "exit 0"]}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"state": "stopped", "events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 0, "requested_stop": false}}}]}`,
		},
		{
			says: "with the policy no a Machine that fails is not restarted",
			with: `"restart": {"policy": "no"}, "init": {"exec": ["sh", "-c", "exit 7"]}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 7, "restarting": false}}}]}`,
		},
		{
			says: "with the policy on-failure a Machine that fails is restarted max_retries times",
			with: `"restart": {"policy": "on-failure", "max_retries": 1}, "init": {"exec": ["sh", "-c", "exit 7"]}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"state": "stopped", "events": ["<has>",
					{"type": "exit", "request": {"exit_event": {"exit_code": 7, "restarting": true}}},
					{"type": "exit", "request": {"exit_event": {"exit_code": 7, "restarting": false}}}]}`,
		},
		{
			says: "with the policy always a Machine that completes is restarted",
			with: `"restart": {"policy": "always"}, "env": {"HANGAR_FAKE_EXIT": "0@100ms"}`,
			do: `UNTIL $created
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 0, "restarting": true}}}]}`,
		},
		{
			says: "a Machine of several processes stops when one of them ends",
			with: `"restart": {"policy": "no"},
					"processes": [{"exec": ["sleep", "1000"]}, {"exec": ["sh", "-c", "exit 0"]}]`,
			do: `GET $created/wait?state=stopped
				200`,
		},
		{
			says: "persist_rootfs restart keeps files over a restart",
			with: `"guest": {"persist_rootfs": "restart"}`,
			do: `EXEC $machine ["write", "/kept", "by this boot"]
				STOP $machine
				START $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "~by this boot"}`,
		},
		{
			says: "a restart is a new boot of the same version",
			do: `POST $machine/restart
				200 {"ok": true}
				GET $machine/wait?state=started
				200
				UNTIL $machine
				200 {"state": "started", "instance_id": "$machine.instance", "events": ["<has>", {"type": "restart"}]}`,
		},
		{
			says: "a Machine without a restart policy that fails is restarted, and says how often",
			with: `"env": {"HANGAR_FAKE_EXIT": "7@100ms"}`,
			do: `UNTIL $created
				200 {"events": ["<has>", {"type": "exit", "request": {"restart_count": 1, "exit_event": {"exit_code": 7, "restarting": true}}}]}`,
		},
		{
			says: "with the policy on-failure a Machine that completes is not restarted",
			with: `"restart": {"policy": "on-failure", "max_retries": 5}, "init": {"exec": ["sh", "-c", "exit 0"]}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"state": "stopped", "events": ["<lacks>", {"type": "exit", "request": {"exit_event": {"restarting": true}}}]}`,
		},
		{
			says: "with the policy always a stop is a stop",
			with: `"restart": {"policy": "always"}`,
			do: `STOP $machine
				GET $machine
				200 {"state": "stopped", "events": ["<has>", {"type": "exit", "request": {"exit_event": {"requested_stop": true, "restarting": false}}}]}`,
		},
		{
			says: "with auto_destroy a Machine that fails is deleted, too",
			with: `"auto_destroy": true, "restart": {"policy": "no"}, "init": {"exec": ["sh", "-c", "exit 7"]}`,
			do: `GET $created/wait?state=destroyed
				200
				GET $created
				200 {"state": "destroyed", "events": ["<has>", {"type": "exit", "request": {"exit_event": {"exit_code": 7}}}]}`,
		},
		{
			says: "persist_rootfs always keeps files over a restart",
			with: `"guest": {"persist_rootfs": "always"}`,
			do: `EXEC $machine ["write", "/kept", "by this boot"]
				STOP $machine
				START $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "~by this boot"}`,
		},
		{
			says: "persist_rootfs never resets files",
			with: `"guest": {"persist_rootfs": "never"}`,
			do: `EXEC $machine ["write", "/kept", "by this boot"]
				STOP $machine
				START $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "", "stderr": "~not exist"}`,
		},
		{
			says: "a Machine may be suspended again after it was resumed, and resumes from the newer snapshot",
			do: `EXEC $machine ["incr"]
				SUSPEND $machine
				START $machine
				EXEC $machine ["incr"]
				SUSPEND $machine
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^2"}`,
		},
		{
			says: "a resume makes no new version",
			do: `START $suspended
				GET $suspended
				200 {"instance_id": "$suspended.instance"}`,
		},
		{
			says: "stopping a suspended Machine keeps its version, and it can be started again",
			do: `STOP $suspended
				START $suspended
				GET $suspended
				200 {"state": "started", "instance_id": "$suspended.instance"}`,
		},
		{
			says: "a Machine with swap at the top of its config cannot be suspended",
			with: `"swap_size_mb": 256`,
			do: `POST $machine/suspend
				412 {"error": "~swap"}`,
		},
		{
			says: "a Machine whose suspend fails says why and goes on",
			with: `"env": {"HANGAR_FAKE_SUSPEND_ERROR": "no room"}`,
			do: `POST $machine/suspend
				200
				UNTIL $machine
				200 {"state": "started", "events": ["<has>", {"type": "suspend", "status": "started", "request": {"error": "~no room"}}]}`,
		},
		{
			says: "a Machine that failed can be deleted without force",
			do: `POST /v1/apps/$app/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=failed
				200
				DELETE /v1/apps/$app/machines/$id
				200 {"ok": true}
				GET /v1/apps/$app/machines/$id/wait?state=destroyed
				200`,
		},
		{
			says: "a Machine that failed can be updated, and started then",
			do: `POST /v1/apps/$app/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=failed
				200
				POST /v1/apps/$app/machines/$id {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				UNTIL /v1/apps/$app/machines/$id
				200 {"instance_id": "$version", "image_ref": {"digest": "~^sha256:"}}
				GET /v1/apps/$app/machines/$id/wait?state=settled&instance_id=$version
				200
				START /v1/apps/$app/machines/$id`,
		},
		{
			says: "kill is another name of force",
			do: `DELETE $machine?kill=true
				200 {"ok": true}
				GET $machine/wait?state=destroyed
				200`,
		},
		{
			says: "deleting a Machine that is deleted changes nothing",
			do: `DELETE $destroyed
				200 {"ok": true}
				GET $destroyed
				200 {"state": "destroyed"}`,
		},
		{
			says: "the answer to a start says that the Machine has not moved",
			do: `POST $stopped/start
				200 {"previous_state": "stopped", "migrated": false, "new_host": ""}`,
		},
		{
			says: "signal and timeout of a stop may be what existing clients send",
			do: `POST $machine/stop {"id": "$machine.id", "signal": "SIGTERM", "timeout": "0s"}
				200 {"ok": true}
				GET $machine/wait?state=stopped
				200
				GET $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 15}}}]}`,
		},
		{
			says:    "the signal of a stop is an object",
			differs: "it is a text such as `SIGTERM`, or a number, as existing clients send it; an object is refused",
			do: `POST $machine/stop {"signal": {"name": "SIGTERM"}}
				400 {"error": "~signal"}
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "the timeout of a stop is not longer than 300 seconds",
			do: `POST $machine/stop {"timeout": "301"}
				400 {"error": "~timeout"}
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "a restart sends its signal, and kills when its timeout has passed",
			with: `"env": {"HANGAR_FAKE_STOP": "ignore"}`,
			do: `POST $machine/restart?signal=SIGTERM&timeout=1s
				200 {"ok": true}
				UNTIL $machine
				200 {"state": "started", "events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 9, "requested_stop": true}}}]}`,
		},
		{
			says: "a stopped Machine is started by a restart",
			do: `POST $stopped/restart
				200 {"ok": true}
				GET $stopped/wait?state=started
				200`,
		},
		{
			says: "a signal is sent by its name or its number",
			do: `POST $machine/signal {"signal": "SIGUSR1"}
				200 {"ok": true}
				UNTIL $machine
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 10, "requested_stop": false}}}]}
				POST $machine2/signal {"signal": 9}
				200 {"ok": true}
				UNTIL $machine2
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"guest_signal": 9, "requested_stop": false}}}]}`,
		},
		{
			says: "a Machine that does not run gets no signals and executes no commands",
			do: `POST $stopped/signal {"signal": "SIGTERM"}
				412 {"error": "~machine not running"}
				POST $stopped/exec {"command": ["true"]}
				412 {"error": "~machine not running"}
				GET $stopped/ps
				412 {"error": "~machine not running"}`,
		},
		{
			says: "a command that fails is answered 200 and its exit code",
			do: `POST $machine/exec {"command": ["false"]}
				200 {"exit_code": 1, "exit_signal": "<integer>", "stdout": "", "stderr": "<any>"}`,
		},
		{
			says: "a command may be one text, and have input",
			do: `POST $machine/exec {"cmd": "echo one two"}
				200 {"exit_code": 0, "stdout": "~one two"}
				POST $machine/exec {"command": ["cat"], "stdin": "given"}
				200 {"stdout": "given"}
				POST $machine/exec {}
				400 {"error": "~command"}`,
		},
		{
			says: "an update while another one is carried out is refused",
			with: stubborn,
			do: `POST $machine {"config": {"image": "$image"}}
				200 {"state": "replacing"}
				POST $machine {"config": $config}
				409 {"error": "~update"}`,
		},
		{
			says: "a Machine is not started while it is updated",
			with: stubborn,
			do: `POST $machine {"config": {"image": "$image"}}
				200 {"state": "replacing"}
				POST $machine/start
				412 {"error": "~getting replaced", "status": "wrong_state"}`,
		},
		{
			says: "a Machine that starts is starting, and is not suspended",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "env": {"HANGAR_FAKE_START_DELAY": "1m"}}}
				200 {"id": "<text as id>"}
				UNTIL /v1/apps/$app/machines/$id
				200 {"state": "starting"}
				POST /v1/apps/$app/machines/$id/suspend
				412 {"error": "~starting"}`,
		},
		{
			says: "a Machine that is stopped is stopping until it has ended, and neither started nor deleted without force",
			with: stubborn,
			do: `POST $machine/stop
				200 {"ok": true}
				GET $machine
				200 {"state": "stopping"}
				POST $machine/start
				412 {"error": "~still active"}
				DELETE $machine
				412 {"error": "<text>"}`,
		},
		{
			says: "a Machine that is suspended is suspending until its snapshot is taken",
			with: `"env": {"HANGAR_FAKE_SUSPEND_DELAY": "1m"}`,
			do: `POST $machine/suspend
				200 {"ok": true}
				GET $machine
				200 {"state": "suspending"}`,
		},
		{
			says: "a cordoned Machine may be cordoned again",
			do: `POST $stopped/cordon
				200
				POST $stopped/cordon
				200 {"ok": true}
				GET $stopped
				200 {"cordoned": true}`,
		},
		{
			says: "a command has as many seconds as its timeout says",
			do: `POST $machine/exec {"command": ["sleep", "1000"], "timeout": 1}
				408 {"error": "<text>"}`,
		},
		{
			says: "the timeout of a stop may be a number of seconds, or of nanoseconds when it is large",
			with: `"env": {"HANGAR_FAKE_STOP": "ignore"}`,
			do: `POST $machine/stop {"timeout": 1}
				200
				GET $machine/wait?state=stopped
				200
				POST $machine2/stop {"timeout": 1000000000}
				200
				GET $machine2/wait?state=stopped
				200`,
		},
	}
}
