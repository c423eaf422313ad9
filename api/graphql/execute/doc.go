// Package execute answers GraphQL requests by a typed schema and resolvers for its fields.
//
// Promises. A request is bounded before anything is resolved: in bytes, tokens, depth, fields after
// its fragments are inserted, and cost, which counts the items that lists may have; and during its
// execution: in the fields and the calls of services. What a resolver returns is checked against
// the schema: a client gets no null for a non-nullable field, no value outside of an enumeration,
// and no text for a number.
//
// It is strict about input and lenient about output. An operation, an argument, or a property of an
// input that the schema does not have is an error, because ignoring it could allow more than is
// meant; a field that an object does not have is null, because clients of many versions ask for
// fields that they do not need. Variables that the operation does not declare, and fragments that
// it does not use, have no effect.
//
// Paths of errors are lists of strings, even for indexes, because existing clients decode nothing else.
//
// Concurrency. A Schema is never changed after New and safe for concurrent use. The fields of one
// request are resolved one after another, on the caller's goroutine.
package execute
