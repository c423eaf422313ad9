package hangar

// Real clients and images know the public platform's names, the spec uses
// neutral ones. This file holds every pair; everything that reads accepts both,
// everything that writes writes both.

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

// AuthorizationSchemes are the words before a token that are accepted.
func AuthorizationSchemes() []string { return []string{"Bearer", "PlatformV1", "FlyV1"} }

// GuestEnvPrefixes start the names of the variables that the platform sets in a
// Machine; each variable is set under both.
var GuestEnvPrefixes = NamePair{"PLATFORM_", "FLY_"}

// GuestDir is the directory of the platform inside every Machine; the two names lead to
// the same one.
var GuestDir = NamePair{"/.platform", "/.fly"}

// MetadataProcessGroup is the metadata key that names the process group.
var MetadataProcessGroup = NamePair{"platform_process_group", "fly_process_group"}
