package spec_test

func updateRows() []row {
	return []row{
		{
			says: "an update of a Machine that runs reboots it with the new config",
			do: `POST $machine {"config": {"image": "$image", "env": {"A": "1"}}}
				200 {"id": "$machine.id", "instance_id": "<text as version>"}
				GET $machine/wait?state=started&instance_id=$version
				200
				GET $machine
				200 {"state": "started", "instance_id": "$version", "config": {"env": {"A": "1"}}}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~A=1"}`,
		},
		{
			says: "an update changes the instance_id",
			do: `POST $machine {"config": {"image": "$image"}}
				200 {"instance_id": "<not $machine.instance>"}`,
		},
		{
			says: "an update needs the entire config: what it leaves out is gone",
			with: `"env": {"A": "1"}, "metadata": {"role": "front"}, "guest": {"cpus": 2, "memory_mb": 512}`,
			do: `POST $prepared {"config": {"image": "$image"}}
				200 {"config": {"env": "<absent>", "metadata": "<absent>", "guest": {"cpus": 1, "memory_mb": 256}}}`,
		},
		{
			says: "an update needs a config",
			do: `POST $stopped {"name": "$stopped.name"}
				400 {"error": "~config"}
				GET $stopped
				200 {"instance_id": "$stopped.instance"}`,
		},
		{
			says: "an update needs an image, too",
			do: `POST $stopped {"config": {"env": {"A": "1"}}}
				400 {"error": "~config.image"}
				GET $stopped
				200 {"instance_id": "$stopped.instance"}`,
		},
		{
			says: "a config that breaks a rule leaves the Machine as it is",
			do: `POST $machine {"config": {"image": "$image", "guest": {"memory_mb": 300}}}
				400 {"error": "~config.guest.memory_mb"}
				GET $machine
				200 {"state": "started", "instance_id": "$machine.instance"}`,
		},
		{
			says: "the name of a Machine is immutable",
			do: `POST $stopped {"name": "another", "config": {"image": "$image"}}
				400 {"error": "~name"}
				GET $stopped
				200 {"name": "$stopped.name", "instance_id": "$stopped.instance"}`,
		},
		{
			says: "an update may say the name that the Machine has",
			do: `POST $stopped {"name": "$stopped.name", "config": {"image": "$image"}}
				200 {"name": "$stopped.name"}`,
		},
		{
			says: "the region of a Machine is immutable",
			do: `POST $stopped {"region": "zzz", "config": {"image": "$image"}}
				400 {"error": "~region"}
				GET $stopped
				200 {"region": "loc", "instance_id": "$stopped.instance"}`,
		},
		{
			says: "with current_version an update is of that version",
			do: `POST $stopped {"config": {"image": "$image"}, "current_version": "$stopped.instance"}
				200 {"instance_id": "<not $stopped.instance>"}`,
		},
		{
			says: "an update of another version than the latest is refused",
			do: `POST $stopped {"config": {"image": "$image"}, "current_version": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
				409 {"status": "stale_version"}
				GET $stopped
				200 {"instance_id": "$stopped.instance"}`,
		},
		{
			says: "an update of guest scales the Machine",
			do: `POST $machine {"config": {"image": "$image", "guest": {"cpu_kind": "shared", "cpus": 2, "memory_mb": 1024}}}
				200 {"instance_id": "<text as version>"}
				GET $machine/wait?instance_id=$version
				200
				GET $machine
				200 {"state": "started", "config": {"guest": {"cpus": 2, "memory_mb": 1024}}}`,
		},
		{
			says: "an update of size scales the Machine",
			do: `POST $stopped {"config": {"image": "$image", "size": "performance-2x"}}
				200 {"config": {"guest": {"cpu_kind": "performance", "cpus": 2, "memory_mb": 4096}}}`,
		},
		{
			says: "with skip_launch a Machine that does not run is not started",
			do: `POST $stopped {"config": {"image": "$image"}, "skip_launch": true}
				200 {"instance_id": "<text as version>"}
				GET $stopped/wait?state=settled&instance_id=$version
				200 {"state": "stopped"}
				GET $stopped
				200 {"state": "stopped", "instance_id": "$version"}`,
		},
		{
			says: "with skip_launch a Machine that runs is stopped with the new version",
			do: `POST $machine {"config": {"image": "$image"}, "skip_launch": true}
				200 {"instance_id": "<text as version>"}
				GET $machine/wait?state=settled&instance_id=$version
				200 {"state": "stopped"}
				POST $machine/start
				200
				GET $machine/wait
				200 {"version": "$version"}`,
		},
		{
			says:    "an update without skip_launch leads to a Machine that runs",
			differs: "a Machine that did not run stays stopped, `skip_launch` or not, as existing clients expect when they deploy to Machines that were stopped for being idle",
			do: `POST $stopped {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				GET $stopped/wait?state=settled&instance_id=$version
				200 {"state": "stopped"}`,
		},
		{
			says: "a new version drops the snapshot of a suspended Machine",
			do: `EXEC $machine ["incr"]
				SUSPEND $machine
				POST $machine {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				GET $machine/wait?state=settled&instance_id=$version
				200
				START $machine
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^0"}`,
		},
		{
			says: "an update with lease_ttl leases the Machine",
			do: `POST $stopped {"config": {"image": "$image"}, "lease_ttl": 60}
				200 {"nonce": "<text as nonce>"}
				GET $stopped/lease
				200 {"data": {"nonce": "$nonce"}}`,
		},
		{
			says: "an update of a Machine that does not exist is answered 404",
			do: `POST /v1/apps/$app/machines/00000000000000 {"config": {"image": "$image"}}
				404 {"error": "~machine not found"}`,
		},
		{
			says: "an earlier config can be rolled back to",
			do: `POST $stopped {"config": {"image": "$image", "env": {"A": "1"}}}
				200 {"config": {"env": {"A": "1"}}, "instance_id": "<text as version>"}
				GET $stopped/wait?state=stopped&instance_id=$version
				200
				GET $stopped/versions
				200 [{"version": "$version", "user_config": {"env": {"A": "1"}}}, {"version": "$stopped.instance"}]
				POST $stopped {"config": {"image": "$image"}}
				200 {"config": {"env": "<absent>"}, "instance_id": "<not $version>"}`,
		},
		{
			says: "persist_rootfs restart does not keep files over an update",
			with: `"guest": {"persist_rootfs": "restart"}`,
			do: `EXEC $machine ["write", "/kept", "before"]
				UPDATE $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stderr": "~not exist"}`,
		},
		{
			says: "persist_rootfs always keeps files over an update",
			with: `"guest": {"persist_rootfs": "always"}`,
			do: `EXEC $machine ["write", "/kept", "before"]
				UPDATE $machine
				POST $machine/exec {"command": ["cat", "/kept"]}
				200 {"stdout": "~before"}`,
		},
		{
			says: "an update keeps the Machine's address, its region and when it was created",
			do: `GET $stopped
				200 {"private_ip": "<text as address>", "created_at": "<text as made>"}
				POST $stopped {"config": {"image": "$image"}}
				200 {"private_ip": "$address", "created_at": "$made", "region": "loc"}`,
		},
		{
			says: "an update is logged in the events",
			do: `UPDATE $machine
				GET $machine
				200 {"events": ["<has>", {"type": "update", "source": "user"}, {"type": "launch", "status": "created"}]}`,
		},
		{
			says: "an update with a new image deploys it",
			do: `POST $stopped {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"image_ref": {"repository": "some/image", "tag": "tag"}, "instance_id": "<not $stopped.instance>"}`,
		},
		{
			says: "an update may say the region that the Machine has",
			do: `POST $stopped {"region": "loc", "config": {"image": "$image"}}
				200 {"region": "loc"}`,
		},
		{
			says:    "lsvd of an update asks for log-structured virtual disks",
			differs: "it is refused, as there are none; false is accepted",
			do: `POST $stopped {"config": {"image": "$image"}, "lsvd": true}
				400 {"error": "~lsvd"}
				POST $stopped {"config": {"image": "$image"}, "lsvd": false}
				200`,
		},
		{
			says: "with skip_service_registration an update cordons the Machine",
			do: `POST $stopped {"config": {"image": "$image"}, "skip_service_registration": true}
				200 {"cordoned": true}`,
		},
		{
			says: "a cordoned Machine stays cordoned over an update and a start",
			do: `POST $stopped/cordon
				200
				POST $stopped {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				GET $stopped/wait?state=stopped&instance_id=$version
				200
				START $stopped
				GET $stopped
				200 {"cordoned": true}`,
		},
		{
			says: "an update without lease_ttl answers no nonce",
			do: `POST $stopped {"config": {"image": "$image"}}
				200 {"nonce": "<absent>"}`,
		},
		{
			says: "what was sent back as it was read changes nothing but the version",
			with: `"size": "shared-cpu-2x", "stop_config": {"timeout": 10000000000}, "services": [{"internal_port": 8080, "autostop": "stop"}], "something_new": [1]`,
			do: `POST $stopped {"config": {"image": "$image", "guest": {"cpu_kind": "shared", "cpus": 2, "memory_mb": 512}, "init": {}, "stop_config": {"timeout": "10s"}, "services": [{"internal_port": 8080, "autostop": true}], "something_new": [1]}}
				200 {"config": {"guest": {"cpus": 2, "memory_mb": 512}, "stop_config": {"timeout": "10s"}, "services": [{"internal_port": 8080, "autostop": true}], "something_new": [1]}}`,
		},
		{
			says: "an update whose image is not in the registry leaves the Machine as it is",
			do: `POST $machine {"config": {"image": "registry.hangar.localhost/personal/none:1"}}
				400 {"error": "~failed to get manifest"}
				GET $machine
				200 {"state": "started", "instance_id": "$machine.instance", "config": {"image": "$image"}}`,
		},
		{
			says: "a suspended Machine is stopped after an update",
			do: `POST $suspended {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				GET $suspended/wait?state=settled&instance_id=$version
				200 {"state": "stopped"}`,
		},
	}
}
