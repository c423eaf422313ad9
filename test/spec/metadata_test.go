package spec_test

func metadataRows() []row {
	return []row{
		{
			says: "a Machine without metadata has none",
			do: `GET $prepared/metadata
				200 {}
				GET $prepared/metadata/role
				404`,
		},
		{
			says: "metadata of the config can be got",
			with: `"metadata": {"role": "front", "zone": "a"}`,
			do: `GET $prepared/metadata
				200 {"role": "front", "zone": "a"}`,
		},
		{
			says: "setting a key answers 204 without a body",
			do: `POST $prepared/metadata/role {"value": "front"}
				204
				GET $prepared/metadata
				200 {"role": "front"}`,
		},
		{
			says: "setting a key replaces its value",
			do: `POST $prepared/metadata/role {"value": "front"}
				204
				POST $prepared/metadata/role {"value": "back"}
				204
				GET $prepared/metadata
				200 {"role": "back"}`,
		},
		{
			says: "setting a key leaves the others",
			do: `POST $prepared/metadata/role {"value": "front"}
				204
				POST $prepared/metadata/zone {"value": "a"}
				204
				GET $prepared/metadata
				200 {"role": "front", "zone": "a"}`,
		},
		{
			says: "a value is required",
			do: `POST $prepared/metadata/role {}
				400 {"error": "~value"}
				GET $prepared/metadata
				200 {"role": "<absent>"}`,
		},
		{
			says: "a value is a text",
			do: `POST $prepared/metadata/role {"value": 7}
				400 {"error": "~value|json"}
				GET $prepared/metadata
				200 {"role": "<absent>"}`,
		},
		{
			says: "removing a key answers 204 without a body",
			do: `POST $prepared/metadata/role {"value": "front"}
				204
				POST $prepared/metadata/zone {"value": "a"}
				204
				DELETE $prepared/metadata/role
				204
				GET $prepared/metadata
				200 {"role": "<absent>", "zone": "a"}`,
		},
		{
			says: "removing a key that is not there answers 204",
			do: `DELETE $prepared/metadata/role
				204`,
		},
		{
			says: "metadata that was set is in the config",
			do: `POST $prepared/metadata/role {"value": "front"}
				204
				GET $prepared
				200 {"config": {"metadata": {"role": "front"}}}`,
		},
		{
			says: "metadata that was set filters a list",
			do: `GIVEN $prepared2
				POST $prepared/metadata/role {"value": "front"}
				204
				UNTIL /v1/apps/$app/machines?metadata.role=front
				200 [{"id": "$prepared.id"}]`,
		},
		{
			says: "setting a key makes no new version and does not reboot",
			do: `EXEC $machine ["incr"]
				POST $machine/metadata/role {"value": "front"}
				204
				GET $machine
				200 {"state": "started", "instance_id": "$machine.instance"}
				POST $machine/exec {"command": ["memory"]}
				200 {"stdout": "~^1"}`,
		},
		{
			says: "metadata of a Machine that does not exist is answered 404",
			do: `GET /v1/apps/$app/machines/00000000000000/metadata
				404
				POST /v1/apps/$app/machines/00000000000000/metadata/role {"value": "front"}
				404
				DELETE /v1/apps/$app/machines/00000000000000/metadata/role
				404`,
		},
		{
			says: "metadata of a Machine that was destroyed cannot be changed",
			do: `POST $destroyed/metadata/role {"value": "front"}
				412`,
		},
		{
			says: "one key of the metadata can be got",
			with: `"metadata": {"role": "front"}`,
			do: `GET $prepared/metadata/role
				200 {"value": "front"}`,
		},
		{
			says: "PUT replaces all metadata",
			with: `"metadata": {"role": "front", "zone": "a"}`,
			do: `PUT $prepared/metadata {"metadata": {"other": "1"}}
				204
				GET $prepared/metadata
				200 {"other": "1", "role": "<absent>", "zone": "<absent>"}`,
		},
		{
			says: "PATCH changes the keys that it names, and null or an empty text removes one",
			with: `"metadata": {"a": "1", "b": "1", "c": "1", "d": "1"}`,
			do: `PATCH $prepared/metadata {"metadata": {"a": "2", "b": null, "c": ""}}
				204
				GET $prepared/metadata
				200 {"a": "2", "b": "<absent>", "c": "<absent>", "d": "1"}`,
		},
		{
			says: "a change of metadata may be of the newest version alone",
			do: `PATCH $prepared/metadata {"metadata": {"a": "1"}, "machine_version": "$prepared.instance"}
				204
				PATCH $prepared/metadata {"metadata": {"a": "2"}, "machine_version": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
				412
				GET $prepared/metadata
				200 {"a": "1"}`,
		},
		{
			says: "metadata of the platform's clients can be set",
			do: `POST $prepared/metadata/fly_process_group {"value": "web"}
				204
				GET $prepared/metadata
				200 {"fly_process_group": "web"}`,
		},
	}
}
