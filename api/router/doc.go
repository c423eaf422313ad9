// Package router has what all operations of the API share.
//
// An area of the API adds each of its operations with a pattern, a [Handler] and an [Operation],
// which is its entry in the OpenAPI document. The router authenticates the caller, limits its rate,
// gives the request its id, writes the answer or the error, logs, and measures; a handler decodes,
// calls a service, and returns the service's answer. Errors have one shape, [Error], and one table
// from codes to status codes.
//
// A long request ends with the first of its tokens that expires or is revoked.
package router
