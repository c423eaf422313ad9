// Package hangar is the language of a hosting platform: Apps, Machines, their
// configs, states and events, the errors they answer with, and the interfaces
// behind which the planes of the platform meet.
//
// Read in this order: App and Machine (app.go, machine.go); what a Machine is made from (machine_config.go,
// whose checks are in machine_config_validate.go) and the states it has (machine_state.go); MachineService,
// which the API calls; Agent, through which control reaches a host (host.go); AppRoute and MachineGate, by
// which the edge finds and enters Machines (route.go, gate.go); Error, with the codes that all answer
// (error.go). The other files are one subject each, by name.
//
// The package does no I/O and imports nothing of this module. control decides, host
// executes, edge routes, api and client speak the language over HTTP; they do not
// import one another, but meet here. Values of these types are plain data: callers may
// keep what they are given, and change the fields of a copy, but not the maps and
// slices in it, which may be shared.
package hangar

// AddressFile is a file in the data directory of a server. It holds host:port of the API of the daemon
// that runs, or ran last, so that commands on the same computer find it.
const AddressFile = "api.addr"
