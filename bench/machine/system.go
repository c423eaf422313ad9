package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/internal/pause"
)

// The systems.
const (
	nameHangar = "hangar"
	nameRunsc  = "runsc"
	namePodman = "podman"
)

// system is one way to run the program.
type system interface {
	Name() string
	// Suspends reports whether instances can be suspended.
	Suspends() bool
	// Restarts reports whether instances can be stopped and started again.
	Restarts() bool
	// Boot makes an instance. slot is a number that no other instance has
	// meanwhile; memoryMB is what the program needs.
	Boot(ctx context.Context, slot, memoryMB int) (instance, boot, error)
}

// boot is how long it took from the wish, until each of these.
type boot struct {
	Answered time.Duration // the wish was recorded; 0 where that is no step of its own
	Started  time.Duration // the system says that the program runs
	Replied  time.Duration // the first reply was complete
}

// instance is one running program.
type instance interface {
	// Address is where the program serves, host:port.
	Address() string
	// Exec runs a program that ends at once.
	Exec(ctx context.Context) error
	// Stop ends the program.
	Stop(ctx context.Context) error
	// Start runs it again, and returns the time to the first reply.
	Start(ctx context.Context) (time.Duration, error)
	// Suspend returns when the memory is on disk and no process has it any more.
	Suspend(ctx context.Context) error
	// Resume returns the time to the first reply.
	Resume(ctx context.Context) (time.Duration, error)
	// Destroy removes all of it.
	Destroy(ctx context.Context) error
}

const (
	// patience bounds everything that is measured.
	patience = 2 * time.Minute
	// firstDial is how long a connection may take, right at the beginning. A
	// sandbox that boots drops what asks for one, and the kernel asks again after a
	// second only: too late to measure anything.
	firstDial  = 5 * time.Millisecond
	dialPause  = time.Millisecond
	replyLimit = 30 * time.Second
)

// dialTimeout grows with the time that has passed, so that a crowded server is given
// the time to answer; it adds some two percent to what is measured.
func dialTimeout(since time.Duration) time.Duration { return firstDial + since/50 }

// firstReply asks until there is a complete reply, and returns how long that took
// since began.
func firstReply(ctx context.Context, began time.Time, address string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for {
		if _, last = get(ctx, address, "/", dialTimeout(time.Since(began))); last == nil {
			return time.Since(began), nil
		}
		if err := pause.For(ctx, dialPause); err != nil {
			return 0, fmt.Errorf("no reply of %s: %w: %w", address, err, last)
		}
	}
}

// get makes one request on a connection of its own. There is no HTTP client between
// the clock and the wire.
func get(ctx context.Context, address, path string, dial time.Duration) (string, error) {
	d := net.Dialer{Timeout: dial, FallbackDelay: -1}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(replyLimit)); err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	head, body, ok := strings.Cut(string(raw), "\r\n\r\n")
	if !ok || !strings.Contains(strings.SplitN(head, "\r\n", 2)[0], " 200 ") {
		return "", fmt.Errorf("bad reply %q", raw)
	}
	return body, nil
}

// untilReply runs f, which makes the program run, while it asks for the first reply.
// It returns when both have happened.
func untilReply(ctx context.Context, began time.Time, address string, f func(context.Context) error) (done, replied time.Duration, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := f(ctx)
		done = time.Since(began)
		return err
	})
	group.Go(func() (err error) {
		replied, err = firstReply(ctx, began, address)
		return err
	})
	err = group.Wait()
	return done, replied, err
}
