package hangar

import (
	"context"
	"errors"
	"fmt"
)

// Code is the class of an error. It decides the HTTP status and whether a retry
// can help; see the table in package api.
type Code string

// The classes of errors.
const (
	CodeInvalid            Code = "invalid"             // the request can never succeed as sent
	CodeUnauthenticated    Code = "unauthenticated"     // no credential, or not a valid one
	CodeForbidden          Code = "forbidden"           // the caller may not do this
	CodeNotFound           Code = "not_found"           // no such thing, or not for this caller
	CodeConflict           Code = "conflict"            // another caller was first; read again
	CodeFailedPrecondition Code = "failed_precondition" // the thing is not in a state that allows this
	CodeExhausted          Code = "exhausted"           // a quota or a rate is used up
	CodeTimeout            Code = "timeout"             // the wait ended before the thing happened
	CodeUnavailable        Code = "unavailable"         // try again, later or elsewhere
	CodeUnimplemented      Code = "unimplemented"       // known, but not offered by this server
	CodeInternal           Code = "internal"            // a fault of the platform
)

// Codes lists every code, for tables and for tests that walk all of them.
func Codes() []Code {
	return []Code{
		CodeInvalid, CodeUnauthenticated, CodeForbidden, CodeNotFound, CodeConflict, CodeFailedPrecondition,
		CodeExhausted, CodeTimeout, CodeUnavailable, CodeUnimplemented, CodeInternal,
	}
}

// Reasons are stable words for errors that a program tells apart. They cross
// every wire unchanged; texts do not carry meaning.
const (
	ReasonNameTaken            = "name_taken"
	ReasonBadName              = "bad_name" // of an App
	ReasonInsufficientCapacity = "insufficient_capacity"
	ReasonBadConfig            = "bad_config"
	ReasonWrongState           = "wrong_state"
	ReasonStaleVersion         = "stale_version"
	ReasonLeaseHeld            = "lease_held"      // by another
	ReasonLeaseNotFound        = "lease_not_found" // or not under this nonce
	ReasonWaitTimeout          = "wait_timeout"
	ReasonOutOfReach           = "out_of_reach" // a wait for a state that can no longer be reached
	ReasonMachineNotFound      = "machine_not_found"
	ReasonAppNotFound          = "app_not_found"
	ReasonOrgNotFound          = "org_not_found"
	ReasonTokenNotFound        = "token_not_found"
	ReasonPeerNotFound         = "peer_not_found"
	ReasonTokenInvalid         = "token_invalid" // a token in the request, not the caller's own
	ReasonUserNotFound         = "user_not_found"
	ReasonProviderNotFound     = "provider_not_found"
	ReasonExtensionNotFound    = "extension_not_found"
	ReasonTermsNotAccepted     = "terms_not_accepted" // of a provider, by the user
	ReasonInvitationNotFound   = "invitation_not_found"
	ReasonCodeInvalid          = "code_invalid"   // of an invitation or a password reset
	ReasonWrongPassword        = "wrong_password" // of a user who is signed in
	ReasonOrgNotEmpty          = "org_not_empty"
	ReasonMachinesRunning      = "machines_running"
	ReasonRateLimited          = "rate_limited"
	ReasonQuota                = "quota" // an organization has used up what it may have of something
	ReasonImageNotFound        = "image_not_found"
	ReasonBadImage             = "bad_image"
	ReasonRegistryNotAllowed   = "registry_not_allowed" // its address is not one of the public internet
	ReasonUnsupported          = "unsupported"
	ReasonSecretNotFound       = "secret_not_found"
	ReasonSecretsVersion       = "secrets_version" // the secrets are not at the version that was asked for
	ReasonSecretKeyNotFound    = "secret_key_not_found"
	ReasonSignatureMismatch    = "signature_mismatch"  // the signature is not of this plaintext and key
	ReasonCiphertextMismatch   = "ciphertext_mismatch" // the ciphertext is not of this key and associated data
	ReasonVolumeNotFound       = "volume_not_found"
	ReasonDiskFull             = "disk_full"                 // of the server, apart from what is reserved
	ReasonVolumeCapacity       = "volume_placement_capacity" // no host has room for the volume
	ReasonSnapshotNotFound     = "snapshot_not_found"
	ReasonVolumeAttached       = "volume_attached"    // to another Machine
	ReasonVolumeDamaged        = "volume_damaged"     // it cannot be opened or repaired
	ReasonRootfsDamaged        = "rootfs_damaged"     // the root file system that a Machine has kept cannot be repaired or is missing
	ReasonSnapshotRunning      = "snapshot_running"   // another one of the same volume
	ReasonConnectionRefused    = "connection_refused" // nothing listens on the port of a Machine
	ReasonAddressNotFound      = "address_not_found"
	ReasonCertificateNotFound  = "certificate_not_found"
	ReasonAtLimit              = "at_limit"         // a service has as many requests or connections as it may
	ReasonAlertsNotFound       = "alerts_not_found" // the organization has no rules
	ReasonWebhookNotFound      = "webhook_not_found"
	ReasonDeliveryNotFound     = "delivery_not_found" // of a webhook
	ReasonReleaseNotFound      = "release_not_found"
	ReasonSessionNotFound      = "session_not_found" // of an election, or it has ended
	ReasonStartFailed          = "start_failed"      // a Machine could not be started for a request
	ReasonRecordDamaged        = "record_damaged"    // a record of the cluster state cannot be read
)

// Error is what every service of the platform answers with. Message is for the
// user and holds no internals; Err is the cause, logged once and never sent.
type Error struct {
	Code    Code
	Reason  string // stable, may be empty; see the Reason constants
	Message string
	Err     error
}

// Error returns the message, followed by the cause if there is one.
func (e *Error) Error() string {
	switch {
	case e.Err == nil || e.Err.Error() == "":
		return e.Message
	case e.Message == "":
		return e.Err.Error()
	default:
		return e.Message + ": " + e.Err.Error()
	}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error whose message is formatted as by fmt.Sprintf. A %w
// verb makes its operand the cause as well as a part of the message.
func Errorf(code Code, reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Reason: reason, Message: err.Error(), Err: wrapped(err)}
}

// wrapped carries the operand of a %w verb without repeating its text.
func wrapped(err error) error {
	if cause := errors.Unwrap(err); cause != nil {
		return silent{cause}
	}
	return nil
}

// silent keeps a cause findable by errors.Is and errors.As. It has no text, because the message already
// holds the cause's.
type silent struct{ cause error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.cause }

// CodeOf returns the code of the outermost *Error in err's tree. A deadline that
// passed is CodeTimeout, any other error CodeInternal, nil the empty code.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return CodeTimeout
	}
	return CodeInternal
}

// NoRoom reports whether err says that a host lacks room for a request. Another host may have room, or
// the same one later.
func NoRoom(err error) bool {
	reason := ReasonOf(err)
	return reason == ReasonInsufficientCapacity || reason == ReasonDiskFull
}

// ReasonOf returns the reason of the outermost *Error in err's tree, or "".
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// MessageOf returns the text of err for a user: the message of the outermost *Error in its tree, or the
// whole text if there is none. Such a text must reveal nothing about other tenants.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return err.Error()
}
