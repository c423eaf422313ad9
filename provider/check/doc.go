// Package check tests a provider's server: it acts as the platform and as an attacker, and
// reports each rule of the protocol that the server keeps or breaks.
//
// [Run] creates an extension whose name begins with "hangar-check-", uses it, and deletes it
// even if it finds faults. It needs the secret for requests, and only HTTP access to the server.
// The server may be in any language, and no platform needs to know it.
//
// docs/extensions.md of this module specifies the protocol.
package check
