// Package api serves the service interfaces of package hangar as a REST API.
//
// # What it promises
//
// It decodes, checks the form of what was sent, calls a service and writes what
// that answers; it decides nothing. Every request but GET /healthz, the document, its page,
// what verifies identity tokens, and those of the registry, which authenticates by itself,
// carries a token, and the services find its principal in their context. Errors have one shape, {"error",
// "status", "code"}, and one table from codes to status codes; see [hangar.Error]. Every
// answer carries the id of its request under both names of [hangar.HeaderRequestID].
//
// Input is bounded: a body has at most router.MaxBodyBytes, is UTF-8 and must arrive within
// the BodyTimeout of package input; what is sent to the registry may be of any size, but must keep coming.
// An answer must be taken within answerTimeout, and a stream that nobody reads ends
// after router.StreamTimeout. A handler that panics answers 500.
//
// A request whose context has a principal already, see [hangar.AsMachine], needs no token.
// If it comes from a Machine, that may ask what operations allow with Self, of itself.
//
// # The document
//
// GET /v1/openapi.json describes every route in OpenAPI 3.1. It is made from the routes
// themselves: see router.Operation. GET /docs is the same as a page.
//
// # Streams
//
// GET …/machines/{id}/events?follow=true and GET /v1/apps/{app}/logs?follow=true
// answer with one JSON value per line, as things happen. An empty line is a sign
// of life. A stream that fails ends with a line that is an error body; one that
// merely ends was complete.
//
// What lasts ends with the first token of its request that expires or is revoked: a
// stream with such a line, a command and a wait with an error, all of them with
// CodeUnauthenticated and within router.EndTimeout, whether the client reads or not.
//
// # Commands with live streams
//
// GET …/machines/{id}/exec with an upgrade to WebSocket executes a command. The
// query says which: command (once per argument), tty, rows, cols and timeout.
// Every message is binary, and its first byte says what the rest is:
//
//	0  stdin, from the client; a message without more ends it
//	1  stdout, from the server
//	2  stderr, from the server; never with tty
//	3  a new size of the terminal, from the client: {"rows": 40, "cols": 120}
//	4  the end, from the server: {"exit_code": 0, "exit_signal": 0}, or an error body
//
// The server closes the connection with status 1000 after the end, or without it when
// the client does not take the end within router.EndTimeout. A client that
// closes first, or is lost, has the command killed; the server sends a ping now and
// then to find that out. A message has at most 32 KiB and one byte.
//
// # Connections to Machines
//
// GET …/machines/{id}/tunnel?port=N with an upgrade to WebSocket is a TCP connection to a
// program in the Machine; package wsconn has the protocol. It has no timeout of its own:
// as with TCP, who does not read holds up who writes. The server sends a sign of life
// now and then, so that nothing in between takes the connection for dead. It ends
// with the request's context, of which the daemon and the token are a part.
//
// # Concurrency
//
// Handlers run on the goroutine that net/http gives them, but for waits beyond the first
// maxSeated, whose connections package longpoll holds without one. Streams start one more
// for signs of life, commands another one for what the client sends, connections one for
// each direction; all have ended when the handler returns.
//
// It is not a place for rules: what a name, a config or a state allows is decided
// by the services.
package api
