package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/flagfile"
	"github.com/hangar-platform/hangar/internal/hint"
)

// The exit codes, as the help of the root command documents them.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitTimeout     = 4
	ExitRefused     = 5
	ExitDenied      = 6
	ExitUnavailable = 7
	ExitNotRun      = 125 // machine exec, ssh console: the command did not run
	ExitInterrupted = 130
)

// exitCodes are the exit codes for errors of the platform.
var exitCodes = map[hangar.Code]int{
	hangar.CodeInvalid:            ExitUsage,
	hangar.CodeUnauthenticated:    ExitDenied,
	hangar.CodeForbidden:          ExitDenied,
	hangar.CodeNotFound:           ExitNotFound,
	hangar.CodeConflict:           ExitRefused,
	hangar.CodeFailedPrecondition: ExitRefused,
	hangar.CodeExhausted:          ExitUnavailable,
	hangar.CodeTimeout:            ExitTimeout,
	hangar.CodeUnavailable:        ExitUnavailable,
	hangar.CodeUnimplemented:      ExitFailed,
	hangar.CodeInternal:           ExitFailed,
}

// exitReasons are the exit codes for reasons that differ from those of their codes.
var exitReasons = map[string]int{
	hangar.ReasonNameTaken:            ExitRefused,
	hangar.ReasonImageNotFound:        ExitNotFound,
	hangar.ReasonInsufficientCapacity: ExitUnavailable,
	hangar.ReasonLeaseNotFound:        ExitNotFound,
	hangar.ReasonVolumeNotFound:       ExitNotFound,
	hangar.ReasonSnapshotNotFound:     ExitNotFound,
	hangar.ReasonVolumeCapacity:       ExitUnavailable,
	hangar.ReasonQuota:                ExitUnavailable,
}

// hints has advice for reasons and codes. A command with more specific advice attaches it with WithHint.
var hints = map[string]string{
	hangar.ReasonAppNotFound:          "see `hangar apps list`, or make it with `hangar apps create NAME`",
	hangar.ReasonMachineNotFound:      "see `hangar machine list`",
	hangar.ReasonNameTaken:            "choose another name",
	hangar.ReasonOrgNotFound:          "see `hangar orgs list`",
	hangar.ReasonTokenNotFound:        "see `hangar tokens list`",
	hangar.ReasonPeerNotFound:         "see `hangar wireguard list`",
	hangar.ReasonOrgNotEmpty:          "destroy its Apps first: `hangar apps list --org SLUG`",
	hangar.ReasonRateLimited:          "wait a moment and try again",
	hangar.ReasonMachinesRunning:      "stop them first, or destroy the App with --force",
	hangar.ReasonInsufficientCapacity: "ask for less with --memory and --cpus, or destroy Machines that are not needed",
	hangar.ReasonImageNotFound:        "check the name, sign in with `hangar registry login` if the image is private, or push a local one with `hangar image push`",
	hangar.ReasonVolumeNotFound:       "see `hangar volumes list`; one that was destroyed can be undeleted for 24 hours: `hangar volumes list --all`, `hangar volumes undelete`",
	hangar.ReasonQuota:                "`hangar orgs quota show SLUG` lists what the organization may have; destroy what is not needed, or have an administrator raise it",
	hangar.ReasonVolumeCapacity:       "ask for less with --size, destroy volumes that are not needed, or have the operator make room: `hangar up --volume-overcommit`",
	hangar.ReasonDiskFull:             "make room: `hangar image remove`, or destroy volumes and Machines that are not needed; on the server, `hangar doctor` says what takes the disk",
	hangar.ReasonVolumeAttached:       "a volume is for one Machine: destroy that one first, or make another volume with `hangar volumes create`",
	hangar.ReasonVolumeDamaged:        "see `hangar volumes events`; what a snapshot has can be restored with `hangar volumes snapshots restore`",
	hangar.ReasonRootfsDamaged:        "start with a new one: `hangar machine update --persist-rootfs never`, or destroy the Machine",
	hangar.ReasonSnapshotNotFound:     "see `hangar volumes snapshots list`",
	hangar.ReasonSnapshotRunning:      "wait for its end; see `hangar volumes snapshots list`",
	hangar.ReasonStaleVersion:         "another request changed the Machine; look at it with `hangar machine status` and try again",
	hangar.ReasonLeaseHeld:            "wait for its end, or show its nonce with --nonce; see `hangar machine lease view`",
	hangar.ReasonConnectionRefused:    "does the program listen on that port, and on [::] or 0.0.0.0 and not on localhost alone? See `hangar machine ps`",
	hangar.ReasonWaitTimeout:          "look at it with `hangar machine status`, or wait longer with --timeout",

	string(hangar.CodeForbidden):       "use a token that allows it; `hangar tokens create --help` says how to make one",
	string(hangar.CodeUnauthenticated): "sign in with `hangar login`, or pass a valid token in HANGAR_TOKEN; on the server itself it is in DIR/admin.token (use sudo)",
}

// UsageError is an error in the command line.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.Err }

// UsageErrorf returns a UsageError with a formatted text.
func UsageErrorf(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// WithHint attaches advice about the next step to an error; nil stays nil.
func WithHint(err error, text string) error { return hint.With(err, text) }

// ExitStatus ends the program with a code and no message.
type ExitStatus int

func (e ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// NotRunError is an error of `machine exec` or `ssh console` itself, not of the command in the Machine.
type NotRunError struct{ Err error }

func (e NotRunError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e NotRunError) Unwrap() error { return e.Err }

// report prints an error with advice, and returns the exit code.
func (c *Invocation) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}
	if status, ok := errors.AsType[ExitStatus](err); ok {
		return int(status)
	}
	_, isUsage := errors.AsType[UsageError](err)
	isUsage = isUsage || !c.parsed
	if wantsJSON(cmd) {
		return c.reportJSON(err, isUsage)
	}
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(c.Stderr, "Interrupted.")
		if next := hint.Of(err); next != "" {
			fmt.Fprintf(c.Stderr, "Next: %s\n", next)
		}
		return ExitInterrupted
	case isUsage:
		fmt.Fprintf(c.Stderr, "Error: %v\n", err)
		fmt.Fprintf(c.Stderr, "Usage: %s\n", cmd.UseLine())
		if next := HintFor(err); next != "" {
			fmt.Fprintf(c.Stderr, "Next: %s\n", next)
		}
		return ExitUsage
	}
	fmt.Fprintf(c.Stderr, "Error: %s\n", Message(err))
	if c.Used.Context != "" {
		fmt.Fprintf(c.Stderr, "Context: %s, %s\n", c.Used.Context, c.Used.URL)
	}
	if next := HintFor(err); next != "" {
		fmt.Fprintf(c.Stderr, "Next: %s\n", next)
	}
	return codeFor(err)
}

// errorOutput is an error as JSON, on standard error.
type errorOutput struct {
	Error    string      `json:"error"`
	Code     hangar.Code `json:"code,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	ExitCode int         `json:"exit_code"`
	Context  string      `json:"context,omitempty"`
	URL      string      `json:"url,omitempty"`
	Next     string      `json:"next,omitempty"`
}

// wantsJSON reports whether a command has --json.
func wantsJSON(cmd *cobra.Command) bool {
	if cmd == nil {
		return false
	}
	wanted := cmd.Flags().Lookup("json")
	return wanted != nil && wanted.Value.String() == "true"
}

// reportJSON is report for a command that prints JSON.
func (c *Invocation) reportJSON(err error, isUsage bool) int {
	out := errorOutput{Error: Message(err), Reason: hangar.ReasonOf(err), ExitCode: codeFor(err), Context: c.Used.Context, URL: c.Used.URL, Next: HintFor(err)}
	if e, ok := errors.AsType[*hangar.Error](err); ok {
		out.Code = e.Code
	}
	switch {
	case errors.Is(err, context.Canceled):
		out.Error, out.ExitCode = "interrupted", ExitInterrupted
	case isUsage:
		out.ExitCode = ExitUsage
	}
	enc := json.NewEncoder(c.Stderr)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(out) // there is no other way to report
	return out.ExitCode
}

func codeFor(err error) int {
	if _, ok := errors.AsType[NotRunError](err); ok {
		return ExitNotRun
	}
	if _, ok := errors.AsType[*flagfile.Error](err); ok {
		return ExitUsage
	}
	switch {
	case Unreachable(err):
		return ExitUnavailable
	case errors.Is(err, fs.ErrNotExist):
		return ExitNotFound
	}
	if code, ok := exitReasons[hangar.ReasonOf(err)]; ok {
		return code
	}
	if code, ok := exitCodes[hangar.CodeOf(err)]; ok {
		return code
	}
	return ExitFailed
}

// HintFor returns advice about an error: that of WithHint, or of its reason or code, or "".
func HintFor(err error) string {
	if next := hint.Of(err); next != "" {
		return next
	}
	if next, ok := hints[hangar.ReasonOf(err)]; ok {
		return next
	}
	if next := tlsHint(err); next != "" {
		return next
	}
	if Unreachable(err) {
		return "is the daemon running? Start it with `hangar up`, or name another with --url or --context"
	}
	return hints[string(hangar.CodeOf(err))]
}

// tlsHint returns advice about a failed TLS connection, or "".
func tlsHint(err error) string {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the server does not speak TLS there: check the port; https:// needs the edge, or `hangar up --api-cert`"
	}
	failed, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return ""
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "use a name that the certificate is for, as the message says"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "check the clock of this computer, or have the operator renew the certificate"
	}
	if n := len(failed.UnverifiedCertificates); n > 0 {
		return "the server shows " + authorityText(failed.UnverifiedCertificates[n-1]) +
			"; if the platform has its own authority, get its certificate from the operator: hangar login URL --ca FILE"
	}
	return ""
}

// Unreachable reports whether the platform could not be reached.
func Unreachable(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED)
}

// Message returns the text of an error for the user.
func Message(err error) string {
	if Unreachable(err) {
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Addr != nil {
			return fmt.Sprintf("cannot reach the platform at %s: %v", dial.Addr, dial.Err)
		}
	}
	return strings.TrimSuffix(err.Error(), ".")
}
