package fake

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// ExecMachine implements hangar.MachineExecer. It imitates these commands:
//
//	echo WORD…     writes the words to stdout
//	warn WORD…     writes the words to stderr
//	cat            copies stdin to stdout
//	exit CODE      ends with that code
//	sleep SECONDS  does nothing for a while
//	panic          panics, as a service with a fault would
//
// Any other ends with 127.
func (s *Service) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	s.mu.Lock()
	m, err := s.findIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.MayExec(req.Command, t) })
	if err == nil {
		_, _, err = m.ask(hangar.VerbExec)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return hangar.ExecResult{}, err
	case len(req.Command) == 0 || req.Command[0] == "":
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid command: is empty")
	}
	run, cancel := ctx, context.CancelFunc(func() {})
	if req.Timeout > 0 {
		run, cancel = context.WithTimeout(ctx, req.Timeout)
	}
	defer cancel()
	code, err := imitate(run, req, streams)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeTimeout, "", "the command did not end within %s", req.Timeout)
	}
	return hangar.ExecResult{ExitCode: code}, err
}

func imitate(ctx context.Context, req hangar.ExecRequest, streams hangar.ExecStreams) (int, error) {
	stdout, stderr := orDiscard(streams.Stdout), orDiscard(streams.Stderr)
	name, args := req.Command[0], req.Command[1:]
	number := 0
	if len(args) > 0 {
		number, _ = strconv.Atoi(args[0])
	}
	var err error
	switch name {
	case "echo":
		_, err = fmt.Fprintln(stdout, strings.Join(args, " "))
	case "warn":
		_, err = fmt.Fprintln(stderr, strings.Join(args, " "))
	case "cat":
		if streams.Stdin == nil {
			return 0, nil
		}
		copied := make(chan error, 1)
		go func() {
			_, err := io.Copy(stdout, bufio.NewReader(streams.Stdin))
			copied <- err
		}()
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case err = <-copied:
		}
	case "exit":
		return number, nil
	case "sleep":
		err = pause.For(ctx, time.Duration(number)*time.Second)
	case "panic":
		panic("fake: told to")
	default:
		_, err = fmt.Fprintf(stderr, "%s: command not found\n", name)
		return 127, err
	}
	return 0, err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
