// Package check tests a provider's server: it acts like the platform, and like an attacker, and
// reports each rule of the protocol that the server keeps or breaks.
//
// [Run] creates an extension with a name that begins with "hangar-check-", uses it, and deletes
// it, also when it finds faults. It needs the secret for requests, and reaches the server
// over HTTP alone, so that a server in any language can be tried, before a platform knows it.
//
// docs/extensions.md of this module specifies the protocol.
package check
