package hangar

import "fmt"

// EdgeCode is a short, stable code for the reason why the edge did not serve a request. It appears in
// HeaderErrorCode and in the App's log.
type EdgeCode string

// The codes, as users of the public platform know them.
const (
	EdgeSocket          EdgeCode = "PP01" // a socket of the edge failed
	EdgeHandshake       EdgeCode = "PU01" // HTTP/2 with the Machine could not be started
	EdgeIncomplete      EdgeCode = "PU02" // the Machine did not complete its answer
	EdgeHostUnreachable EdgeCode = "PU03"
	EdgeBadRequest      EdgeCode = "PU04" // the request is malformed, or must not be forwarded
	EdgeRefusedPort     EdgeCode = "PC01" // nothing listens on the service's port at an address that the edge can reach
	EdgeReset           EdgeCode = "PC03"
	EdgeAborted         EdgeCode = "PC04"
	EdgeConnectTimeout  EdgeCode = "PC05"
	EdgeIO              EdgeCode = "PC06"
	EdgeRetries         EdgeCode = "PC07" // connections to the Machine failed too often
	EdgeTLSLimit        EdgeCode = "PT01" // too many handshakes of one client
	EdgeTLSNameLimit    EdgeCode = "PT02" // too many handshakes for one name
	EdgeTLSHandshake    EdgeCode = "PT03"
	EdgeNoName          EdgeCode = "PT04" // TLS without a server name
	EdgeNoCertificate   EdgeCode = "PT05" // none for the server name
	EdgeBadCertificate  EdgeCode = "PT06"
	EdgeWake            EdgeCode = "PM01" // the Machine could not be started, for instance because its host has no room
	EdgeWakeInternal    EdgeCode = "PM02"
	EdgeWakeTimeout     EdgeCode = "PM03"
	EdgeUnreachable     EdgeCode = "PM05" // the Machine started, but its port accepts no connections
	EdgeStateChange     EdgeCode = "PM07"
	EdgeNotStartable    EdgeCode = "PM08"
	EdgeStartCancelled  EdgeCode = "PM10"
	EdgeReplayBody      EdgeCode = "PA01" // the body is too large to be replayed, or there is no room to keep it
	EdgeReplayLoop      EdgeCode = "PA02" // more than MaxReplays
	EdgeReplayInvalid   EdgeCode = "PA03" // the Machine's instruction is invalid
	EdgeReplayApp       EdgeCode = "PA04" // no such App
	EdgeReplayForbidden EdgeCode = "PA05" // of another organization
	EdgeNoneHealthy     EdgeCode = "PR01" // no Machine for a TCP connection
	EdgeNoMachine       EdgeCode = "PR02" // the requested Machine does not exist
	EdgeNoCandidate     EdgeCode = "PR03" // no Machine could serve the request before the time ran out
	EdgeQueueFull       EdgeCode = "PR04" // all are at their hard limit, and the queue is full
	EdgeStatics         EdgeCode = "PR05"
	// The following are hangar's own.
	EdgeNoApp       EdgeCode = "PH01" // no App is served here under this name
	EdgeMisdirected EdgeCode = "PH02" // the Host is not the one that TLS was negotiated for
	EdgeTooLarge    EdgeCode = "PH03" // headers or a body above the limits
	EdgeSlow        EdgeCode = "PH04" // the client took too long
	EdgeNoMethod    EdgeCode = "PH05" // CONNECT, or another method that is not supported
	EdgeNeedsTLS    EdgeCode = "PH06" // a name of the platform was called without TLS, in a way that is not redirected
	EdgeTooMany     EdgeCode = "PH07" // the client has too many requests in flight at the names of the platform
	EdgeOrgLimit    EdgeCode = "PH08" // the App's organization has too many requests in flight, or connections open
	EdgeInternal    EdgeCode = "PH99"
)

// EdgeCodes lists every code.
func EdgeCodes() []EdgeCode {
	return []EdgeCode{
		EdgeSocket, EdgeHandshake, EdgeIncomplete, EdgeHostUnreachable, EdgeBadRequest, EdgeRefusedPort, EdgeReset,
		EdgeAborted, EdgeConnectTimeout, EdgeIO, EdgeRetries, EdgeTLSLimit, EdgeTLSNameLimit, EdgeTLSHandshake, EdgeNoName,
		EdgeNoCertificate, EdgeBadCertificate, EdgeWake, EdgeWakeInternal, EdgeWakeTimeout, EdgeUnreachable, EdgeStateChange,
		EdgeNotStartable, EdgeStartCancelled, EdgeReplayBody, EdgeReplayLoop, EdgeReplayInvalid, EdgeReplayApp,
		EdgeReplayForbidden, EdgeNoneHealthy, EdgeNoMachine, EdgeNoCandidate, EdgeQueueFull, EdgeStatics, EdgeNoApp, EdgeMisdirected,
		EdgeTooLarge, EdgeSlow, EdgeNoMethod, EdgeNeedsTLS, EdgeTooMany, EdgeOrgLimit, EdgeInternal,
	}
}

// EdgeError is an error that the edge itself answers with.
type EdgeError struct {
	Code    EdgeCode
	Status  int    // of HTTP
	Message string // for the user, without internals
	Err     error  // the cause, for the log; may be nil
}

// Error returns the code and the message, followed by the cause if there is one.
func (e *EdgeError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("[%s] %s", e.Code, e.Message)
	}
	return fmt.Sprintf("[%s] %s: %v", e.Code, e.Message, e.Err)
}

// Unwrap returns the cause.
func (e *EdgeError) Unwrap() error { return e.Err }

// MaxReplays is how often one request may be replayed.
const MaxReplays = 10
