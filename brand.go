package hangar

// Real clients and images know the public platform's names, and the spec uses neutral ones. This file
// holds every pair. Readers accept both names, and writers write both.

// NamePair is one thing with two names.
type NamePair struct {
	Neutral  string
	Original string
}

// Headers that are read or written under both names.
var (
	HeaderLeaseNonce = NamePair{"platform-machine-lease-nonce", "fly-machine-lease-nonce"}
	HeaderRequestID  = NamePair{"platform-request-id", "fly-request-id"}
)

// Headers that the edge sets for Machines and clients.
var (
	HeaderClientIP         = NamePair{"platform-client-ip", "fly-client-ip"}
	HeaderForwardedProto   = NamePair{"platform-forwarded-proto", "fly-forwarded-proto"}
	HeaderForwardedSSL     = NamePair{"platform-forwarded-ssl", "fly-forwarded-ssl"}
	HeaderForwardedPort    = NamePair{"platform-forwarded-port", "fly-forwarded-port"}
	HeaderRegion           = NamePair{"platform-region", "fly-region"}
	HeaderTraceparent      = NamePair{"platform-traceparent", "fly-traceparent"}
	HeaderTracestate       = NamePair{"platform-tracestate", "fly-tracestate"}
	HeaderReplaySource     = NamePair{"platform-replay-src", "fly-replay-src"}
	HeaderReplayFailed     = NamePair{"platform-replay-failed", "fly-replay-failed"}
	HeaderReplayCacheState = NamePair{"platform-replay-cache-status", "fly-replay-cache-status"}
	// HeaderCacheStatus says whether the edge itself had an answer: HIT for a file that it serves, MISS
	// for an answer of a Machine.
	HeaderCacheStatus = NamePair{"platform-cache-status", "fly-cache-status"}
	// HeaderPreferredUnavailable names a preferred Machine that was not available.
	HeaderPreferredUnavailable = NamePair{"platform-preferred-instance-unavailable", "fly-preferred-instance-unavailable"}
)

// Headers by which clients and Machines tell the edge where to send a request.
var (
	HeaderReplay                 = NamePair{"platform-replay", "fly-replay"}
	HeaderReplayCache            = NamePair{"platform-replay-cache", "fly-replay-cache"}
	HeaderReplayCacheTTL         = NamePair{"platform-replay-cache-ttl-secs", "fly-replay-cache-ttl-secs"}
	HeaderReplayCacheAllowBypass = NamePair{"platform-replay-cache-allow-bypass", "fly-replay-cache-allow-bypass"}
	HeaderReplayCacheControl     = NamePair{"platform-replay-cache-control", "fly-replay-cache-control"}
	HeaderPreferRegion           = NamePair{"platform-prefer-region", "fly-prefer-region"}
	HeaderForceRegion            = NamePair{"platform-force-region", "fly-force-region"}
	HeaderPreferInstance         = NamePair{"platform-prefer-instance-id", "fly-prefer-instance-id"}
	HeaderForceInstance          = NamePair{"platform-force-instance-id", "fly-force-instance-id"}
	// HeaderErrorCode holds the EdgeCode of an answer that the edge itself gave.
	HeaderErrorCode = NamePair{"platform-error-code", "fly-error-code"}
)

// ReplayTypes are the media types of a body that tells the edge to replay a request.
var ReplayTypes = NamePair{"application/vnd.platform.replay+json", "application/vnd.fly.replay+json"}

// EdgeProduct is what the edge calls itself in the headers Server and Via.
const EdgeProduct = "hangar"

// AuthorizationSchemes are the accepted words before a token.
func AuthorizationSchemes() []string { return []string{"Bearer", "PlatformV1", "FlyV1"} }

// GuestEnvPrefixes start the names of the variables that the platform sets in a Machine. Each variable
// is set under both.
var GuestEnvPrefixes = NamePair{"PLATFORM_", "FLY_"}

// GuestDir is the directory of the platform inside every Machine. Both names lead to the same
// directory.
var GuestDir = NamePair{"/.platform", "/.fly"}

// MetadataProcessGroup is the metadata key that names the process group.
var MetadataProcessGroup = NamePair{"platform_process_group", "fly_process_group"}

// MetricPrefixes start the names of the metrics that the platform measures itself.
var MetricPrefixes = NamePair{"platform_", "fly_"}
