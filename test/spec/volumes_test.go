package spec_test

func volumeRows() []row {
	return []row{
		{
			says: "creating a volume answers it in the state created",
			do: `POST /v1/apps/$app/volumes {"name": "data", "region": "loc", "size_gb": 2}
				200 {"id": "<text>", "name": "data", "state": "created", "size_gb": 2, "region": "loc"}`,
		},
		{
			says: "a volume has every property that is documented",
			do: `GET $volume
				200 {"id": "<text>", "name": "<text>", "state": "<text>", "size_gb": "<integer>", "region": "<text>", "zone": "<text>", "encrypted": "<bool>",
					"attached_machine_id": null, "attached_alloc_id": null, "created_at": "<time>", "blocks": "<integer>", "block_size": "<integer>",
					"blocks_free": "<integer>", "blocks_avail": "<integer>", "fstype": "<any>", "snapshot_retention": "<integer>",
					"auto_backup_enabled": "<bool>", "host_dedication_key": ""}`,
		},
		{
			says: "the id of a volume begins with vol_",
			do: `GET $volume
				200 {"id": "~^vol_[0-9a-z]+$"}`,
		},
		{
			says: "a new volume has no blocks and no file system",
			do: `GET $volume
				200 {"blocks": 0, "block_size": 0, "blocks_free": 0, "blocks_avail": 0, "fstype": ""}`,
		},
		{
			says: "a volume is encrypted unless its creation says otherwise",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"encrypted": true}
				POST /v1/apps/$app/volumes {"name": "plain", "size_gb": 1, "encrypted": false}
				200 {"encrypted": false}`,
		},
		{
			says: "a volume keeps snapshots for 5 days unless it says otherwise",
			do: `GET $volume
				200 {"snapshot_retention": 5}`,
		},
		{
			says: "a volume is snapshotted every day unless it says otherwise",
			do: `GET $volume
				200 {"auto_backup_enabled": true}`,
		},
		{
			says: "a volume needs a name",
			do: `POST /v1/apps/$app/volumes {"size_gb": 1}
				400 {"error": "~name"}
				GET /v1/apps/$app/volumes
				200 []`,
		},
		{
			says: "names of volumes need not differ",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"id": "<text as one>"}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"id": "<not $one>", "name": "data"}`,
		},
		{
			says: "a volume that is created can be got and listed",
			do: `GET $volume
				200 {"id": "$volume.id", "state": "created"}
				GET /v1/apps/$app/volumes
				200 [{"id": "$volume.id", "state": "created", "size_gb": 1}]`,
		},
		{
			says: "a list has the volumes of its App alone",
			do: `GIVEN $volume
				GET /v1/apps/$app2/volumes
				200 []
				GET /v1/apps/$app2/volumes/$volume.id
				404`,
		},
		{
			says: "a volume that does not exist is answered 404",
			do: `GET /v1/apps/$app/volumes/vol_0000000000000000
				404 {"error": "~volume not found"}
				PUT /v1/apps/$app/volumes/vol_0000000000000000 {"snapshot_retention": 7}
				404
				DELETE /v1/apps/$app/volumes/vol_0000000000000000
				404
				PUT /v1/apps/$app/volumes/vol_0000000000000000/extend {"size_gb": 5}
				404`,
		},
		{
			says: "a volume belongs to an App that exists",
			do: `POST /v1/apps/$new/volumes {"name": "data", "size_gb": 1}
				404`,
		},
		{
			says: "updating a volume changes for how long it keeps snapshots",
			do: `PUT $volume {"snapshot_retention": 30}
				200 {"id": "$volume.id", "snapshot_retention": 30}
				GET $volume
				200 {"snapshot_retention": 30, "auto_backup_enabled": true, "size_gb": 1}`,
		},
		{
			says: "updating a volume may end its daily snapshots",
			do: `PUT $volume {"auto_backup_enabled": false}
				200 {"auto_backup_enabled": false, "snapshot_retention": 5}
				GET $volume
				200 {"auto_backup_enabled": false}`,
		},
		{
			says: "snapshots are kept for a day at least and 60 at most",
			do: `PUT $volume {"snapshot_retention": 1}
				200 {"snapshot_retention": 1}
				PUT $volume {"snapshot_retention": 60}
				200 {"snapshot_retention": 60}
				PUT $volume {"snapshot_retention": 61}
				400 {"error": "~snapshot_retention"}
				PUT $volume {"snapshot_retention": 0}
				400 {"error": "~snapshot_retention"}
				PUT $volume {"snapshot_retention": -1}
				400 {"error": "~snapshot_retention"}
				GET $volume
				200 {"snapshot_retention": 60}`,
		},
		{
			says: "the creation of a volume may say for how long it keeps snapshots",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "snapshot_retention": 14}
				200 {"snapshot_retention": 14}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "snapshot_retention": 61}
				400 {"error": "~snapshot_retention"}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "snapshot_retention": 0}
				400 {"error": "~snapshot_retention"}`,
		},
		{
			says: "extending a volume answers it and whether its Machine needs a restart",
			do: `PUT $volume/extend {"size_gb": 3}
				200 {"volume": {"id": "$volume.id", "size_gb": 3}, "needs_restart": "<bool>"}
				UNTIL $volume
				200 {"size_gb": 3, "state": "created"}`,
		},
		{
			says: "a volume that no Machine has needs no restart",
			do: `PUT $volume/extend {"size_gb": 3}
				200 {"needs_restart": false}`,
		},
		{
			says: "a volume is not made smaller",
			do: `PUT $volume/extend {"size_gb": 3}
				200
				PUT $volume/extend {"size_gb": 2}
				400 {"error": "~size_gb"}
				GET $volume
				200 {"size_gb": 3}`,
		},
		{
			says: "an extension to the size that a volume has is not smaller",
			do: `PUT $volume/extend {"size_gb": 1}
				200 {"volume": {"size_gb": 1}, "needs_restart": false}`,
		},
		{
			says: "extending needs a size",
			do: `PUT $volume/extend {}
				400 {"error": "~size_gb"}`,
		},
		{
			says: "the size of a volume is not negative",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": -1}
				400 {"error": "~size_gb"}`,
		},
		{
			says: "deleting a volume answers it in the state destroyed, with a snapshot_retention of 0",
			do: `DELETE $volume
				200 {"id": "$volume.id", "state": "destroyed", "snapshot_retention": 0}`,
		},
		{
			says: "a deleted volume is answered as destroyed",
			do: `DELETE $volume
				200
				GET $volume
				200 {"state": "destroyed"}`,
		},
		{
			says:    "deleting a volume cannot be undone",
			differs: "for 24 hours the list has it as `pending_destroy`, and `POST …/undelete` brings it back with its data",
			do: `DELETE $volume
				200
				GET /v1/apps/$app/volumes
				200 [{"id": "$volume.id", "state": "pending_destroy"}]
				POST $volume/undelete
				200
				UNTIL $volume
				200 {"state": "created"}`,
		},
		{
			says: "a deleted volume can be neither extended nor mounted",
			do: `DELETE $volume
				200
				PUT $volume/extend {"size_gb": 3}
				412
				POST /v1/apps/$app/machines {"config": {"image": "$image", "mounts": [{"volume": "$volume.id", "path": "/data"}]}}
				400`,
		},
		{
			says: "an attached volume says to which Machine",
			with: mounted,
			do: `GIVEN $prepared
				GET $volume
				200 {"attached_machine_id": "$prepared.id", "attached_alloc_id": null}`,
		},
		{
			says: "an attached volume is not deleted",
			with: mounted,
			do: `GIVEN $prepared
				DELETE $volume
				412 {"error": "~$prepared.id"}
				GET $volume
				200 {"state": "created"}`,
		},
		{
			says: "a volume is free again when its Machine is destroyed",
			with: mounted,
			do: `DELETE $prepared
				200
				UNTIL $volume
				200 {"attached_machine_id": null, "state": "created"}`,
		},
		{
			says: "a stopped Machine keeps its volume",
			with: mounted,
			do: `STOP $machine
				GET $volume
				200 {"attached_machine_id": "$machine.id"}`,
		},
		{
			says: "volumes of one name are in different zones",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"zone": "<text as one>"}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"zone": "<not $one>"}`,
		},
	}
}
