// Package api serves the service interfaces of package hangar as a REST API.
//
// # What it promises
//
// It decodes and checks the form of a request, calls a service and writes its answer; it decides nothing.
// Every request carries a token, and the services find its principal in their context. Exceptions are GET /
// and /healthz, the document and its page, the documents that verify identity tokens, signing in, and what
// authenticates by itself: the registry, single sign-on, OAuth, and webhooks of providers by their
// signature. Errors have one shape, {"error", "status", "code"}, and one table from codes to status codes;
// see [hangar.Error]. Every answer carries the id of its request under both names of
// [hangar.HeaderRequestID].
//
// Input is bounded: a body has at most router.MaxBodyBytes, is UTF-8 and must arrive within
// the BodyTimeout of package input; an upload to the registry may be of any size, but must keep coming. An
// answer must be taken within answerTimeout, and a stream without a reader ends after
// router.StreamTimeout. A handler that panics answers 500.
//
// A request whose context has a principal already, see [hangar.AsMachine], needs no token.
// A Machine may call the operations that are marked with Self, about itself.
//
// # The document
//
// GET /v1/openapi.json describes every route in OpenAPI 3.1. It is made from the routes
// themselves: see router.Operation. GET /docs is the same as a page.
//
// # Streams
//
// GET …/machines/{id}/events?follow=true and GET /v1/apps/{app}/logs?follow=true
// answer with one JSON value per line, as things happen. An empty line is a keepalive. A stream that fails
// ends with a line that is an error body; without one it was complete.
//
// A long request ends with the first of its tokens that expires or is revoked: a stream with such a line,
// a command and a wait with an error, all of them with CodeUnauthenticated and within router.EndTimeout,
// whether the client reads or not.
//
// # Commands with live streams
//
// GET …/machines/{id}/exec with an upgrade to WebSocket executes a command. The query describes it:
// command (once per argument), tty, rows, cols and timeout. Every message is binary, and its first byte
// says what the rest is:
//
//	0  stdin, from the client; an empty one ends it
//	1  stdout, from the server
//	2  stderr, from the server; never with tty
//	3  a new size of the terminal, from the client: {"rows": 40, "cols": 120}
//	4  the end, from the server: {"exit_code": 0, "exit_signal": 0}, or an error body
//
// The server closes the connection with status 1000 after the end, or without it when
// the client does not take the end within router.EndTimeout. When a client closes first, or is lost, the
// command is killed; the server sends pings to notice that. A message has at most 32 KiB and one byte.
//
// # Connections to Machines
//
// GET …/machines/{id}/tunnel?port=N with an upgrade to WebSocket is a TCP connection to a
// program in the Machine; package wsconn has the protocol. It has no timeout of its own:
// as with TCP, a slow reader holds up the writer. The server sends a keepalive now and then, so that no
// proxy takes the connection for dead. It ends with the request's context, and so with the daemon and the
// token.
//
// # Concurrency
//
// Handlers run on the goroutine that net/http gives them, except for waits beyond the first maxSeated,
// whose connections package longpoll holds without one. Streams start one more for keepalives, commands
// another one for input, connections one for each direction; all have ended when the handler returns.
//
// It is not a place for rules: the services decide what a name, a config or a state allows.
package api
