// Package client speaks the REST API of a hangar server and offers the service
// interfaces of package hangar over it.
//
// A Client answers as the services themselves do: errors are *hangar.Error with
// the code, reason and text that the server gave, watches and logs are iterators,
// and a command is executed with live streams. Only reads are repeated, and only after
// a lost connection; every other call is sent at most once. A context bounds the wait,
// not the work of the server, except that ending the context of ExecMachine kills the
// command.
//
// A Client may be used from many goroutines. It starts none that outlive a call,
// with one exception that ExecMachine describes.
//
// It is not a cache and has no rules: the server decides what is allowed.
package client
