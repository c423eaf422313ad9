// Package guestinit holds the program that is PID 1 of every Machine.
//
// It promises to run one command as a given user, to reap orphaned processes, to
// hand signals on, and to end exactly as the command ended: with the same exit
// code, or by the same signal. It can give the command a terminal that lives in the
// Machine.
//
// The program is C without a library, a few kilobytes, committed as built from
// src/init.c, so that building hangar needs no C compiler; a test compares the two. See
// docs/adr/0003-guest-init.md for what it costs and saves.
//
// Everything here is constant and safe for concurrent use. The package does not put
// the program into a Machine; that is the work of a driver.
package guestinit

import "strconv"

//go:generate sh src/build.sh

// KeepTmp is a file that a driver may make in an empty /tmp of the Machine, to stop
// its engine from mounting something there; the program removes it.
const KeepTmp = ".hangar-keep"

// Exit codes of the program itself, for a command that never ran.
const (
	ExitFailed     = 125 // it could not change user or directory, or make the terminal
	ExitCannotExec = 126
	ExitNotFound   = 127
)

// Binary returns the program for this architecture, or nil when there is none.
func Binary() []byte { return program }

// Args returns the arguments, from Args[0] on, that make the program at path run
// command as uid and gid, with the supplementary groups, in dir.
func Args(path string, tty bool, uid, gid uint32, groups []uint32, dir string, command []string) []string {
	args := []string{path}
	if tty {
		args = append(args, "-t")
	}
	list := "-"
	for i, g := range groups {
		if i == 0 {
			list = ""
		} else {
			list += ","
		}
		list += strconv.FormatUint(uint64(g), 10)
	}
	if dir == "" {
		dir = "/"
	}
	args = append(args, strconv.FormatUint(uint64(uid), 10), strconv.FormatUint(uint64(gid), 10), list, dir)
	return append(args, command...)
}

// Command returns the command in arguments that Args made.
func Command(args []string) []string {
	const fixed = 5 // the program, user, group, groups, directory
	if len(args) > 1 && args[1] == "-t" {
		args = args[1:]
	}
	return args[min(fixed, len(args)):]
}
