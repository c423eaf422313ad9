package spec_test

import "strings"

func limitRows() []row {
	return []row{
		{
			says: "every path begins with /v1",
			do: `GET /apps
				404
				GET /v1/apps
				200`,
		},
		{
			says: "an error is JSON with a text",
			do: `GET /v1/apps/$new
				404 {"error": "<text>"}
				< content-type: ~^application/json`,
		},
		{
			says: "an unknown path is answered 404",
			do: `GET /v1/nothing
				404 {"error": "<text>"}`,
		},
		{
			says: "a method that a path does not have is answered 405",
			do: `PUT /v1/apps
				405 {"error": "<text>"}`,
		},
		{
			says: "a body that is no JSON is answered 400",
			do: `POST /v1/apps {"app_name":
				400 {"error": "~JSON"}`,
		},
		{
			says: "a body that is no object is answered 400",
			do: `POST /v1/apps [1]
				400 {"error": "~array"}`,
		},
		{
			says: "a property of the wrong type is answered 400",
			do: `POST /v1/apps {"app_name": 7, "org_slug": "personal"}
				400 {"error": "<text>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": "yes"}
				400 {"error": "<text>"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "every answer has the id of its request",
			do: `GET /v1/apps/$app
				200
				< fly-request-id: ~.+
				< platform-request-id: ~.+
				GET /v1/apps/$new
				404
				< fly-request-id: ~.+`,
		},
		{
			says: "a Machine in a region that does not exist cannot be created",
			do: `POST /v1/apps/$app/machines {"region": "zzz", "config": {"image": "$image"}}
				400 {"error": "~region"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "a volume in a region that does not exist cannot be created",
			do: `POST /v1/apps/$app/volumes {"region": "zzz", "name": "data", "size_gb": 1}
				400 {"error": "~region"}
				GET /v1/apps/$app/volumes
				200 []`,
		},
		{
			says: "a volume has 500 GB at most",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 500}
				200 {"size_gb": 500}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 501}
				400 {"error": "~size_gb"}
				PUT $volume/extend {"size_gb": 501}
				400 {"error": "~size_gb"}`,
		},
		{
			says: "a volume has 1 GB at least, and 3 when nothing is said",
			do: `POST /v1/apps/$app/volumes {"name": "data"}
				200 {"size_gb": 3}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"size_gb": 1}`,
		},
		{
			says: "restart.max_retries is not negative",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "restart": {"policy": "on-failure", "max_retries": -1}}}
				400 {"error": "~config.restart.max_retries"}`,
		},
		{
			says: "stop_config.timeout is 300 seconds at most",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image", "stop_config": {"timeout": 300000000000}}, "skip_launch": true}
				200
				POST /v1/apps/$app/machines {"config": {"image": "$image", "stop_config": {"timeout": 301000000000}}}
				400 {"error": "~config.stop_config.timeout"}`,
		},
		{
			says: "the regions are listed, with the one that is nearest",
			do: `GET /v1/platform/regions
				200 {"Regions": [{"code": "loc"}], "Nearest": "loc"}`,
		},
		{
			says:    "rates of requests are limited",
			differs: "they are not, unless the operator wants it (`--rate-limits`), because deployments of existing clients come in faster bursts",
			do:      strings.Repeat("GET $machine\n200\n", 20),
		},
		{
			says: "a body has 1 MiB at most",
			do: `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "more": "` + strings.Repeat("a", 1<<20) + `"}
				413 {"error": "<text>"}
				GET /v1/apps/$app/machines
				200 []`,
		},
		{
			says: "an unknown property of an App is refused, as it may be a misspelt one",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal", "other_network": "apart"}
				400 {"error": "~other_network"}
				GET /v1/apps/$new
				404`,
		},
		{
			says: "an answer says its class and its reason in words for programs",
			do: `POST /v1/apps {"app_name": "$app", "org_slug": "personal"}
				422 {"error": "~Name has already been taken", "status": "name_taken", "code": "invalid"}
				GET /v1/apps/$new
				404 {"error": "~app not found", "code": "not_found"}`,
		},
		{
			says: "paths have no slash at their end, and their case counts",
			do: `GET /v1/Apps
				404
				GET /V1/apps
				404`,
		},
		{
			says:    "the memory of a Machine that runs can be limited",
			differs: "it cannot: there is no path for it, and a Machine has the memory of its config",
			do: `GET $machine/memory
				404 {"error": "<text>"}`,
		},
		{
			says: "an organization has as many Apps, Machines and volumes as its quotas say",
			do: `PATCH /v1/orgs/$org/quotas {"limits": {"apps": 1, "machines": 1, "volumes": 1}}
				200 {"quotas": ["<has>", {"key": "apps", "limit": 1, "used": 0}]}
				POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				POST /v1/apps {"app_name": "$new-two", "org_slug": "$org"}
				403 {"error": "~apps", "status": "quota", "code": "exhausted"}
				POST /v1/apps/$new-one/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}, "skip_launch": true}
				200
				POST /v1/apps/$new-one/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}, "skip_launch": true}
				403 {"error": "~machines", "status": "quota"}
				POST /v1/apps/$new-one/volumes {"name": "data", "size_gb": 1}
				200
				POST /v1/apps/$new-one/volumes {"name": "data", "size_gb": 1}
				403 {"error": "~volumes", "status": "quota"}
				DELETE /v1/apps/$new-one
				202`,
		},
	}
}
