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
				200 {"state": "destroyed", "snapshot_retention": 0}`,
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
		{
			says: "created_at of a volume has milliseconds",
			do: `GET $volume
				200 {"created_at": "~^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z$"}`,
		},
		{
			says: "the zone of a volume has four hexadecimal digits, and its host answers",
			do: `GET $volume
				200 {"zone": "~^[0-9a-f]{4}$", "host_status": "ok"}`,
		},
		{
			says: "a volume may be created with the properties that existing clients send, most of them null",
			do: `POST /v1/apps/$app/volumes {"name": "data", "region": "loc", "size_gb": null, "encrypted": null, "require_unique_zone": null, "unique_zone_app_wide": false,
					"snapshot_retention": null, "auto_backup_enabled": null, "fstype": null, "snapshot_id": null, "source_volume_id": null, "compute": null, "compute_image": "", "machines_only": null}
				200 {"size_gb": 3, "encrypted": true, "snapshot_retention": 5, "auto_backup_enabled": true}`,
		},
		{
			says: "the creation of a volume may leave out daily snapshots",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "auto_backup_enabled": false}
				200 {"id": "<text as id>", "auto_backup_enabled": false}
				GET /v1/apps/$app/volumes/$id
				200 {"auto_backup_enabled": false}`,
		},
		{
			says: "without a region the platform chooses one for a volume, too",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1}
				200 {"region": "loc"}`,
		},
		{
			says: "the file system of a volume is ext4 or raw",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "fstype": "raw"}
				200
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "fstype": "ntfs"}
				400 {"error": "~fstype"}`,
		},
		{
			says: "a volume may be a copy of another one, as large and in another zone",
			do: `GET $volume
				200 {"zone": "<text as zone>"}
				POST /v1/apps/$app/volumes {"name": "data", "region": "", "source_volume_id": "$volume.id", "size_gb": null}
				200 {"id": "<text as copy>", "size_gb": 1, "zone": "<not $zone>"}
				UNTIL /v1/apps/$app/volumes/$copy
				200 {"state": "created"}`,
		},
		{
			says: "a copy is of a volume that there is",
			do: `POST /v1/apps/$app/volumes {"name": "data", "source_volume_id": "vol_0000000000000000"}
				404 {"error": "~volume"}`,
		},
		{
			says: "an update of a volume leaves what it does not name, and is accepted as POST, too",
			do: `PUT $volume {"snapshot_retention": 7, "auto_backup_enabled": null}
				200 {"snapshot_retention": 7, "auto_backup_enabled": true}
				POST $volume {"auto_backup_enabled": false}
				200 {"snapshot_retention": 7, "auto_backup_enabled": false}`,
		},
		{
			says: "an update of a volume changes neither its size nor its name",
			do: `PUT $volume {"size_gb": 5, "name": "another", "snapshot_retention": 7}
				200 {"size_gb": 1, "name": "data", "snapshot_retention": 7}`,
		},
		{
			says: "extending does not change what a volume is attached to, and it stays created",
			with: mounted,
			do: `GIVEN $prepared
				PUT $volume/extend {"size_gb": 2}
				200 {"volume": {"size_gb": 2, "attached_machine_id": "$prepared.id"}}
				UNTIL $volume
				200 {"size_gb": 2, "state": "created", "attached_machine_id": "$prepared.id"}`,
		},
		{
			says: "a volume that is deleted again stays deleted",
			do: `DELETE $volume
				200
				DELETE $volume
				200 {"state": "destroyed"}`,
		},
		{
			says: "the volumes of an organization are listed over all its Apps",
			do: `POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				POST /v1/apps/$new-one/volumes {"name": "data", "size_gb": 1}
				200 {"id": "<text as one>"}
				UNTIL /v1/orgs/$org/volumes
				200 {"volumes": [{"id": "$one", "app_name": "$new-one", "state": "created"}], "next_cursor": ""}`,
		},
		{
			says: "the name of a volume has lowercase letters, digits and underscores, 30 at most",
			do: `POST /v1/apps/$app/volumes {"name": "Not a name", "size_gb": 1}
				400 {"error": "~name"}
				POST /v1/apps/$app/volumes {"name": "a23456789_123456789_123456789_1", "size_gb": 1}
				400 {"error": "~name"}
				POST /v1/apps/$app/volumes {"name": "a23456789_123456789_123456789_", "size_gb": 1}
				200`,
		},
		{
			says: "a deleted volume gets no new snapshots and no other settings",
			do: `DELETE $volume
				200
				POST $volume/snapshots
				412
				PUT $volume {"snapshot_retention": 7}
				412`,
		},
		{
			says: "a volume has the region of what it is made from",
			do: `POST /v1/apps/$app/volumes {"name": "data", "source_volume_id": "$volume.id"}
				200 {"region": "loc", "encrypted": true}
				POST /v1/apps/$app/volumes {"name": "data", "source_volume_id": "$volume.id", "region": "zzz"}
				400 {"error": "~region"}`,
		},
		{
			says: "the settings of a volume have the types that are documented",
			do: `PUT $volume {"snapshot_retention": "long"}
				400 {"error": "~snapshot_retention"}
				PUT $volume {"auto_backup_enabled": "yes"}
				400 {"error": "~auto_backup_enabled"}`,
		},
		{
			says: "a size is a whole number",
			do: `PUT $volume/extend {"size_gb": 1.5}
				400 {"error": "~size_gb"}
				POST /v1/apps/$app/volumes {"name": "data", "size_gb": "2"}
				400 {"error": "~size_gb"}`,
		},
		{
			says:    "a volume of the file system raw is mounted as a block device",
			differs: "it cannot be mounted: sandboxes have no block devices",
			do: `POST /v1/apps/$app/volumes {"name": "data", "size_gb": 1, "fstype": "raw"}
				200 {"id": "<text as raw>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image", "mounts": [{"volume": "$raw", "path": "/data"}]}, "skip_launch": true}
				400 {"error": "~raw"}`,
		},
		{
			says: "a volume says how many bytes it has, and how many are used",
			do: `GET $volume
				200 {"bytes_total": "<integer>", "bytes_used": "<integer>", "type": "<text>"}`,
		},
		{
			says: "an extension has a size, above 0",
			do: `PUT $volume/extend {"size_gb": 0}
				400 {"error": "~size_gb"}
				PUT $volume/extend {"size_gb": -1}
				400 {"error": "~size_gb"}`,
		},
		{
			says: "an update of a volume that says nothing changes nothing",
			do: `PUT $volume {}
				200 {"id": "$volume.id", "snapshot_retention": 5, "auto_backup_enabled": true}`,
		},
		{
			says: "a volume that was restored is its own: deleting the other one does not touch it",
			do: snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap"}
				200 {"id": "<text as restored>"}
				UNTIL /v1/apps/$app/volumes/$restored
				200 {"state": "created"}
				DELETE $volume
				200
				GET /v1/apps/$app/volumes/$restored
				200 {"state": "created"}`,
		},
	}
}
