package spec_test

import (
	"strings"
	"testing"
	"time"
)

func appRows() []row {
	return []row{
		{
			says: "creating an App answers 201 with its id and created_at, an integer",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal"}
				201 {"id": "<text>", "created_at": "<integer>"}`,
		},
		{
			says: "an App has an id, a name, a status and its organization's name and slug",
			do: `GET /v1/apps/$app
				200 {"id": "<text>", "name": "$app", "status": "<text>", "organization": {"name": "<text>", "slug": "personal"}}`,
		},
		{
			says: "the id that create answers is the one that get answers",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal"}
				201 {"id": "<text as id>"}
				GET /v1/apps/$new
				200 {"id": "$id"}`,
		},
		{
			says: "a new App is pending",
			do: `GET /v1/apps/$app
				200 {"status": "pending"}`,
		},
		{
			says: "the list of an organization's Apps has a total and for each App its id, name, number of Machines and network",
			do: `GET /v1/apps/$app
				200 {"id": "<text as id>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200
				GET /v1/apps?org_slug=personal
				200 {"total_apps": "<integer>", "apps": ["<has>", {"id": "$id", "name": "$app", "machine_count": 1, "network": "default"}]}`,
		},
		{
			says: "the total of a list is the number of its Apps",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				POST /v1/apps {"app_name": "$new-two", "org_slug": "$org"}
				201
				GET /v1/apps?org_slug=$org
				200 {"total_apps": 2, "apps": ["<has>", {"name": "$new-one"}, {"name": "$new-two"}]}`,
		},
		{
			says: "a list has the Apps of the organization that it asks for alone",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				GET /v1/apps/$app
				200
				GET /v1/apps?org_slug=$org
				200 {"apps": [{"name": "$new-one"}]}
				GET /v1/apps?org_slug=personal
				200 {"apps": ["<lacks>", {"name": "$new-one"}]}`,
		},
		{
			says:    "a list of Apps needs org_slug",
			differs: "without `org_slug` the list has the Apps of every organization that the token may see, as programs that have one token for one organization need no more",
			do: `GET /v1/apps/$app
				200
				GET /v1/apps
				200 {"apps": ["<has>", {"name": "$app"}]}`,
		},
		{
			says: "an App is in the organization that its creation names",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				GET /v1/apps/$new-one
				200 {"organization": {"slug": "$org", "name": "Of this row"}}`,
		},
		{
			says:    "an App needs org_slug",
			differs: "without `org_slug` the App is in the organization `personal`, or in the one that the token is for",
			do: `POST /v1/apps {"app_name": "$new"}
				201
				GET /v1/apps/$new
				200 {"organization": {"slug": "personal"}}
				POST /v1/tokens {"kind": "org", "org_slug": "$org"}
				201 {"token": "<text as mine>"}
				POST /v1/apps {"app_name": "$new-one"}
				> authorization: Bearer $mine
				201 {"organization": {"slug": "$org"}}`,
		},
		{
			says: "an App needs app_name",
			do: `POST /v1/apps {"org_slug": "personal"}
				400 {"error": "~app_name"}`,
		},
		{
			says: "the name of an App is unique",
			do: `POST /v1/apps {"app_name": "$app", "org_slug": "personal"}
				422 {"status": "name_taken"}`,
		},
		{
			says: "a name is unique across organizations",
			do: `POST /v1/apps {"app_name": "$app", "org_slug": "$org"}
				422 {"status": "name_taken"}`,
		},
		{
			says: "an App cannot be in an organization that does not exist",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "nobody-has-this"}
				404
				GET /v1/apps/$new
				404`,
		},
		{
			says: "getting an App tests whether it exists",
			do: `GET /v1/apps/$new
				404 {"error": "<text>"}
				POST /v1/apps {"app_name": "$new", "org_slug": "personal"}
				201
				GET /v1/apps/$new
				200 {"name": "$new"}`,
		},
		{
			says: "the private network of an App is named default unless its creation names one",
			do: `GET /v1/apps/$app
				200 {"network": "default"}
				POST /v1/apps {"app_name": "$new", "org_slug": "personal", "network": "apart"}
				201
				GET /v1/apps/$new
				200 {"network": "apart"}`,
		},
		{
			says: "Machines of Apps in the same network share the network's part of their addresses",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "personal", "network": "$new"}
				201
				POST /v1/apps {"app_name": "$new-two", "org_slug": "personal", "network": "$new"}
				201
				POST /v1/apps/$new-one/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"private_ip": "<text as first>"}
				POST /v1/apps/$new-two/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"private_ip": "<text as second>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200 {"private_ip": "<text as other>"}`,
			then: sharesNetwork,
		},
		{
			says: "deleting an App answers 202 without a body",
			do: `DELETE /v1/apps/$app
				202 <empty>`,
		},
		{
			says: "a deleted App is not there any more, and in no list",
			do: `DELETE /v1/apps/$app
				202
				GET /v1/apps/$app
				404
				GET /v1/apps?org_slug=personal
				200 {"apps": ["<lacks>", {"name": "$app"}]}`,
		},
		{
			says: "the name of a deleted App is free",
			do: `DELETE /v1/apps/$app
				202
				POST /v1/apps {"app_name": "$app", "org_slug": "personal"}
				201`,
		},
		{
			says: "deleting an App that does not exist is answered 404",
			do: `DELETE /v1/apps/$new
				404`,
		},
		{
			says: "with force an App is deleted with Machines that run",
			do: `GET $machine
				200 {"state": "started"}
				DELETE /v1/apps/$app?force=true
				202 <empty>
				GET $machine
				404`,
		},
		{
			says:    "without force the Machines of an App should be stopped before it is deleted",
			differs: "an App is deleted with all its Machines, `force` or not, because existing clients ask the user and leave `force` out",
			do: `GET $machine
				200 {"state": "started"}
				DELETE /v1/apps/$app
				202
				GET $machine
				404`,
		},
		{
			says: "a Machine belongs to an App: there is none without",
			do: `POST /v1/apps/$new/machines {"config": {"image": "$image"}}
				404 {"error": "<text>"}`,
		},
		{
			says: "a Machine of one App is not there in another",
			do: `GIVEN $stopped
				GET /v1/apps/$app2/machines/$stopped.id
				404
				POST /v1/apps/$app2/machines/$stopped.id/start
				404
				DELETE /v1/apps/$app2/machines/$stopped.id
				404`,
		},
		{
			says: "a list of Machines has those of its App alone",
			do: `GET /v1/apps/$app/machines
				200 []
				GIVEN $prepared
				GET /v1/apps/$app/machines
				200 [{"id": "$prepared.id"}]
				GET /v1/apps/$app2/machines
				200 []`,
		},
		{
			says: "an App is created without an address, and is closed to the internet",
			do: `GET /v1/apps/$app/ip_assignments
				200 {"ips": []}`,
		},
		{
			says: "a Machine inherits the App's secrets: those set later, with its next update",
			do: `POST /v1/apps/$app/secrets {"values": {"BEFORE": "1"}}
				200
				GIVEN $machine
				POST /v1/apps/$app/secrets {"values": {"AFTER": "2"}}
				200
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~BEFORE=1"}
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "!~AFTER"}
				UPDATE $machine
				POST $machine/exec {"command": ["env"]}
				200 {"stdout": "~AFTER=2"}`,
		},
		{
			says: "the number of Machines of an App follows them",
			do: `GIVEN $prepared
				GIVEN $prepared2
				GET /v1/apps/$app
				200 {"machine_count": 2}
				DELETE $prepared
				200
				GET $prepared/wait?state=destroyed
				200
				UNTIL /v1/apps/$app
				200 {"machine_count": 1}`,
		},
		{
			says: "created_at of an App is in milliseconds since 1970",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal"}
				201 {"created_at": "<integer as made>"}`,
			then: func(t *testing.T, x *exchange) {
				if age := time.Since(time.UnixMilli(int64(x.integer("made")))); age < -time.Hour || age > time.Hour {
					t.Errorf("a new App was created %s ago", age)
				}
			},
		},
		{
			says: "an App with a Machine is deployed",
			do: `GIVEN $prepared
				UNTIL /v1/apps/$app
				200 {"status": "deployed", "machine_count": 1}`,
		},
		{
			says: "an App has the numbers of its Machines and volumes, and one of its own",
			do: `GIVEN $prepared
				GIVEN $volume
				UNTIL /v1/apps/$app
				200 {"internal_numeric_id": "<positive>", "machine_count": 1, "volume_count": 1, "cname_target": "<any>", "app_role": ""}`,
		},
		{
			says: "an App may be created with the properties that existing clients send, and is in the answer",
			do: `POST /v1/apps?wait=true {"name": "$new", "org_slug": "personal", "network": "", "app_role_id": "", "enable_subdomains": false}
				201 {"name": "$new", "network": "default", "organization": {"slug": "personal"}, "created_at": "<integer>"}
				GET /v1/apps/$new
				200 {"name": "$new"}`,
		},
		{
			says: "an App has no role: a list by one is empty",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				GET /v1/apps?org_slug=$org&app_role=remote-docker-builder
				200 {"total_apps": 0, "apps": []}`,
		},
		{
			says: "the name of an App has lowercase letters, digits and dashes",
			do: `POST /v1/apps {"app_name": "Not_A_Name", "org_slug": "personal"}
				422 {"error": "<text>"}
				POST /v1/apps {"app_name": "", "org_slug": "personal"}
				400 {"error": "~app_name"}`,
		},
		{
			says: "the name of an App has 63 characters at most",
			do: `POST /v1/apps {"app_name": "a` + strings.Repeat("b", 63) + `", "org_slug": "personal"}
				422 {"error": "<text>"}
				POST /v1/apps {"app_name": "$new-` + strings.Repeat("b", 63-len("spec-00000000-")) + `", "org_slug": "$org"}
				201
				DELETE /v1/apps/$new-` + strings.Repeat("b", 63-len("spec-00000000-")) + `
				202`,
		},
		{
			says: "a list is of an organization that exists",
			do: `GET /v1/apps?org_slug=no-such-org
				404 {"error": "<text>"}`,
		},
		{
			says: "force is true or false",
			do: `DELETE /v1/apps/$app?force=maybe
				400 {"error": "~force"}
				GET /v1/apps/$app
				200`,
		},
		{
			says: "deleting an App deletes its volumes",
			do: `GIVEN $volume
				DELETE /v1/apps/$app
				202
				GET $volume
				404`,
		},
		{
			says: "an App with the name of a deleted one has nothing of it",
			do: `POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				200
				GIVEN $prepared
				DELETE /v1/apps/$app
				202
				POST /v1/apps {"app_name": "$app", "org_slug": "personal"}
				201
				GET /v1/apps/$app/secrets
				200 {"secrets": []}
				GET /v1/apps/$app/machines?include_deleted=true
				200 []`,
		},
		{
			says: "networks of two organizations are different, whatever their names",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "personal", "network": "$new"}
				201
				POST /v1/apps {"app_name": "$new-two", "org_slug": "personal", "network": "$new"}
				201
				POST /v1/apps {"app_name": "$new-three", "org_slug": "$org", "network": "$new"}
				201
				POST /v1/apps/$new-one/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"private_ip": "<text as first>"}
				POST /v1/apps/$new-two/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"private_ip": "<text as second>"}
				POST /v1/apps/$new-three/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"private_ip": "<text as other>"}`,
			then: sharesNetwork,
		},
		{
			says: "the name of a network has letters, digits and dashes",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal", "network": "not a name"}
				400 {"error": "~Network may only contain"}`,
		},
	}
}
