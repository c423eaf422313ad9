// Package balance decides which Machine serves a request, and wakes one when none runs.
//
// It follows the rows of edge/catalog. A request names a public port of an App (Endpoint) and may
// restrict the Machines (Selector). Acquire returns a Permit, which counts as in flight until
// Release:
//
//	Acquire(endpoint, selector)
//	   │
//	   ▼
//	portTable ── entry of the public port: groups of candidates, by region      app.mu
//	   │
//	   ▼
//	pick ── nearest region first; below the soft limit, above it, cooling       app.mu
//	   │    down; fewest requests in flight
//	   │ none available
//	   ├──────────────▶ queue ◀── offer: a release, a new row, the end of a     app.mu, held by
//	   │                  │       cooldown makes a candidate available          the cause
//	   │                  ├─────▶ wake, probe ── MachineGate.WakeMachine        goroutines of Run
//	   │ ◀── granted ─────┘
//	   ▼
//	enter ── MachineGate.EnterMachine, no lock held; or later, by Permit.Enter
//	   │        refused: cooldown, pick again
//	   ▼
//	Permit ── Dial, OnExit, Failed (cooldown) … Release
//
// The words:
//
//   - A candidate is one service of one Machine. Its availability says whether it can take a
//     request now, may be able to later, or has to be woken first.
//   - A serviceSet is the services that Machines have in common, as all of one version do. Its
//     groups, one for each internal port, hold the candidates, in one index for each region.
//   - An index keeps every candidate in exactly one list: by availability and, if available, by
//     tier and by requests in flight. A bit mask finds the least loaded.
//   - The soft limit orders candidates and wakes one more Machine when all have reached it. The
//     hard limit is never exceeded: this edge sends nothing above it by its own count, and the
//     host refuses what several edges send together.
//   - A waiter is a request in the queue of its App: first come, first served, and never while a
//     candidate is available to it. The length of the queue and the time in it are bounded.
//   - A cooldown is a time during which a candidate is passed over: after the host refused a
//     request, or (then the candidate only comes last) after a connection failed.
//   - A backoff is a growing pause before a Machine that could not be woken is tried again.
//   - A deadline is the end of a cooldown, backoff or grace period. One timer for each App
//     rechecks candidates then; nothing polls.
//
// Rows may be stale, so the host has the last word (hangar.MachineGate). A request is never sent
// to a Machine whose row says that it is cordoned or that its health checks fail.
//
// All methods may be called by any goroutine. One mutex for each App, app.mu, guards its
// candidates, its queue and its deadlines; it is held for a time that does not grow with the
// number of Machines, and never while the host is asked. A change of a row costs as little. The
// port table is immutable and replaced atomically. Balancer.mu guards the map of Apps, and is
// locked first. Wakes and probes belong to Run, and go on when the request that caused them gives
// up.
//
// The package reads no request, and opens no connection except for Permit.Dial and probes.
package balance
