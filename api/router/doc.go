// Package router serves the operations of the API: what all have in common.
//
// An area of the API adds each of its operations with a pattern, a [Handler] and an [Operation],
// which says what the OpenAPI document says of it. The router finds out who asks, bounds how often,
// gives the request its id, writes the answer or the error, logs, and measures; a handler decodes,
// calls a service, and returns what that answers. Errors have one shape, [Error], and one table
// from codes to status codes.
//
// What lasts ends with the first token of its request that expires or is revoked.
package router
