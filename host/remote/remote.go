// Package remote is the agent of one host as another host uses it: the same interfaces, over the
// network.
//
// A Handler answers for a host, and a Directory has the agents and gates of all: that of its own
// host in process, those of others as clients of their Handlers. Calls are requests of HTTP/2 over
// mutual TLS, whose bodies are frames; see ADR 0053. Who calls is known by the verified certificate,
// which names a host.
//
// Promises. An error keeps its code, its reason and its message; causes stay in the log of their
// host. The caller's deadline travels, and so does its giving up, but for calls that change
// something: these reach their end, because no one would know whether half of one was done. A call
// whose answer is lost is made again where the interface says that it may be repeated; the error of
// any other is CodeUnavailable and says nothing of what was done. A host that cannot be reached is
// CodeUnavailable within two seconds, and at once for a while after that. Secrets of Machines travel
// and are not logged.
//
// Bounds. A call is at most 16 MiB, an answer 256 MiB, and one host has so many calls and connections
// of another under way. Who does not read what a connection brings holds up who writes to it, and
// nothing else.
//
// Concurrency. All types are safe for concurrent use. What lives longer than a call, such as a
// connection to a Machine, ends with the Directory's Run.
package remote
