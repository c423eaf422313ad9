// Package remote is the agent of one host as another host uses it: the same interfaces, over the
// network.
//
// A Handler answers for a host, and a Directory has the agents and gates of all: that of its own
// host in process, those of others as clients of their Handlers. Calls are requests of HTTP/2
// over mutual TLS, whose bodies are frames; see ADR 53. The caller is known by the verified
// certificate, which names a host.
//
// Promises. An error keeps its code, its reason and its message; causes stay in the log of their
// host. The caller's deadline and cancellation are passed on. A call that changes something
// ignores the cancellation and completes, because a partial change would go unnoticed. A call
// whose answer is lost is made again where the interface says that it may be repeated; the error
// of any other is CodeUnavailable and says nothing of what was done. A host that cannot be
// reached is CodeUnavailable within two seconds, and at once for a while after that. Secrets of
// Machines travel and are not logged.
//
// Bounds. A call is at most 16 MiB, an answer 256 MiB. At one host, another may have 16,384 calls
// and connections under way, and all others together 65,536. A slow reader of a connection holds up
// its writer, and nothing else.
//
// Concurrency. All types are safe for concurrent use. Objects that live longer than a call, such as
// a connection to a Machine, end with the Directory's Run.
package remote
