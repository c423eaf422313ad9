package api

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/view"
)

// textOfStreams says what every stream of lines has in common.
const textOfStreams = "An empty line is a sign of life. A stream that fails ends with a line that is an error, also one whose token expires or is revoked."

// machineRoutes are those that change a Machine.
func (s *server) machineRoutes() {
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	example := exampleMachine()
	wish := machineWish{Name: "one", Region: "loc", Config: rawConfig{[]byte(
		`{"image":"nginx:alpine","guest":{"cpu_kind":"shared","cpus":1,"memory_mb":256},"metadata":{"role":"web"}}`,
	)}}

	s.handle("POST "+machines, s.createMachine, operation{
		ID: "createMachine", Tag: "Machines", Summary: "Create and start a Machine",
		Text: "Answers as soon as the Machine is recorded; it boots by itself. Wait for `started` with the wait operation. " +
			"Properties of the config that this server does not know are kept and answered, and have no effect.",
		Lenient: true, Body: wish, Answer: example, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine, s.updateMachine, operation{
		ID: "updateMachine", Tag: "Machines", Summary: "Give a Machine a new config",
		Text:    "The config replaces the whole one that there is, and becomes a new version. A Machine that is started reboots, any other stays stopped.",
		Lenient: true, Body: wish, Answer: example, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("DELETE "+machine, s.destroyMachine, operation{
		ID: "destroyMachine", Tag: "Machines", Summary: "Destroy a Machine",
		Query: []param{
			{"force", true, "Also a Machine that is not stopped."},
			{"kill", true, "Another name of force."},
		},
		Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/start", s.startMachine, operation{
		ID: "startMachine", Tag: "Machines", Summary: "Boot or resume a Machine", Text: "May be repeated.",
		Answer: view.Start{StartResult: hangar.StartResult{PreviousState: hangar.MachineStopped}}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/stop", s.stopMachine, operation{
		ID: "stopMachine", Tag: "Machines", Summary: "Stop a Machine",
		Text:    "Sends the signal and, when the timeout has passed, SIGKILL. Without a body, the `stop_config` of the Machine says which. May be repeated.",
		Lenient: true, Body: stopWish{Signal: hangar.Signal(15), Timeout: stopTimeout(exampleTimeout)}, MayOmit: true,
		Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/suspend", s.suspendMachine, operation{
		ID: "suspendMachine", Self: true, Tag: "Machines", Summary: "Put the memory of a Machine aside",
		Text:   "A start resumes it where it was, open connections included. A Machine that cannot be suspended is refused, with the reason in the text.",
		Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/restart", s.restartMachine, operation{
		ID: "restartMachine", Tag: "Machines", Summary: "Stop a Machine, if need be, and start the same version",
		Query: []param{
			{"force_stop", true, "Send SIGKILL at once."},
			{"signal", "SIGTERM", "The name or the number of the signal to stop it with."},
			{"timeout", "10s", "How long it may take to stop: seconds, or a duration such as 10s."},
		},
		Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/cordon", s.cordonMachine, operation{
		ID: "cordonMachine", Tag: "Machines", Summary: "Keep new connections away from a Machine",
		Text: "What is open stays open, and the Machine goes on running. May be repeated.", Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
	s.handle("POST "+machine+"/uncordon", s.uncordonMachine, operation{
		ID: "uncordonMachine", Tag: "Machines", Summary: "Let new connections reach a Machine again", Text: "May be repeated.",
		Answer: doneView{true}, Headers: leaseHeaders, Errors: []int{conflict, state},
	})
}

// readRoutes are those that look at Machines.
func (s *server) readRoutes() {
	example := exampleMachine()
	s.handle("GET "+machines, s.listMachines, operation{
		ID: "listMachines", Tag: "Machines", Summary: "List the Machines of an App", Text: "Sorted by id.",
		Query: []param{
			{"include_deleted", true, "Also those that were destroyed within a day, the newest 1,000."},
			{"region", []hangar.Region{"loc"}, "Only those in one of these regions."},
			{"state", []hangar.MachineState{hangar.MachineStarted}, "Only those in one of these states."},
			{"metadata.*", map[string]string{"metadata.role": "web"}, "`metadata.KEY=VALUE`: only those with this pair in their metadata."},
			{"updated_after", exampleTime, "Only those that changed after this time."},
			{"summary", true, "Leave out config, checks, events and host_status."},
			{"events", false, "Leave out events. The default is true."},
		},
		Answer: []view.Machine{example}, Answers: []any{[]view.MachineSummary{}},
	})
	page := view.OfMachinePage(hangar.MachinePage{Machines: []*hangar.Machine{example.Machine}, LastUpdated: exampleTime}, false)
	s.handle("GET /v1/orgs/{org}/machines", s.listOrgMachines, operation{
		ID: "listOrgMachines", Tag: "Machines", Summary: "List the Machines of an organization, page by page",
		Text: "Sorted by id: whatever comes and goes meanwhile, no Machine is on two pages, and none that is there all the time is on none. " +
			"`next_cursor` is empty on the last page. Given as `updated_after` later, the `last_updated_at` of the last page yields every Machine " +
			"that changed after this listing began. `error_regions` have servers that cannot be reached; their Machines are listed as they were last known.",
		Query: []param{
			{"include_deleted", true, "Also those that were destroyed within a day."},
			{"region", []hangar.Region{"loc"}, "Only those in one of these regions."},
			{"state", []hangar.MachineState{hangar.MachineStarted}, "Only those in one of these states."},
			{"metadata.*", map[string]string{"metadata.role": "web"}, "`metadata.KEY=VALUE`: only those with this pair in their metadata."},
			{"updated_after", exampleTime, "Only those that changed after this time. A cursor remembers it."},
			{"cursor", "", "The `next_cursor` of the page before. The other parameters must be the same."},
			{"limit", 100, "At most so many, from 1 to 1000. The default is 1000."},
			{"summary", true, "Leave out config and host_status."},
		},
		Answer: page,
	})
	s.handle("GET "+machine, s.getMachine, operation{
		ID: "getMachine", Self: true, Tag: "Machines", Summary: "Get a Machine", Text: "One that was destroyed is answered for a day.",
		Answer: example,
	})
	s.stream("GET "+machine+"/wait", s.waitMachine, operation{
		ID: "waitMachine", Self: true, Tag: "Machines", Summary: "Wait for a state",
		Text: "Answers within milliseconds of the change, 408 when the time has passed, and 400 when the wish can no longer come true.",
		Query: []param{
			{"state", []string{"started"}, "Any of these; the default is started. `settled` is any of started, stopped, suspended, failed and destroyed."},
			{"instance_id", exampleVersion, "This version, or a newer one, must have the state."},
			{"version", exampleVersion, "An older name of instance_id."},
			{"from_event_id", exampleEvent, "States that were reached after this event count, also those that have passed."},
			{"timeout", "60", "Seconds, or a duration such as 10s; at most a minute, which is the default."},
		},
		Answer: view.Reached{OK: true, MachineReached: hangar.MachineReached{EventID: exampleEvent, State: hangar.MachineStarted, Version: exampleVersion}},
		Errors: []int{http.StatusRequestTimeout},
	})
	s.handle("GET "+machine+"/versions", s.listVersions, operation{
		ID: "listVersions", Self: true, Tag: "Machines", Summary: "List the configs that a Machine has had", Text: "Newest first.",
		Answer: []hangar.MachineVersion{{Version: exampleVersion, Config: example.Config}},
	})
	s.stream("GET "+machine+"/events", s.listEvents, operation{
		ID: "listEvents", Self: true, Tag: "Machines", Summary: "List the newest events, or follow every change",
		Text: "With `follow`, one JSON value per line: the Machine as it is and then each change, until it is destroyed. " + textOfStreams,
		Query: []param{
			{"limit", 20, "At most so many, from 1 to 50. The default is 20."},
			{"follow", true, "Stream the changes to come."},
		},
		Answer: example.Events, Stream: view.Change{Machine: &example, Event: &example.Events[0]},
	})
}
