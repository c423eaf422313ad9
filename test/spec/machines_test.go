package spec_test

import (
	"slices"
	"testing"
)

func machineRows() []row {
	return []row{
		{
			says: "creating a Machine needs a config with an image alone",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}}
				200 {"id": "<text>", "config": {"image": "$image"}}`,
		},
		{
			says: "a Machine needs a config",
			do: `POST /v1/apps/$app/machines {"name": "one"}
				400 {"error": "~config"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "a config needs an image",
			do: `POST /v1/apps/$app/machines {"config": {"guest": {"cpus": 1}}}
				400 {"error": "~config.image"}`,
		},
		{
			says: "a Machine boots when it is created",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=started
				200 {"ok": true}
				GET /v1/apps/$app/machines/$id
				200 {"state": "started"}`,
		},
		{
			says: "with skip_launch a Machine is not booted",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=stopped
				200
				GET /v1/apps/$app/machines/$id
				200 {"state": "stopped", "events": ["<lacks>", {"type": "start"}]}`,
		},
		{
			says: "skip_launch is false unless it is given",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": false}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait
				200 {"state": "started"}`,
		},
		{
			says: "a Machine that was created with skip_launch can be started later",
			do: `POST $prepared/start
				200
				GET $prepared/wait?state=started
				200 {"state": "started"}`,
		},
		{
			says: "a Machine has every property that is documented",
			do: `GET $machine
				200 {"id": "<text>", "name": "<text>", "state": "<text>", "region": "<text>", "instance_id": "<text>", "private_ip": "<text>",
					"config": {}, "checks": [], "image_ref": {}, "created_at": "<time>", "updated_at": "<time>", "events": ["<has>"]}`,
		},
		{
			says:    "checks of a Machine are an object",
			differs: "`checks` is a list of objects with `name`, `status`, `output` and `updated_at`, as existing clients decode it",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "checks": {"alive": {"type": "tcp", "port": 8080}}}, "skip_launch": true}
				200 {"checks": [{"name": "alive", "status": "<text>", "updated_at": "<time>"}]}`,
		},
		{
			says: "the id of a Machine is stable: it survives stop, start and update",
			do: `STOP $machine
				START $machine
				POST $machine {"config": {"image": "$image", "env": {"A": "1"}}}
				200 {"id": "$machine.id", "name": "$machine.name"}`,
		},
		{
			says: "a Machine that is created without a name gets one",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"name": "<text>"}`,
		},
		{
			says: "names that are made up differ",
			do: `GET $prepared
				200 {"name": "<text as one>"}
				GET $prepared2
				200 {"name": "<not $one>"}`,
		},
		{
			says: "a Machine has the name that its creation gives",
			do: `POST /v1/apps/$app/machines {"name": "front", "config": {"image": "$image"}, "skip_launch": true}
				200 {"id": "<text as id>", "name": "front"}
				GET /v1/apps/$app/machines/$id
				200 {"name": "front"}`,
		},
		{
			says: "the name of a Machine is unique in its App",
			do: `POST /v1/apps/$app/machines {"name": "$prepared.name", "config": {"image": "$image"}}
				409 {"error": "~already exists", "status": "name_taken"}
				GET /v1/apps/$app/machines
				200 [{"id": "$prepared.id"}]`,
		},
		{
			says: "Machines of two Apps may have one name",
			do: `POST /v1/apps/$app2/machines {"name": "$prepared.name", "config": {"image": "$image"}, "skip_launch": true}
				200 {"name": "$prepared.name"}`,
		},
		{
			says: "the name of a destroyed Machine is free",
			do: `POST /v1/apps/$app/machines {"name": "$destroyed.name", "config": {"image": "$image"}, "skip_launch": true}
				200 {"name": "$destroyed.name", "id": "<not $destroyed.id>"}`,
		},
		{
			says: "a Machine is in the region that its creation names",
			do: `POST /v1/apps/$app/machines {"region": "loc", "config": {"image": "$image"}, "skip_launch": true}
				200 {"region": "loc"}`,
		},
		{
			says:    "without a region a Machine is placed near its caller's connection to the network",
			differs: "it is placed in the region of the server that receives the request, as distances to callers are not measured",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"region": "loc"}`,
		},
		{
			says: "the private address is an IPv6 address",
			do: `GET $prepared
				200 {"private_ip": "~^fdaa:[0-9a-f:]+$"}`,
		},
		{
			says: "Machines have private addresses of their own",
			do: `GET $prepared
				200 {"private_ip": "<text as one>"}
				GET $prepared2
				200 {"private_ip": "<not $one>"}`,
		},
		{
			says: "image_ref describes the image: registry, repository, tag and digest",
			do: `GET $prepared
				200 {"image_ref": {"registry": "registry.hangar.localhost", "repository": "personal/web", "tag": "1", "digest": "~^sha256:[0-9a-f]{64}$"}}`,
		},
		{
			says: "the events of a Machine log what happened to it",
			do: `GET $machine
				200 {"events": ["<has>", {"type": "launch", "status": "created", "timestamp": "<integer>"}, {"type": "start", "status": "started"}]}
				STOP $machine
				GET $machine
				200 {"events": ["<has>", {"type": "stop"}, {"type": "exit", "request": {"exit_event": {"requested_stop": true}}}]}`,
		},
		{
			says: "get answers what create did",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "env": {"A": "1"}}, "skip_launch": true}
				200 {"id": "<text as id>", "name": "<text as name>", "instance_id": "<text as version>", "private_ip": "<text as address>", "created_at": "<text as made>"}
				GET /v1/apps/$app/machines/$id
				200 {"id": "$id", "name": "$name", "instance_id": "$version", "private_ip": "$address", "created_at": "$made", "config": {"env": {"A": "1"}}}`,
		},
		{
			says: "a Machine that does not exist is answered 404",
			do: `GET /v1/apps/$app/machines/00000000000000
				404 {"error": "~machine not found"}
				POST /v1/apps/$app/machines/00000000000000/start
				404 {"error": "~machine not found"}
				DELETE /v1/apps/$app/machines/00000000000000
				404 {"error": "~machine not found"}`,
		},
		{
			says: "a list leaves out deleted Machines",
			do: `GIVEN $prepared
				GIVEN $destroyed
				UNTIL /v1/apps/$app/machines
				200 [{"id": "$prepared.id"}]
				GET /v1/apps/$app/machines?include_deleted=false
				200 [{"id": "$prepared.id"}]`,
		},
		{
			says: "a list with include_deleted has deleted Machines, too",
			do: `GIVEN $prepared
				GIVEN $destroyed
				UNTIL /v1/apps/$app/machines?include_deleted=true
				200 ["<has>", {"id": "$prepared.id", "state": "stopped"}, {"id": "$destroyed.id", "state": "destroyed"}]`,
		},
		{
			says: "a list can be filtered by region",
			do: `GIVEN $prepared
				GET /v1/apps/$app/machines?region=loc
				200 [{"id": "$prepared.id"}]
				GET /v1/apps/$app/machines?region=zzz
				200 []`,
		},
		{
			says: "a list can be filtered by a pair of metadata",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "metadata": {"role": "front"}}, "skip_launch": true}
				200 {"id": "<text as front>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "metadata": {"role": "back"}}, "skip_launch": true}
				200
				GET /v1/apps/$app/machines?metadata.role=front
				200 [{"id": "$front"}]
				GET /v1/apps/$app/machines?metadata.role=none
				200 []
				GET /v1/apps/$app/machines?metadata.other=front
				200 []`,
		},
		{
			says: "filters of a list count together",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "metadata": {"role": "front", "zone": "a"}}, "skip_launch": true}
				200 {"id": "<text as one>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "metadata": {"role": "front", "zone": "b"}}, "skip_launch": true}
				200
				GET /v1/apps/$app/machines?metadata.role=front&metadata.zone=a&region=loc
				200 [{"id": "$one"}]
				GET /v1/apps/$app/machines?metadata.role=front&metadata.zone=a&region=zzz
				200 []`,
		},
		{
			says: "a list has the Machines with their states and configs",
			do: `GIVEN $stopped
				UNTIL /v1/apps/$app/machines
				200 [{"id": "$stopped.id", "state": "stopped", "config": {"image": "$image"}, "instance_id": "$stopped.instance"}]`,
		},
		{
			says:    "a list has the Machines in the order in which they were created",
			differs: "it is sorted by id, so that a page that was cut off goes on after the last id, whatever comes and goes in between",
			do: `GIVEN $prepared
				GIVEN $prepared2
				GIVEN $prepared3
				GET /v1/apps/$app/machines
				200 [{"id": "<text as a>"}, {"id": "<text as b>"}, {"id": "<text as c>"}]`,
			then: func(t *testing.T, x *exchange) {
				if ids := []string{x.value("a"), x.value("b"), x.value("c")}; !slices.IsSorted(ids) {
					t.Errorf("listed as %v", ids)
				}
			},
		},
		{
			says: "with skip_service_registration a Machine starts cordoned",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "skip_service_registration": true}
				200 {"id": "<text as id>", "cordoned": true}
				GET /v1/apps/$app/machines/$id
				200 {"cordoned": true}
				POST /v1/apps/$app/machines/$id/uncordon
				200 {"ok": true}
				GET /v1/apps/$app/machines/$id
				200 {"cordoned": false}`,
		},
		{
			says: "skip_service_registration is false unless it is given",
			do: `GET $prepared
				200 {"cordoned": false}`,
		},
		{
			says: "cordoning answers that it is ok and leaves the state as it is",
			do: `POST $machine/cordon
				200 {"ok": true}
				GET $machine
				200 {"state": "started", "cordoned": true, "instance_id": "$machine.instance"}`,
		},
		{
			says: "a stopped Machine can be cordoned and uncordoned",
			do: `POST $stopped/cordon
				200 {"ok": true}
				GET $stopped
				200 {"state": "stopped", "cordoned": true}
				POST $stopped/uncordon
				200 {"ok": true}
				GET $stopped
				200 {"state": "stopped", "cordoned": false}`,
		},
		{
			says: "uncordoning answers that it is ok, also when a Machine is not cordoned",
			do: `POST $machine/uncordon
				200 {"ok": true}
				GET $machine
				200 {"state": "started", "cordoned": false}`,
		},
		{
			says:    "lsvd asks for log-structured virtual disks",
			differs: "it is refused, as there are none; false is accepted",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lsvd": true}
				400 {"error": "~lsvd"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lsvd": false}
				200`,
		},
		{
			says: "create with lease_ttl answers the nonce of a lease of the new Machine",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lease_ttl": 60}
				200 {"id": "<text as id>", "nonce": "<text as nonce>"}
				GET /v1/apps/$app/machines/$id/lease
				200 {"data": {"nonce": "$nonce"}}`,
		},
		{
			says: "create without lease_ttl answers no nonce and leases nothing",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"id": "<text as id>", "nonce": "<absent>"}
				GET /v1/apps/$app/machines/$id/lease
				404`,
		},
		{
			says:    "the nonce is a property of a Machine that is leased",
			differs: "it is in the answers to a creation and an update with `lease_ttl` alone, and in the lease for those who may change the Machine: one who may only read could act under another's lease otherwise",
			do: `POST $prepared/lease {"ttl": 60}
				201 {"data": {"nonce": "<text>"}}
				GET $prepared
				200 {"nonce": "<absent>"}`,
		},
		{
			says: "an image that cannot be had leaves a Machine that failed",
			do: `POST /v1/apps/$app/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=settled
				200 {"state": "failed"}
				GET /v1/apps/$app/machines/$id
				200 {"state": "failed", "image_ref": {"registry": "127.0.0.1:1", "repository": "some/image", "tag": "tag"}}`,
		},
		{
			says: "a Machine's id is of 14 hexadecimal digits, its version a ULID under two names",
			do: `GET $prepared
				200 {"id": "~^[0-9a-f]{14}$", "instance_id": "~^[0-9A-HJKMNP-TV-Z]{26}$", "version": "$prepared.instance"}`,
		},
		{
			says: "a Machine whose host answers has the host_status ok and its whole config",
			do: `GET $prepared
				200 {"host_status": "ok", "incomplete_config": null, "config": {"guest": {}, "init": {}}}`,
		},
		{
			says: "created_at and updated_at are in UTC and whole seconds",
			do: `GET $prepared
				200 {"created_at": "~^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$", "updated_at": "~^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ$"}`,
		},
		{
			says: "creating a Machine answers before it has booted",
			with: `"env": {"HANGAR_FAKE_START_DELAY": "500ms"}`,
			do: `POST /v1/apps/$app/machines {"config": $config}
				200 {"state": "created"}`,
		},
		{
			says: "a name that is made up is two words and a number",
			do: `GET $prepared
				200 {"name": "~^[a-z]+-[a-z]+-\\d+$"}`,
		},
		{
			says: "image_ref has the labels of the image",
			do: `GET $prepared
				200 {"image_ref": {"labels": {}}}`,
		},
		{
			says: "an event has an id, a type, a status, a source and its time in milliseconds, the newest first",
			do: `STOP $machine
				UNTIL $machine/events?limit=50
				200 ["<has>", {"id": "<text>", "type": "launch", "status": "created", "source": "user", "timestamp": "<positive>"},
					{"type": "start", "status": "starting"}, {"type": "exit", "status": "stopped", "source": "flyd"}, {"type": "stop", "status": "stopping", "source": "user"}]`,
			then: newestFirst,
		},
		{
			says: "an exit says what ended the Machine, and when",
			with: `"restart": {"policy": "no"}, "init": {"exec": ["sh", "-c", "exit 7"]}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"events": ["<has>", {"type": "exit", "request": {
					"exit_event": {"exit_code": 7, "guest_exit_code": 7, "guest_signal": -1, "signal": -1, "oom_killed": false, "requested_stop": false, "restarting": false, "exited_at": "<time>"},
					"MonitorEvent": {"exit_event": {"exit_code": 7, "exited_at": "<time>"}}}}]}`,
		},
		{
			says: "a Machine that ran out of memory says so",
			with: `"restart": {"policy": "no"}, "env": {"HANGAR_FAKE_EXIT": "oom@10ms"}`,
			do: `GET $created/wait?state=stopped
				200
				GET $created
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"oom_killed": true}}}]}`,
		},
		{
			says: "the events of a Machine are listed, as many as are asked for and 50 at most",
			do: `GET $machine/events?limit=1
				200 [{"type": "start", "status": "started"}]
				GET $machine/events?limit=51
				400 {"error": "~limit"}`,
		},
		{
			says: "a list can be filtered by states",
			do: `GIVEN $prepared
				GIVEN $machine
				UNTIL /v1/apps/$app/machines?state=started
				200 [{"id": "$machine.id"}]
				UNTIL /v1/apps/$app/machines?state=started,stopped
				200 ["<has>", {"id": "$machine.id"}, {"id": "$prepared.id"}]
				GET /v1/apps/$app/machines?state=nonsense
				400 {"error": "~state"}`,
		},
		{
			says: "a summary leaves out config, checks and events",
			do: `GIVEN $prepared
				GET /v1/apps/$app/machines?summary=true
				200 [{"id": "$prepared.id", "name": "$prepared.name", "state": "stopped", "config": "<absent>", "checks": "<absent>", "events": "<absent>"}]`,
		},
		{
			says: "include_deleted is true or false",
			do: `GET /v1/apps/$app/machines?include_deleted=maybe
				400 {"error": "~include_deleted"}`,
		},
		{
			says: "the Machines of an organization are listed over all its Apps",
			do: `POST /v1/apps/$app2/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"id": "<text as other>"}
				GIVEN $prepared
				UNTIL /v1/orgs/personal/machines
				200 {"machines": ["<has>", {"id": "$prepared.id", "app_name": "$app"}, {"id": "$other", "app_name": "$app2", "config": {"guest": {"cpus": 1}}}], "next_cursor": "", "last_updated_at": "<text>"}
				GET /v1/orgs/$org/machines
				200 {"machines": []}`,
		},
		{
			says: "with a list of regions the first that there is is taken",
			do: `POST /v1/apps/$app/machines {"region": "zzz,loc", "config": {"image": "$image"}, "skip_launch": true}
				200 {"region": "loc"}
				POST /v1/apps/$app/machines {"region": "any", "config": {"image": "$image"}, "skip_launch": true}
				200 {"region": "loc"}`,
		},
		{
			says: "unknown properties of a creation are ignored",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "something_new": true}
				200 {"something_new": "<absent>"}`,
		},
		{
			says: "the secrets of the App are as new as min_secrets_version says",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200 {"version": "<integer as version>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "min_secrets_version": $version}
				200
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "min_secrets_version": 1000}
				412 {"error": "~secrets"}`,
		},
		{
			says: "with skip_secrets a Machine has no secrets of its App",
			do: `POST /v1/apps/$app/secrets {"values": {"A_SECRET": "1"}}
				200
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_secrets": true}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait
				200
				POST /v1/apps/$app/machines/$id/exec {"command": ["env"]}
				200 {"stdout": "!~A_SECRET"}`,
		},
		{
			says: "a Machine finds the platform's variables in its environment, under both spellings",
			with: `"metadata": {"fly_process_group": "web"}, "env": {"FLY_APP_NAME": "mine"}`,
			do: `GET $machine
				200 {"private_ip": "<text as address>"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?m)^FLY_ALLOC_ID=$machine.id$"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?ms)^FLY_APP_NAME=$app$.*^FLY_IMAGE_REF=registry.hangar.localhost/personal/web:1$.*^FLY_MACHINE_ID=$machine.id$.*^FLY_MACHINE_VERSION=$machine.instance$"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?ms)^FLY_PRIVATE_IP=$address$.*^FLY_PROCESS_GROUP=web$.*^FLY_REGION=loc$.*^FLY_VM_MEMORY_MB=256$"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~(?m)^PLATFORM_MACHINE_ID=$machine.id$"}`,
		},
		{
			says: "lease_ttl is a number of seconds, a day at most",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lease_ttl": -1}
				400 {"error": "~lease_ttl"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lease_ttl": 86401}
				400 {"error": "~lease_ttl"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "a config with services may be created, and is answered",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080}]}, "skip_launch": true}
				200 {"config": {"services": [{"internal_port": 8080}]}}`,
		},
		{
			says: "the region of a Machine is one, of three letters",
			do: `GET $prepared
				200 {"region": "~^[a-z]{3}$"}`,
		},
		{
			says: "a creation that is refused attaches no volume and leases nothing",
			do: `GIVEN $prepared
				POST /v1/apps/$app/machines {"name": "$prepared.name", "lease_ttl": 60, "config": {"image": "$image", ` + mounted + `}}
				409
				GET $volume
				200 {"attached_machine_id": null}
				GET $prepared/lease
				404`,
		},
		{
			says: "an image that is not in the registry is refused",
			do: `POST /v1/apps/$app/machines {"config": {"image": "registry.hangar.localhost/personal/none:1"}}
				400 {"error": "~failed to get manifest"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "a Machine has its address and its version until it is updated",
			do: `GET $machine
				200 {"private_ip": "<text as address>"}
				STOP $machine
				START $machine
				SUSPEND $machine
				START $machine
				GET $machine
				200 {"private_ip": "$address", "instance_id": "$machine.instance"}`,
		},
		{
			says: "a name and a region that are empty count as left out",
			do: `POST /v1/apps/$app/machines {"name": "", "region": "", "config": {"image": "$image"}, "skip_launch": true}
				200 {"name": "<text>", "region": "loc"}`,
		},
		{
			says: "a Machine may be created from an image by its tag, whose digest it then has",
			do: `POST /v1/apps/$app/machines {"config": {"image": "registry.hangar.localhost/personal/web:1"}, "skip_launch": true}
				200 {"id": "<text as id>", "config": {"image": "registry.hangar.localhost/personal/web:1"}}
				GET /v1/apps/$app/machines/$id/wait?state=stopped
				200
				GET /v1/apps/$app/machines/$id
				200 {"image_ref": {"tag": "1", "digest": "~^sha256:[0-9a-f]{64}$"}}`,
		},
		{
			says: "a list by metadata and one with deleted Machines go together",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "metadata": {"role": "front"}}, "skip_launch": true}
				200 {"id": "<text as front>"}
				GET /v1/apps/$app/machines/$front/wait?state=stopped
				200
				DELETE /v1/apps/$app/machines/$front
				200
				GET /v1/apps/$app/machines/$front/wait?state=destroyed
				200
				UNTIL /v1/apps/$app/machines?metadata.role=front&include_deleted=true
				200 [{"id": "$front", "state": "destroyed"}]
				GET /v1/apps/$app/machines?metadata.role=front
				200 []`,
		},
	}
}
