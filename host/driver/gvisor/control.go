package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/pause"
)

// commandPID is the process id of the command in every sandbox: the guest's init, which has initPID,
// starts it first. Other commands have the ids that follow.
const (
	initPID    = 1
	commandPID = 2
)

// Signal implements driver.Driver. The signal goes to the command itself, so that the guest's init
// does not interpret it. With several commands, it goes to the init, which forwards it and so knows
// that they were asked to stop; signals that the init cannot forward go to the commands.
func (d *Driver) Signal(ctx context.Context, h driver.Handle, sig hangar.Signal) error {
	s, err := d.running(h)
	if err != nil {
		return err
	}
	return s.signal(ctx, sig)
}

// For a short time at both ends of the sandbox's life the command does not exist: before the guest's
// init has started it, and before the init has exited after it.
const (
	signalRetry    = time.Millisecond
	signalPatience = 2 * time.Second
)

func (s *sandbox) signal(ctx context.Context, sig hangar.Signal) error {
	for began := time.Now(); ; {
		err := s.deliver(ctx, sig)
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "no such process") || time.Since(began) > signalPatience {
			if s.ended() {
				return s.goneError()
			}
			return err
		}
		select {
		case <-s.done:
			return s.goneError()
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(signalRetry):
		}
	}
}

// deliver sends the signal to the running commands.
func (s *sandbox) deliver(ctx context.Context, sig hangar.Signal) error {
	if s.Others == 0 {
		return s.signalProcess(ctx, commandPID, sig)
	}
	direct := hangar.Signal(0) // signal 0 only checks that the process exists
	if slices.Contains([]unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD}, unix.Signal(sig)) {
		direct = sig
	}
	var first error
	delivered := false
	for i := range 1 + s.Others {
		err := s.signalProcess(ctx, int32(commandPID+i), direct)
		delivered = delivered || err == nil
		first = cmp.Or(first, err)
	}
	switch {
	case !delivered:
		return first
	case direct != 0:
		return nil
	default: // a command exists, so the init runs and handles signals
		return s.signalProcess(ctx, initPID, sig)
	}
}

func (s *sandbox) signalProcess(ctx context.Context, pid int32, sig hangar.Signal) error {
	return s.call(ctx, methodSignal, &signalArgs{CID: string(s.ID), Signo: int32(sig), PID: pid, Mode: toProcess}, nil)
}

func (s *sandbox) goneError() error {
	return fmt.Errorf("machine %s has ended: %w", s.ID, driver.ErrNotFound)
}

// stopPause is the time between attempts to deliver a stop signal.
const stopPause = 100 * time.Millisecond

// requestStop repeats the stop signal until it is delivered, the sandbox has ended, or ctx ends.
func (d *Driver) requestStop(ctx context.Context, s *sandbox, sig hangar.Signal) {
	err := s.signal(ctx, sig)
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		d.log.LogAttrs(ctx, slog.LevelWarn, "stop signal not delivered",
			slog.String("machine", string(s.ID)), slog.Any("error", err))
	}
	for err != nil && !errors.Is(err, driver.ErrNotFound) && pause.For(ctx, stopPause) == nil {
		err = s.deliver(ctx, sig)
	}
}

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, h driver.Handle, sig hangar.Signal, grace time.Duration) error {
	s, err := d.lookup(h)
	if err != nil {
		return err
	}
	if s.ended() {
		return nil
	}
	if grace > 0 && sig != hangar.Signal(unix.SIGKILL) {
		polite, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		d.requestStop(polite, s, sig)
		select {
		case <-s.done:
			return nil
		case <-polite.Done():
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return d.end(ctx, s)
}
