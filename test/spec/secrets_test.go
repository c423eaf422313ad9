package spec_test

import "testing"

func secretRows() []row {
	return []row{
		{
			says: "an App without secrets has none",
			do: `GET /v1/apps/$app/secrets
				200 {"secrets": []}
				GET /v1/apps/$app/secrets/A
				404 {"error": "<text>"}`,
		},
		{
			says: "setting secrets answers them without their values, and their version under two names",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "hidden", "B": "hidden"}}
				200 {"secrets": ["<has>", {"name": "A", "digest": "<text>", "created_at": "<time>", "updated_at": "<time>", "value": "<absent>"}, {"name": "B"}],
					"version": "<positive>", "Version": "<positive>"}`,
		},
		{
			says: "a list of secrets has their digests, and values for those who ask alone",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "hidden"}}
				200
				GET /v1/apps/$app/secrets
				200 {"secrets": [{"name": "A", "digest": "<text>", "value": "<absent>"}]}
				GET /v1/apps/$app/secrets?show_secrets=true
				200 {"secrets": [{"name": "A", "value": "hidden"}]}`,
		},
		{
			says: "a read-only token sees no values of secrets",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "hidden"}}
				200
				POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>"}
				GET /v1/apps/$app/secrets
				> authorization: Bearer $mine
				200 {"secrets": [{"name": "A", "value": "<absent>"}]}
				GET /v1/apps/$app/secrets?show_secrets=true
				> authorization: Bearer $mine
				403`,
		},
		{
			says: "null removes a secret, and leaves the others",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1", "B": "2"}}
				200
				POST /v1/apps/$app/secrets {"values": {"A": null}}
				200
				GET /v1/apps/$app/secrets
				200 {"secrets": [{"name": "B"}]}`,
		},
		{
			says: "a change of secrets makes a new version of them",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200 {"version": "<integer as before>"}
				POST /v1/apps/$app/secrets {"values": {"A": "2"}}
				200 {"version": "<integer as after>"}
				GET /v1/apps/$app/secrets?min_version=$after
				200 {"version": $after}`,
			then: func(t *testing.T, x *exchange) {
				if x.integer("after") <= x.integer("before") {
					t.Errorf("version %s is followed by %s", x.value("before"), x.value("after"))
				}
			},
		},
		{
			says: "the digest of a secret is another one with another value",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200 {"secrets": [{"name": "A", "digest": "<text as one>"}]}
				POST /v1/apps/$app/secrets {"values": {"A": "2"}}
				200 {"secrets": [{"name": "A", "digest": "<not $one>"}]}`,
		},
		{
			says: "one secret can be set, got and removed",
			do: `POST /v1/apps/$app/secrets/A {"value": "1"}
				201 {"name": "A", "digest": "<text>", "version": "<positive>"}
				GET /v1/apps/$app/secrets/A
				200 {"name": "A", "value": "<absent>"}
				DELETE /v1/apps/$app/secrets/A
				200 {"version": "<positive>"}
				GET /v1/apps/$app/secrets/A
				404`,
		},
		{
			says: "secrets of one App are none of another",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200
				GET /v1/apps/$app2/secrets
				200 {"secrets": []}`,
		},
		{
			says: "setting secrets changes no Machine",
			do: `GIVEN $machine
				POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200
				GET $machine
				200 {"state": "started", "instance_id": "$machine.instance"}`,
		},
		{
			says: "a file may have the content of a secret, which holds it in base64",
			with: `"files": [{"guest_path": "/key", "secret_name": "KEY"}]`,
			do: `POST /v1/apps/$app/secrets {"values": {"KEY": "aGlkZGVu"}}
				200
				POST $machine/exec {"command": ["cat", "/key"]}
				200 {"stdout": "hidden"}`,
		},
		{
			says: "an address has its kind, a region and when it was allocated",
			do: `POST /v1/apps/$app/ip_assignments {"type": "v4", "region": "", "org_slug": "", "network": "", "service_name": ""}
				200 {"ip": "~^[0-9.]+$", "shared": false, "region": "<any>", "service_name": "<any>", "created_at": "<time>"}`,
		},
		{
			says: "a shared address is shared, and one of an App's own is not",
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200 {"ip": "<text as shared>", "shared": true}
				POST /v1/apps/$app2/ip_assignments {"type": "shared_v4"}
				200 {"ip": "$shared", "shared": true}
				POST /v1/apps/$app/ip_assignments {"type": "v4"}
				200 {"ip": "<not $shared>", "shared": false}`,
		},
		{
			says: "a private address is of the App's network",
			do: `POST /v1/apps/$app/ip_assignments {"type": "private_v6"}
				200 {"ip": "~^fdaa:"}`,
		},
		{
			says: "addresses are listed until they are released",
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200 {"ip": "<text as address>"}
				GET /v1/apps/$app/ip_assignments
				200 {"ips": [{"ip": "$address", "shared": true}]}
				DELETE /v1/apps/$app/ip_assignments/$address
				204
				GET /v1/apps/$app/ip_assignments
				200 {"ips": []}
				DELETE /v1/apps/$app/ip_assignments/$address
				404`,
		},
		{
			says: "the type of an address is one that there is",
			do: `POST /v1/apps/$app/ip_assignments {"type": "v5"}
				400 {"error": "~type"}`,
		},
		{
			says: "places for Machines can be asked for",
			do: `POST /v1/platform/placements {"region": "any", "count": 2, "compute": {"cpu_kind": "shared", "cpus": 1, "memory_mb": 256}, "org_slug": "personal"}
				200 {"Regions": [{"Region": "loc", "Count": 2, "Concurrency": "<integer>"}]}`,
		},
	}
}
