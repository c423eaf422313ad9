// Package hosts has the hosts of a cluster share one store of metrics, which one of them, the holder, keeps.
//
// Client is the way of a host to the holder: Store writes samples there, Queries has queries of
// organizations answered there, and Alerts asks there for the state of rules. On the holder itself, each works in
// process. Handler is the other end, over mutual TLS.
//
// Promises. A holder takes from a host only what that host has measured itself: every series has one metrics.OrgLabel
// and the host's own metrics.HostLabel. It takes a request as a whole or not at all. Queries of all hosts pass the
// one gateway of the holder, so its limits of an organization hold for the cluster. An answer that is cut off on its
// way is cut off for the client, too. A host that is not the holder, or not any longer, says so, and no sample is
// lost or stored twice by that: samples wait in the spool.
//
// Bounds. The number of a host's requests in flight at the holder, and their sizes, are bounded.
//
// Concurrency. All types are safe for concurrent use.
//
// It does not know how the holder is chosen.
package hosts
