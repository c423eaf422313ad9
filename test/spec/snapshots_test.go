package spec_test

// snapshot takes a snapshot of the row's volume and waits for it; $snap is its id.
const snapshot = `POST $volume/snapshots
	200 {"Msg": {"backup": {"graph_id": "<text as snap>"}}}
	UNTIL $volume/snapshots
	200 [{"id": "$snap", "status": "created"}]
	`

func snapshotRows() []row {
	return []row{
		{
			says: "a new volume has no snapshots",
			do: `GET $volume/snapshots
				200 []`,
		},
		{
			says: "asking for a snapshot answers a backup in the state prepare",
			do: `POST $volume/snapshots
				200 {"Msg": {"backup": {"id": "<text>", "volume_id": "$volume.id", "state": "prepare", "type": "BACKUP_TYPE_ON_DEMAND",
					"message": "<any>", "created_at": "<time>", "updated_at": "<time>", "finished_at": null, "graph_id": "~^vs_[0-9a-z]+$"}}}`,
		},
		{
			says: "the snapshot that was asked for appears in the list after a while",
			do:   snapshot,
		},
		{
			says: "a snapshot has every property that is documented",
			do: snapshot + `GET $volume/snapshots
				200 [{"id": "~^vs_[0-9a-z]+$", "size": "<integer>", "digest": "<text>", "created_at": "<time>", "retention_days": "<integer>"}]`,
		},
		{
			says: "a snapshot is kept for as many days as its volume says",
			do: `PUT $volume {"snapshot_retention": 9}
				200
				` + snapshot + `GET $volume/snapshots
				200 [{"id": "$snap", "retention_days": 9}]`,
		},
		{
			says: "another retention of the volume is for later snapshots",
			do: snapshot + `PUT $volume {"snapshot_retention": 9}
				200
				GET $volume/snapshots
				200 [{"id": "$snap", "retention_days": 5}]`,
		},
		{
			says: "a volume may have several snapshots",
			do: snapshot + `POST $volume/snapshots
				200 {"Msg": {"backup": {"graph_id": "<text as second>"}}}
				UNTIL $volume/snapshots
				200 ["<has>", {"id": "$snap", "status": "created"}, {"id": "$second", "status": "created"}]`,
		},
		{
			says: "a volume of a snapshot is restoring, and created after a while",
			do: snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap", "region": "loc"}
				200 {"id": "<text as restored>", "state": "restoring"}
				UNTIL /v1/apps/$app/volumes/$restored
				200 {"state": "created", "name": "restored"}`,
		},
		{
			says: "a volume of a snapshot is another one, as large unless it says otherwise",
			do: snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap"}
				200 {"id": "<not $volume.id>", "size_gb": 1}
				POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap", "size_gb": 2}
				200 {"size_gb": 2}`,
		},
		{
			says: "a volume of a snapshot that does not exist is refused",
			do: `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "vs_00000000000000000000", "size_gb": 1}
				404 {"error": "~snapshot"}
				GET /v1/apps/$app/volumes
				200 []`,
		},
		{
			says: "snapshots outlive their volume",
			do: snapshot + `DELETE $volume
				200
				GET $volume/snapshots
				200 [{"id": "$snap", "status": "created"}]
				POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap"}
				200 {"id": "<text as restored>"}
				UNTIL /v1/apps/$app/volumes/$restored
				200 {"state": "created"}`,
		},
		{
			says: "snapshots of a volume that does not exist are answered 404",
			do: `GET /v1/apps/$app/volumes/vol_0000000000000000/snapshots
				404
				POST /v1/apps/$app/volumes/vol_0000000000000000/snapshots
				404`,
		},
		{
			says: "an App sees no snapshots of another App's volumes",
			do: snapshot + `GET /v1/apps/$app2/volumes/$volume.id/snapshots
				404
				POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				201
				POST /v1/apps/$new-one/volumes {"name": "restored", "snapshot_id": "$snap"}
				404`,
		},
		{
			says: "a backup names the App of its volume",
			do: `POST $volume/snapshots
				200 {"Msg": {"backup": {"app_id": "<text>", "volume_id": "$volume.id"}}}`,
		},
		{
			says: "a snapshot has its status and the size of its volume",
			do: snapshot + `GET $volume/snapshots
				200 [{"status": "created", "volume_size": 1073741824}]`,
		},
		{
			says: "a volume of a snapshot is not smaller",
			do: `PUT $volume/extend {"size_gb": 2}
				200
				` + snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap", "size_gb": 1}
				400 {"error": "~size_gb"}`,
		},
		{
			says: "restoring leaves the volume and its snapshots as they are",
			do: snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap"}
				200 {"id": "<text as restored>"}
				UNTIL /v1/apps/$app/volumes/$restored
				200 {"state": "created", "attached_machine_id": null}
				GET $volume
				200 {"state": "created", "size_gb": 1}
				GET /v1/apps/$app/volumes/$restored/snapshots
				200 []`,
		},
		{
			says: "a volume cannot be of a snapshot and of another volume",
			do: snapshot + `POST /v1/apps/$app/volumes {"name": "restored", "snapshot_id": "$snap", "source_volume_id": "$volume.id"}
				400 {"error": "<text>"}`,
		},
		{
			says: "an attached volume can be snapshotted",
			with: mounted,
			do: `GIVEN $machine
				` + snapshot,
		},
	}
}
