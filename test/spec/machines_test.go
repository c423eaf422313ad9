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
			says: "without a region the platform chooses one",
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
	}
}
