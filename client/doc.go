// Package client speaks the REST API of a hangar server and offers the service
// interfaces of package hangar over it.
//
// A Client answers as the services themselves do: errors are *hangar.Error with
// the code, reason and text that the server gave, watches and logs are iterators,
// and a command is executed with live streams. Only reads are repeated, and only
// after the connection was lost; every other call is made at most once. A context
// bounds the waiting, not what the server was asked to do, except that ending the
// context of ExecMachine kills the command.
//
// A Client may be used from many goroutines. It starts none that outlive a call,
// with one exception that ExecMachine describes.
//
// It is not a cache and knows no rules: what is allowed is for the server to say.
package client
