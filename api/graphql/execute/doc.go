// Package execute answers GraphQL requests by a typed schema and resolvers for its fields.
//
// Promises. A request is bounded before anything is resolved: in bytes, tokens, depth, fields after
// its fragments are put in their places, and cost, which counts the items that lists may have; and
// while it is answered: in the fields and the calls of the services that it takes. What a resolver
// returns is checked against the schema: a client gets no null for what is not nullable, no word
// that an enumeration does not have, and no text for a number.
//
// It is strict about what is asked for and lenient about what is shown. An operation, an argument,
// or a property of an input that the schema does not have is an error, because leaving it out could
// allow more than is meant; a field that an object does not have is null, because clients of many
// versions ask for fields that they can do without. Variables that the operation does not declare,
// and fragments that it does not use, have no effect.
//
// Paths of errors are lists of texts, the places in lists included: existing clients decode nothing
// else.
//
// Concurrency. A Schema is never changed after New and safe for concurrent use. The fields of one
// request are resolved one after another, on the caller's goroutine.
package execute
