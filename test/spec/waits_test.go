package spec_test

func waitRows() []row {
	return []row{
		{
			says: "a wait answers that it is ok",
			do: `GET $machine/wait?state=started
				200 {"ok": true}`,
		},
		{
			says: "a wait is for started unless it says otherwise",
			do: `GET $machine/wait
				200 {"ok": true, "state": "started"}
				GET $stopped/wait?timeout=1
				408 {"error": "~started, currently stopped"}`,
		},
		{
			says: "a wait may be for stopped",
			do: `GET $stopped/wait?state=stopped
				200 {"ok": true, "state": "stopped"}`,
		},
		{
			says: "a wait may be for suspended",
			do: `GET $suspended/wait?state=suspended
				200 {"ok": true, "state": "suspended"}`,
		},
		{
			says: "a wait may be for destroyed",
			do: `GET $destroyed/wait?state=destroyed
				200 {"ok": true, "state": "destroyed"}`,
		},
		{
			says: "a wait lasts until the state is reached",
			with: `"restart": {"policy": "no"}, "env": {"HANGAR_FAKE_EXIT": "0@300ms"}`,
			do: `GET $created/wait?state=stopped
				200 {"ok": true, "state": "stopped"}`,
		},
		{
			says: "a wait ends with 408 when its timeout has passed",
			do: `GET $machine/wait?state=stopped&timeout=1
				408 {"error": "~failed to reach desired state, stopped, currently started"}`,
		},
		{
			says: "timeout is in seconds, and a minute at most",
			do: `GET $machine/wait?timeout=60
				200
				GET $machine/wait?timeout=61
				400 {"error": "~timeout"}`,
		},
		{
			says: "timeout is not negative",
			do: `GET $machine/wait?timeout=-1
				400 {"error": "~timeout"}`,
		},
		{
			says: "timeout is a number",
			do: `GET $machine/wait?timeout=soon
				400 {"error": "~timeout"}`,
		},
		{
			says: "an unknown state cannot be waited for",
			do: `GET $machine/wait?state=nonsense
				400 {"error": "~state"}`,
		},
		{
			says: "a wait may be for a version",
			do: `POST $machine {"config": {"image": "$image"}}
				200 {"instance_id": "<text as version>"}
				GET $machine/wait?state=started&instance_id=$version
				200 {"version": "$version"}`,
		},
		{
			says:    "a wait for stopped needs instance_id",
			differs: "it does not, as existing clients send none",
			do: `POST $machine/stop
				200
				GET $machine/wait?state=stopped
				200 {"state": "stopped", "version": "$machine.instance"}`,
		},
		{
			says: "a wait for stopped may have instance_id",
			do: `POST $machine/stop
				200
				GET $machine/wait?state=stopped&instance_id=$machine.instance
				200 {"state": "stopped", "version": "$machine.instance"}`,
		},
		{
			says: "a wait for a version that never was is refused",
			do: `GET $machine/wait?instance_id=nonsense
				400 {"error": "~no version nonsense"}`,
		},
		{
			says: "a wait for a Machine that does not exist is answered 404",
			do: `GET /v1/apps/$app/machines/00000000000000/wait
				404 {"error": "~machine not found"}`,
		},
		{
			says: "a wait that can no longer come true is answered 400 at once",
			do: `GET $destroyed/wait?state=started
				400 {"status": "out_of_reach"}`,
		},
		{
			says: "several states may be waited for",
			do: `GET $stopped/wait?state=started,stopped
				200 {"state": "stopped"}
				GET $stopped/wait?state=suspended&state=stopped
				200 {"state": "stopped"}`,
		},
		{
			says: "a state that has passed counts from an event on",
			do: `GET $machine/wait
				200 {"event_id": "<text as before>"}
				STOP $machine
				POST $machine/start
				200
				GET $machine/wait?state=started&from_event_id=$before
				200
				GET $machine/wait?state=stopped&from_event_id=$before
				200 {"state": "stopped"}`,
		},
		{
			says: "version is another name of instance_id",
			do: `GET $machine/wait?version=$machine.instance
				200 {"version": "$machine.instance"}`,
		},
		{
			says: "a wait for settled ends with any state in which a Machine stays",
			do: `GET $stopped/wait?state=settled
				200 {"state": "stopped"}
				GET $suspended/wait?state=settled
				200 {"state": "suspended"}
				GET $destroyed/wait?state=settled
				200 {"state": "destroyed"}`,
		},
		{
			says: "a wait may be for failed",
			do: `POST /v1/apps/$app/machines {"config": {"image": "127.0.0.1:1/some/image:tag"}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait?state=failed
				200 {"state": "failed"}
				GET /v1/apps/$app/machines/$id/wait?state=started
				400 {"status": "out_of_reach"}`,
		},
		{
			says: "a wait for a version that was replaced ends with a newer one",
			do: `UPDATE $machine
				GET $machine/wait?state=started&instance_id=$machine.instance
				200 {"version": "$version"}`,
		},
		{
			says: "a wait without a timeout is answered as soon as the state is reached",
			with: `"env": {"HANGAR_FAKE_START_DELAY": "300ms"}`,
			do: `GET $created/wait
				200 {"ok": true, "event_id": "<text>", "state": "started", "version": "$created.instance"}`,
		},
	}
}
