// Package hosts has the hosts of a cluster share one store of metrics, which one of them keeps.
//
// Client is the way of a host to the keeper: Store writes samples there, Queries has queries of
// organizations answered there, and Alerts asks there what has become of rules. Where this host is the
// keeper, each uses what it has in process. Handler is the other end, over mutual TLS.
//
// Promises. A keeper takes of a host only what that host says to have measured itself: every series has
// one metrics.OrgLabel and the host's own metrics.HostLabel. It takes a request as a whole or not at all. Queries of all hosts
// pass the one gateway of the keeper, whose limits of an organization are so those of the cluster. An answer
// that is cut off on its way is cut off for the client, too. A host that is not, or not any longer, the
// keeper answers so, and nothing is stored twice or lost for that: samples wait in the spool.
//
// Bounds. A host has so many requests under way at the keeper, and each is so large.
//
// Concurrency. All types are safe for concurrent use.
//
// It does not know how the keeper is chosen.
package hosts
