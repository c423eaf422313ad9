// Package hosts has the hosts of a cluster share one store of metrics, which one of them, the holder, keeps.
//
// Client connects a host to the holder: Store writes samples there, Queries lets the holder answer
// queries of organizations, and Alerts reads the state of rules there. On the holder itself, each
// works in process. Handler is the other end, over mutual TLS.
//
// Promises. A holder accepts from a host only what that host has measured itself: every series has
// one metrics.OrgLabel and the host's own metrics.HostLabel. It accepts a request as a whole or not
// at all. Queries of all hosts pass through the holder's one gateway, so its limits of an
// organization apply to the cluster. An answer that breaks off on its way also breaks off for the
// client. A host that is not the holder, or not any more, rejects requests, and no sample is lost or
// stored twice: samples wait in the spool.
//
// Bounds. The number of a host's requests in flight at the holder, and their sizes, are bounded.
//
// Concurrency. All types are safe for concurrent use.
//
// The package does not know how the holder is chosen.
package hosts
