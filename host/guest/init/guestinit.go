// Package guestinit holds the program that is PID 1 of every Machine.
//
// It runs one command as a given user, or several, reaps orphaned processes, forwards signals, and
// ends exactly as the command ended: with the same exit code, or by the same signal. It can give
// one command a terminal that lives in the Machine. Of several, the first that ends takes the
// others with it.
//
// The program is C without a library, a few kilobytes, committed as built from src/init.c, so
// that building hangar needs no C compiler; a test compares the two. See
// docs/adr/0003-guest-init.md for its costs and savings.
//
// Everything here is constant and safe for concurrent use. The package does not put
// the program into a Machine; that is the work of a driver.
package guestinit

import (
	"strconv"
	"strings"
	"time"
)

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
	return append(appendIdentity(args, uid, gid, groups, dir), command...)
}

func appendIdentity(args []string, uid, gid uint32, groups []uint32, dir string) []string {
	list := make([]string, 0, len(groups))
	for _, g := range groups {
		list = append(list, formatID(g))
	}
	if len(list) == 0 {
		list = append(list, "-")
	}
	if dir == "" {
		dir = "/"
	}
	return append(args, formatID(uid), formatID(gid), strings.Join(list, ","), dir)
}

func formatID(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

// MaxCommands is how many commands SeveralArgs takes.
const MaxCommands = 64

// ManyCommand is one of several commands.
type ManyCommand struct {
	Args     []string
	Env      []string // "NAME=value"
	Dir      string   // empty: /
	UID, GID uint32
	Groups   []uint32
}

// SeveralArgs returns the arguments that make the program at path run the commands as processes
// 2, 3 and so on, and the environment that it then needs. When one of them ends, the others are
// sent the signal, unless the program itself has received and forwarded one that ends processes;
// after the grace, in whole milliseconds, they are killed. The program ends as the first of them
// did.
func SeveralArgs(path string, signal int, grace time.Duration, commands []ManyCommand) (args, env []string) {
	args = []string{path, "-m", strconv.Itoa(signal), strconv.FormatInt(grace.Milliseconds(), 10)}
	for _, c := range commands {
		args = appendIdentity(args, c.UID, c.GID, c.Groups, c.Dir)
		args = append(args, strconv.Itoa(len(c.Args)))
		args = append(args, c.Args...)
	}
	return args, severalEnv(commands)
}

// severalEnv names what is common to all commands once.
func severalEnv(commands []ManyCommand) []string {
	times := make(map[string]int)
	for _, c := range commands {
		for _, v := range c.Env {
			times[v]++
		}
	}
	var env []string
	for i, c := range commands {
		for _, v := range c.Env {
			switch {
			case times[v] < len(commands):
				env = append(env, strconv.Itoa(i)+":"+v)
			case i == 0:
				env = append(env, ":"+v)
			}
		}
	}
	return env
}

// Command returns the command in arguments that Args made, and nil for those of
// SeveralArgs.
func Command(args []string) []string {
	const fixed = 5 // the program, user, group, groups, directory
	if Count(args) > 1 {
		return nil
	}
	if len(args) > 1 && args[1] == "-t" {
		args = args[1:]
	}
	return args[min(fixed, len(args)):]
}

// Count returns the number of commands in arguments that Args or SeveralArgs made.
func Count(args []string) int {
	const head, fixed = 4, 5 // the program, "-m", signal, grace; user, group, groups, directory, number
	if len(args) < 2 || args[1] != "-m" {
		return 1
	}
	n := 0
	for args = args[min(head, len(args)):]; len(args) > fixed; n++ {
		words, err := strconv.Atoi(args[fixed-1])
		if err != nil || words < 1 || words > len(args)-fixed {
			return n
		}
		args = args[fixed+words:]
	}
	return n
}
