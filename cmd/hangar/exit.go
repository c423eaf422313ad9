package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitTimeout     = 4
	exitRefused     = 5
	exitDenied      = 6
	exitUnavailable = 7
	exitNotRun      = 125 // machine exec, ssh console: the command did not run
	exitInterrupted = 130
)

// exitCodes maps what the platform answers to what a script sees.
var exitCodes = map[hangar.Code]int{
	hangar.CodeInvalid:            exitUsage,
	hangar.CodeUnauthenticated:    exitDenied,
	hangar.CodeForbidden:          exitDenied,
	hangar.CodeNotFound:           exitNotFound,
	hangar.CodeConflict:           exitRefused,
	hangar.CodeFailedPrecondition: exitRefused,
	hangar.CodeExhausted:          exitUnavailable,
	hangar.CodeTimeout:            exitTimeout,
	hangar.CodeUnavailable:        exitUnavailable,
	hangar.CodeUnimplemented:      exitFailed,
	hangar.CodeInternal:           exitFailed,
}

// exitReasons are the reasons that say more than their code.
var exitReasons = map[string]int{
	hangar.ReasonNameTaken:            exitRefused,
	hangar.ReasonImageNotFound:        exitNotFound,
	hangar.ReasonInsufficientCapacity: exitUnavailable,
	hangar.ReasonLeaseNotFound:        exitNotFound,
	hangar.ReasonVolumeNotFound:       exitNotFound,
	hangar.ReasonSnapshotNotFound:     exitNotFound,
	hangar.ReasonVolumeCapacity:       exitUnavailable,
	hangar.ReasonQuota:                exitUnavailable,
}

// hints is the advice for reasons and codes that mean the same everywhere; a
// command that knows better attaches its own with withHint.
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
	hangar.ReasonRootfsDamaged:        "begin with a fresh one: `hangar machine update --persist-rootfs never`, or destroy the Machine",
	hangar.ReasonSnapshotNotFound:     "see `hangar volumes snapshots list`",
	hangar.ReasonSnapshotRunning:      "wait for its end; see `hangar volumes snapshots list`",
	hangar.ReasonStaleVersion:         "another request changed the Machine; look at it with `hangar machine status` and try again",
	hangar.ReasonLeaseHeld:            "wait for its end, or show its nonce with --nonce; see `hangar machine lease view`",
	hangar.ReasonConnectionRefused:    "does the program listen on that port, and on [::] or 0.0.0.0 and not on localhost alone? See `hangar machine ps`",
	hangar.ReasonWaitTimeout:          "look at it with `hangar machine status`, or wait longer with --timeout",

	string(hangar.CodeForbidden):       "use a token that allows it; `hangar tokens create --help` says how to make one",
	string(hangar.CodeUnauthenticated): "sign in with `hangar login`, or pass a valid token in HANGAR_TOKEN; on the server itself it is in DIR/admin.token (use sudo)",
}

// usageError is a command line that cannot be carried out as written.
type usageError struct{ Err error }

func (e usageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e usageError) Unwrap() error { return e.Err }

// usageErrorf makes a usageError of a text.
func usageErrorf(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// withHint attaches the next step to an error; nil stays nil.
func withHint(err error, text string) error { return hint.With(err, text) }

// exitStatus ends the program with a code and no message.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// notRun marks an error of `machine exec` or `ssh console` itself, apart from the command's.
type notRun struct{ Err error }

func (e notRun) Error() string { return e.Err.Error() }

func (e notRun) Unwrap() error { return e.Err }

// report prints an error the way a person can act on and returns the exit code.
func (c *cli) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	_, isUsage := errors.AsType[usageError](err)
	isUsage = isUsage || !c.parsed
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(c.stderr, "Interrupted.")
		if next := hint.Of(err); next != "" {
			fmt.Fprintf(c.stderr, "Next: %s\n", next)
		}
		return exitInterrupted
	case isUsage:
		fmt.Fprintf(c.stderr, "Error: %v\n", err)
		fmt.Fprintf(c.stderr, "Usage: %s\n", cmd.UseLine())
		if next := hintFor(err); next != "" {
			fmt.Fprintf(c.stderr, "Next: %s\n", next)
		}
		return exitUsage
	}
	fmt.Fprintf(c.stderr, "Error: %s\n", message(err))
	if c.used.context != "" {
		fmt.Fprintf(c.stderr, "Context: %s, %s\n", c.used.context, c.used.url)
	}
	if next := hintFor(err); next != "" {
		fmt.Fprintf(c.stderr, "Next: %s\n", next)
	}
	return codeFor(err)
}

func codeFor(err error) int {
	if _, ok := errors.AsType[notRun](err); ok {
		return exitNotRun
	}
	if _, ok := errors.AsType[*flagfile.Error](err); ok {
		return exitUsage
	}
	switch {
	case unreachable(err):
		return exitUnavailable
	case errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	}
	if code, ok := exitReasons[hangar.ReasonOf(err)]; ok {
		return code
	}
	if code, ok := exitCodes[hangar.CodeOf(err)]; ok {
		return code
	}
	return exitFailed
}

func hintFor(err error) string {
	if next := hint.Of(err); next != "" {
		return next
	}
	if next, ok := hints[hangar.ReasonOf(err)]; ok {
		return next
	}
	if next := tlsHint(err); next != "" {
		return next
	}
	if unreachable(err) {
		return "is the daemon running? Start it with `hangar up`, or name another with --url or --context"
	}
	return hints[string(hangar.CodeOf(err))]
}

// tlsHint is the advice for a connection that TLS has refused, or empty.
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

// unreachable reports whether nobody answered at all.
func unreachable(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED)
}

// message is what a person reads. The platform's own messages stand alone; their
// causes are for logs.
func message(err error) string {
	if unreachable(err) {
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Addr != nil {
			return fmt.Sprintf("cannot reach the platform at %s: %v", dial.Addr, dial.Err)
		}
	}
	return strings.TrimSuffix(err.Error(), ".")
}
