package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// textOfStreams describes all streams of lines.
const textOfStreams = "An empty line is a keepalive. A stream that fails, or whose token expires or is revoked, ends with an error as its last line."

// machineRoutes mounts the operations that change Machines.
func (s *server) machineRoutes() {
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	example := exampleMachine()
	body := machineRequest{Name: "one", Region: "loc", Config: rawConfig{[]byte(
		`{"image":"nginx:alpine","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"metadata":{"role":"web"}}`,
	)}}

	s.Handle("POST "+machines, s.createMachine, router.Operation{
		ID: "createMachine", Tag: "Machines", Summary: "Create a Machine",
		Text: "Answers as soon as the Machine is recorded; it boots in the background. Wait for `started` with the wait operation. " +
			"Properties of the config that this server does not know are stored and returned, but have no effect.",
		Lenient: true, Body: body, Answer: example, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine, s.updateMachine, router.Operation{
		ID: "updateMachine", Tag: "Machines", Summary: "Update a Machine",
		Text:    "The config replaces the whole existing one and becomes a new version. A started Machine reboots, any other stays stopped.",
		Lenient: true, Body: body, Answer: example, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("DELETE "+machine, s.destroyMachine, router.Operation{
		ID: "destroyMachine", Tag: "Machines", Summary: "Destroy a Machine",
		Query: []router.Param{
			{Name: "force", Example: true, Text: "Also a Machine that is not stopped."},
			{Name: "kill", Example: true, Text: "Another name of force."},
		},
		Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/start", s.startMachine, router.Operation{
		ID: "startMachine", Tag: "Machines", Summary: "Start a Machine", Text: "A suspended Machine resumes, any other boots. May be repeated.",
		Answer: view.Start{StartResult: hangar.StartResult{PreviousState: hangar.MachineStopped}}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/stop", s.stopMachine, router.Operation{
		ID: "stopMachine", Tag: "Machines", Summary: "Stop a Machine",
		Text:    "Sends the signal and, when the timeout has passed, SIGKILL. Without a body, both come from the `stop_config` of the Machine. May be repeated.",
		Lenient: true, Body: stopRequest{Signal: hangar.Signal(15), Timeout: stopTimeout(exampleTimeout)}, MayOmit: true,
		Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/suspend", s.suspendMachine, router.Operation{
		ID: "suspendMachine", Self: true, Tag: "Machines", Summary: "Suspend a Machine",
		Text:   "A start resumes it where it was, open connections included. A Machine that cannot be suspended is refused, with the reason in the text.",
		Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/restart", s.restartMachine, router.Operation{
		ID: "restartMachine", Tag: "Machines", Summary: "Restart a Machine", Text: "A running Machine is stopped first. The version stays the same.",
		Query: []router.Param{
			{Name: "force_stop", Example: true, Text: "Send SIGKILL at once."},
			{Name: "signal", Example: "SIGTERM", Text: "The name or the number of the signal to stop it with."},
			{Name: "timeout", Example: "10s", Text: "How long it may take to stop: seconds, or a duration such as 10s."},
		},
		Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/cordon", s.cordonMachine, router.Operation{
		ID: "cordonMachine", Tag: "Machines", Summary: "Cordon a Machine",
		Text: "The edge sends it no new connections. Open ones stay, and the Machine keeps running. May be repeated.", Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.Handle("POST "+machine+"/uncordon", s.uncordonMachine, router.Operation{
		ID: "uncordonMachine", Tag: "Machines", Summary: "Uncordon a Machine", Text: "The edge sends it connections again. May be repeated.",
		Answer: router.DoneAnswer{OK: true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
}

// readRoutes mounts the operations that read Machines.
func (s *server) readRoutes() {
	example := exampleMachine()
	s.Handle("GET "+machines, s.listMachines, router.Operation{
		ID: "listMachines", Tag: "Machines", Summary: "List Machines", Text: "Sorted by id.",
		Query: []router.Param{
			{Name: "include_deleted", Example: true, Text: "Also those that were destroyed within a day, the newest 1,000."},
			{Name: "region", Example: []hangar.Region{"loc"}, Text: "Only those in one of these regions."},
			{Name: "state", Example: []hangar.MachineState{hangar.MachineStarted}, Text: "Only those in one of these states."},
			{Name: "metadata.*", Example: map[string]string{"metadata.role": "web"}, Text: "`metadata.KEY=VALUE`: only those with this pair in their metadata."},
			{Name: "updated_after", Example: exampleTime, Text: "Only those that changed after this time."},
			{Name: "summary", Example: true, Text: "Leave out config, checks, events and host_status."},
			{Name: "events", Example: false, Text: "Leave out events. The default is true."},
		},
		Answer: []view.Machine{example}, Answers: []any{[]view.MachineSummary{}},
	})
	page := view.OfMachinePage(hangar.MachinePage{Machines: []*hangar.Machine{example.Machine}, LastUpdated: exampleTime}, false)
	s.Handle("GET /v1/orgs/{org}/machines", s.listOrgMachines, router.Operation{
		ID: "listOrgMachines", Tag: "Machines", Summary: "List the Machines of an organization",
		Text: "Sorted by id. No Machine is on two pages, and each that exists throughout is on one, even if others come and go. " +
			"`next_cursor` is empty on the last page. To list every Machine that changed after this listing began, " +
			"pass the `last_updated_at` of the last page as `updated_after`; one that changed in the 10 seconds before may be listed again. `error_regions` have unreachable servers, whose Machines are listed as last known.",
		Query: []router.Param{
			{Name: "include_deleted", Example: true, Text: "Also those that were destroyed within a day."},
			{Name: "region", Example: []hangar.Region{"loc"}, Text: "Only those in one of these regions."},
			{Name: "state", Example: []hangar.MachineState{hangar.MachineStarted}, Text: "Only those in one of these states."},
			{Name: "metadata.*", Example: map[string]string{"metadata.role": "web"}, Text: "`metadata.KEY=VALUE`: only those with this pair in their metadata."},
			{Name: "updated_after", Example: exampleTime, Text: "Only those that changed after this time. A cursor remembers it."},
			{Name: "cursor", Example: "", Text: "The `next_cursor` of the page before. The other parameters must be the same."},
			{Name: "limit", Example: 100, Text: "The most Machines on a page, from 1 to 1000. The default is 1000."},
			{Name: "summary", Example: true, Text: "Leave out config and host_status."},
		},
		Answer: page,
	})
	s.Handle("GET "+machine, s.getMachine, router.Operation{
		ID: "getMachine", Self: true, Tag: "Machines", Summary: "Get a Machine", Text: "A destroyed Machine is returned for a day.",
		Answer: example,
	})
	s.Stream("GET "+machine+"/wait", s.waitMachine, router.Operation{
		ID: "waitMachine", Self: true, Tag: "Machines", Summary: "Wait for a Machine to reach a state",
		Text: "Answers within milliseconds of the change, 408 when the time has passed, and 400 when the state can no longer be reached.",
		Query: []router.Param{
			{Name: "state", Example: []string{"started"}, Text: "Any of these; the default is started. `settled` is any of started, stopped, suspended, failed and destroyed."},
			{Name: "instance_id", Example: exampleVersion, Text: "This version, or a newer one, must have the state."},
			{Name: "version", Example: exampleVersion, Text: "An older name of instance_id."},
			{Name: "from_event_id", Example: exampleEvent, Text: "States that were reached after this event count, including past ones."},
			{Name: "timeout", Example: "60", Text: "Seconds, or a duration such as 10s; at most a minute, which is the default."},
		},
		Answer: view.Reached{OK: true, MachineReached: hangar.MachineReached{EventID: exampleEvent, State: hangar.MachineStarted, Version: exampleVersion}},
		Errors: []int{http.StatusRequestTimeout},
	})
	s.Handle("GET "+machine+"/versions", s.listVersions, router.Operation{
		ID: "listVersions", Self: true, Tag: "Machines", Summary: "List the versions of a Machine", Text: "Newest first.",
		Answer: []hangar.MachineVersion{{Version: exampleVersion, Config: example.Config}},
	})
	s.Stream("GET "+machine+"/events", s.listEvents, router.Operation{
		ID: "listEvents", Self: true, Tag: "Machines", Summary: "List events, or watch Machines",
		Text: "With `follow`, one JSON value per line: the Machine as it is and then each change, until it is destroyed. " + textOfStreams,
		Query: []router.Param{
			{Name: "limit", Example: 20, Text: "The most events, from 1 to 50. The default is 20."},
			{Name: "follow", Example: true, Text: "Stream new changes."},
		},
		Answer: example.Events, Stream: view.Change{Machine: &example, Event: &example.Events[0]},
	})
}
