// Package bundle is the protocol of the gVisor driver and its engine process in the directory of a
// Machine: the names of the files, how a sandbox ended, what a snapshot consists of.
//
// A snapshot directory is complete or absent: Seal checks it and renames it in one step, in the
// engine process, so that the death of the daemon does not matter. Verify detects a file that is
// missing, truncated or damaged. It does not protect against a process that may write to the
// directory.
//
// Functions may be called from many goroutines, for different directories.
//
// It knows neither gVisor nor Machines, so that both programs can link it cheaply.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Files in the directory of a Machine, which is also its OCI bundle.
const (
	ConfigFile   = "config.json" // OCI runtime configuration: a link, see gvisor.Options.Root
	TotalMemFile = "totalmem"    // bytes that the guest sees, decimal
	ExitFile     = "exit"        // written by the sentry when it ends; empty until then
	SuspendFile  = "suspend"     // exists while a snapshot is written; its writer holds the lock
	ResultFile   = "result"      // of the start or resume that made the sandbox, once it has succeeded
	PreparedFile = "result.tmp"  // the same until then
)

// ResultFD is the descriptor on which an engine command writes its Result.
const ResultFD = 3

// An engine that is started as `runsc await` reads its command from the socket AwaitFD, of type
// SOCK_SEQPACKET. The command is one message of at most MaxCommand bytes: the arguments, separated by
// NUL. With it come the descriptor of the result and, unless the command has no output, that of the
// guest's output. The engine answers with one byte. From then on its working directory is the one that
// the command names, which distinguishes it from an engine that still waits. It ends when the socket
// is closed before a command arrives.
const (
	AwaitArg   = "await"
	AwaitFD    = 3
	MaxCommand = 32 << 10
)

// Result is the answer of an engine command.
type Result struct {
	SentryPID     int    `json:"sentry_pid,omitempty"`
	GoferPID      int    `json:"gofer_pid,omitempty"`
	ControlSocket string `json:"control_socket,omitempty"`
	HostBoot      string `json:"host_boot,omitempty"` // id of the host's boot in which the processes started
	Error         string `json:"error,omitempty"`
	// Incomplete: why a driver that is started later may not find the sandbox, or not suspend it, though it runs.
	Incomplete string `json:"incomplete,omitempty"`
	// Unusable: the resume failed because of the snapshot.
	Unusable bool `json:"unusable,omitempty"`
	// NotBegun: the resume failed before it used the snapshot.
	NotBegun bool `json:"not_begun,omitempty"`
}

// PrepareResult writes the result of a start or resume in dir before it begins, because the disk may be full when it
// has succeeded.
func PrepareResult(dir string, r Result) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, PreparedFile), raw, 0o600)
}

// RecordResult records that the start or resume in dir has succeeded, in one step.
func RecordResult(dir string) error {
	return os.Rename(filepath.Join(dir, PreparedFile), filepath.Join(dir, ResultFile))
}

// ReadResult returns what PrepareResult wrote. The error is fs.ErrNotExist when no start or resume has
// succeeded.
func ReadResult(dir string) (Result, error) {
	path := filepath.Join(dir, ResultFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return Result{}, err
	}
	var r Result
	if err := json.Unmarshal(raw, &r); err != nil {
		return Result{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return r, nil
}

// ExitRecord is what the sentry writes when it ends.
type ExitRecord struct {
	WaitStatus uint32    `json:"ws"` // of the guest's main process, as wait(2) returns it
	At         time.Time `json:"at"`
}

// ReadExit returns the record of the sandbox that last ran in dir. The error is fs.ErrNotExist when
// the sentry still runs or was killed.
func ReadExit(dir string) (ExitRecord, error) {
	path := filepath.Join(dir, ExitFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return ExitRecord{}, err
	}
	if len(raw) == 0 {
		return ExitRecord{}, fmt.Errorf("%s is empty: %w", path, os.ErrNotExist)
	}
	var r ExitRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return ExitRecord{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return r, nil
}
