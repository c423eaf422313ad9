package spec_test

import (
	"testing"
	"time"
)

func leaseRows() []row {
	rows := []row{
		{
			says: "taking a lease answers 201 and its nonce",
			do: `POST $machine/lease {"ttl": 60}
				201 {"status": "success", "data": {"nonce": "<text>"}}`,
		},
		{
			says: "description and ttl of a lease are optional",
			do: `POST $machine/lease
				201 {"data": {"nonce": "<text>", "expires_at": "<integer>"}}`,
		},
		{
			says: "a lease has the description that it is taken with",
			do: `POST $machine/lease {"description": "a deployment", "ttl": 60}
				201 {"data": {"description": "a deployment"}}
				GET $machine/lease
				200 {"data": {"description": "a deployment"}}`,
		},
		{
			says: "ttl is in seconds",
			do: `POST $machine/lease {"ttl": 100}
				201 {"data": {"expires_at": "<integer as short>"}}
				POST $machine2/lease {"ttl": 1100}
				201 {"data": {"expires_at": "<integer as long>"}}`,
			then: func(t *testing.T, x *exchange) {
				if d := x.integer("long") - x.integer("short"); d < 999 || d > 1030 {
					t.Errorf("a lease of 1100 s ends %d s after one of 100 s", d)
				}
			},
		},
		{
			says: "a nonce is random",
			do: `POST $machine/lease {"ttl": 60}
				201 {"data": {"nonce": "<text as one>"}}
				POST $machine2/lease {"ttl": 60}
				201 {"data": {"nonce": "<not $one>"}}
				DELETE $machine/lease
				> platform-machine-lease-nonce: $one
				200
				POST $machine/lease {"ttl": 60}
				201 {"data": {"nonce": "<not $one>"}}`,
		},
		{
			says: "a Machine that is leased cannot be leased again",
			do: `LEASE $machine
				POST $machine/lease {"ttl": 60}
				409 {"error": "~lease currently held by"}
				GET $machine/lease
				200 {"data": {"nonce": "$nonce"}}`,
		},
		{
			says: "a lease is lengthened by who shows its nonce, and keeps it",
			do: `POST $machine/lease {"ttl": 60}
				201 {"data": {"nonce": "<text as nonce>", "expires_at": "<integer as before>"}}
				POST $machine/lease {"ttl": 600}
				> platform-machine-lease-nonce: $nonce
				201 {"data": {"nonce": "$nonce", "expires_at": "<integer as after>"}}`,
			then: func(t *testing.T, x *exchange) {
				if x.integer("after") < x.integer("before")+500 {
					t.Errorf("the lease ends at %s, before it was %s", x.value("after"), x.value("before"))
				}
			},
		},
		{
			says:    "a lease ends ttl seconds after it was asked for",
			differs: "its end is rounded up to a whole second, which is what the wire has, so that it never ends before the time that was answered",
			do: `POST $machine/lease {"ttl": 60}
				201 {"data": {"expires_at": "<integer as end>"}}`,
			then: func(t *testing.T, x *exchange) {
				if left := time.Until(time.Unix(int64(x.integer("end")), 0)); left > 61*time.Second {
					t.Errorf("the lease ends in %s", left)
				}
			},
		},
		{
			says: "a Machine without a lease has none to get",
			do: `GET $machine/lease
				404 {"error": "~ lease not found"}`,
		},
		{
			says: "a lease that is taken can be got",
			do: `POST $machine/lease {"ttl": 60}
				201 {"data": {"nonce": "<text as nonce>", "expires_at": "<integer as end>"}}
				GET $machine/lease
				200 {"status": "success", "data": {"nonce": "$nonce", "expires_at": $end, "version": "$machine.instance"}}`,
		},
		{
			says: "releasing a lease needs the header with its nonce",
			do: `LEASE $machine
				DELETE $machine/lease
				400 {"error": "~lease"}
				GET $machine/lease
				200`,
		},
		{
			says: "a wrong nonce releases no lease",
			do: `LEASE $machine
				DELETE $machine/lease
				> platform-machine-lease-nonce: 000000000000
				400 {"error": "~lease"}
				GET $machine/lease
				200`,
		},
		{
			says: "the nonce releases its lease",
			do: `LEASE $machine
				DELETE $machine/lease
				> platform-machine-lease-nonce: $nonce
				200
				GET $machine/lease
				404`,
		},
		{
			says: "a lease that was released cannot be released again",
			do: `LEASE $machine
				DELETE $machine/lease
				> platform-machine-lease-nonce: $nonce
				200
				DELETE $machine/lease
				> platform-machine-lease-nonce: $nonce
				400`,
		},
		{
			says: "the nonce of one Machine is none of another",
			do: `LEASE $machine
				POST $stopped/lease {"ttl": 60}
				201
				POST $stopped/start
				> platform-machine-lease-nonce: $nonce
				409
				DELETE $stopped/lease
				> platform-machine-lease-nonce: $nonce
				400`,
		},
		{
			says: "after its release anybody may change the Machine",
			do: `LEASE $machine
				POST $machine/stop
				409
				DELETE $machine/lease
				> platform-machine-lease-nonce: $nonce
				200
				POST $machine/stop
				200`,
		},
		{
			says: "a lease ends when its ttl has passed",
			do: `POST $machine/lease {"ttl": 1}
				201
				UNTIL $machine/lease
				404
				POST $machine/stop
				200`,
		},
		{
			says: "creating a Machine with lease_ttl guards it from the beginning",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true, "lease_ttl": 60}
				200 {"id": "<text as id>", "nonce": "<text as nonce>"}
				GET /v1/apps/$app/machines/$id/wait?state=stopped
				200
				POST /v1/apps/$app/machines/$id/start
				409
				POST /v1/apps/$app/machines/$id/start
				> platform-machine-lease-nonce: $nonce
				200`,
		},
		{
			says: "the header may be spelled as existing clients do",
			do: `LEASE $machine
				POST $machine/stop
				> fly-machine-lease-nonce: $nonce
				200`,
		},
		{
			says:    "every later call to a leased Machine needs the nonce",
			differs: "reading, waiting, metadata, `exec`, signals and `ps` need none, as existing clients send none with them (ADR 6)",
			do: `LEASE $machine
				GET $machine
				200
				GET $machine/wait
				200
				POST $machine/metadata/role {"value": "front"}
				204
				POST $machine/exec {"command": ["true"]}
				200 {"exit_code": 0}
				POST $machine/signal {"signal": "SIGUSR1"}
				200`,
		},
		{
			says: "a Machine that is not leased needs no nonce, and a stale one does no harm",
			do: `POST $machine/stop
				> platform-machine-lease-nonce: 000000000000
				200`,
		},
		{
			says: "a lease outlives an update by its holder",
			do: `LEASE $stopped
				POST $stopped {"config": {"image": "$image"}}
				> platform-machine-lease-nonce: $nonce
				200 {"instance_id": "<text as version>"}
				GET $stopped/lease
				200 {"data": {"nonce": "$nonce", "version": "$version"}}`,
		},
		{
			says: "a Machine that does not exist cannot be leased",
			do: `POST /v1/apps/$app/machines/00000000000000/lease {"ttl": 60}
				404 {"error": "~machine not found"}`,
		},
		{
			says: "a ttl is not negative",
			do: `POST $machine/lease {"ttl": -5}
				400 {"error": "~ttl"}
				GET $machine/lease
				404`,
		},
		{
			says: "a lease lasts for a day at most",
			do: `POST $machine/lease {"ttl": 86400}
				201
				POST $machine2/lease {"ttl": 86401}
				400 {"error": "~ttl"}`,
		},
		{
			says: "ttl may stand in the query, without a body",
			do: `POST $machine/lease?ttl=1100
				201 {"data": {"expires_at": "<integer as long>"}}
				POST $machine2/lease {"ttl": 100}
				201 {"data": {"expires_at": "<integer as short>"}}`,
			then: func(t *testing.T, x *exchange) {
				if d := x.integer("long") - x.integer("short"); d < 970 || d > 1001 {
					t.Errorf("a lease of 1100 s ends %d s after one of 100 s", d)
				}
			},
		},
		{
			says: "a lease without a ttl lasts for 30 seconds",
			do: `POST $machine/lease
				201 {"data": {"expires_at": "<integer as short>"}}
				POST $machine2/lease {"ttl": 1030}
				201 {"data": {"expires_at": "<integer as long>"}}`,
			then: func(t *testing.T, x *exchange) {
				if d := x.integer("long") - x.integer("short"); d < 999 || d > 1030 {
					t.Errorf("a lease of 1030 s ends %d s after one without a ttl", d)
				}
			},
		},
		{
			says: "a lease has a nonce of 12 hexadecimal digits, an owner, a description and the Machine's version",
			do: `POST $machine/lease {"ttl": 60}
				201 {"status": "success", "data": {"nonce": "~^[0-9a-f]{12}$", "expires_at": "<positive>", "owner": "<text>", "description": "", "version": "$machine.instance"}}`,
		},
		{
			says: "releasing a lease answers that it is ok",
			do: `LEASE $machine
				DELETE $machine/lease
				> fly-machine-lease-nonce: $nonce
				200 {"status": "success", "data": {"ok": true}}`,
		},
		{
			says: "who may only read does not learn the nonce of a lease",
			do: `POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>"}
				LEASE $machine
				GET $machine/lease
				> authorization: Bearer $mine
				200 {"data": {"nonce": "!~$nonce", "expires_at": "<positive>"}}`,
		},
		{
			says: "the refusal of a leased Machine says who holds the lease, and until when",
			do: `LEASE $stopped
				POST $stopped/start
				409 {"error": "~lease currently held by .+, expires at \\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ"}`,
		},
		{
			says: "a lease cannot be lengthened with a wrong nonce",
			do: `LEASE $machine
				POST $machine/lease {"ttl": 600}
				> platform-machine-lease-nonce: 000000000000
				409 {"error": "~lease currently held by"}`,
		},
		{
			says: "the lease of an App's Machine does not keep the App from being deleted",
			do: `LEASE $machine
				DELETE /v1/apps/$app
				202
				GET $machine
				404`,
		},
		{
			says: "a Machine that ends by itself ends under a lease, too",
			with: `"restart": {"policy": "no"}`,
			do: `LEASE $machine
				POST $machine/signal {"signal": "SIGKILL"}
				200
				GET $machine/wait?state=stopped
				200
				GET $machine/lease
				200 {"data": {"nonce": "$nonce"}}`,
		},
		{
			says: "a Machine that is destroyed under its lease is not leased any more",
			do: `LEASE $stopped
				DELETE $stopped
				> platform-machine-lease-nonce: $nonce
				200
				GET $stopped/wait?state=destroyed
				200
				GET $stopped/lease
				404`,
		},
		{
			says: "ttl is a number",
			do: `POST $machine/lease {"ttl": "long"}
				400 {"error": "~ttl"}
				POST $machine/lease?ttl=long
				400 {"error": "~ttl"}
				GET $machine/lease
				404`,
		},
		{
			says: "an update with the lease_ttl of its holder lengthens the lease",
			do: `LEASE $stopped
				POST $stopped {"config": {"image": "$image"}, "lease_ttl": 600}
				> platform-machine-lease-nonce: $nonce
				200 {"nonce": "$nonce"}`,
		},
		{
			says: "the verbs of the platform itself need no nonce: a Machine under a lease is restarted by its policy",
			with: `"restart": {"policy": "always"}, "env": {"HANGAR_FAKE_EXIT": "0@500ms"}`,
			do: `LEASE $created
				UNTIL $created
				200 {"events": ["<has>", {"type": "exit", "request": {"exit_event": {"restarting": true}}}]}
				GET $created/lease
				200 {"data": {"nonce": "$nonce"}}`,
		},
		{
			says: "all metadata of a leased Machine is changed without the nonce",
			do: `LEASE $prepared
				PUT $prepared/metadata {"metadata": {"a": "1", "b": "1"}}
				204
				PATCH $prepared/metadata {"metadata": {"a": "2"}}
				204
				DELETE $prepared/metadata/b
				204
				GET $prepared/metadata
				200 {"a": "2", "b": "<absent>"}`,
		},
		{
			says: "a Machine that is destroyed cannot be leased",
			do: `POST $destroyed/lease {"ttl": 60}
				412 {"error": "<text>"}`,
		},
		{
			says: "a stopped and a suspended Machine can be leased",
			do: `LEASE $stopped
				LEASE $suspended
				POST $suspended/start
				409`,
		},
	}
	for verb, request := range map[string]string{
		"start":    "POST $stopped/start",
		"stop":     "POST $stopped/stop",
		"restart":  "POST $stopped/restart",
		"update":   `POST $stopped {"config": {"image": "$image"}}`,
		"delete":   "DELETE $stopped",
		"cordon":   "POST $stopped/cordon",
		"uncordon": "POST $stopped/uncordon",
	} {
		rows = append(rows, guarded(verb, "stopped", request))
	}
	return append(rows, guarded("suspend", "machine", "POST $machine/suspend"))
}

// guarded is a row of a verb that a lease keeps from everybody but its holder.
func guarded(verb, machine, request string) row {
	return row{says: "to " + verb + " a leased Machine needs the nonce", do: `
		LEASE $` + machine + `
		` + request + `
		409 {"error": "~lease currently held by", "status": "lease_held"}
		` + request + `
		> platform-machine-lease-nonce: 000000000000
		409 {"status": "lease_held"}
		` + request + `
		> platform-machine-lease-nonce: $nonce
		200`}
}
