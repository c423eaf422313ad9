// Package hangar is the language of a hosting platform: Apps, Machines, their
// configs, states and events, the errors they answer with, and the interfaces
// behind which the planes of the platform meet.
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
