// Command hangar-metrics is the store of metrics of one daemon: VictoriaMetrics behind a
// listener that it inherits as descriptor 3. Package metrics/store starts it; it is not meant to
// be run by hand.
//
// It is a program of its own so that damaged data, which ends it, does not end the daemon, and so
// that no other process of the platform pays for the packages that it links.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/metrics/victoria"
)

// listenFD is the descriptor of the listener.
const listenFD = 3

// stopGrace bounds how long requests in flight delay the end.
const stopGrace = 5 * time.Second

func main() {
	// The reader of this process's output may end first: that must not keep it from writing its data
	// to the disk.
	signal.Ignore(unix.SIGPIPE)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hangar-metrics:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var c victoria.Config
	// VictoriaMetrics has flag.CommandLine for itself.
	flags := flag.NewFlagSet("hangar-metrics", flag.ContinueOnError)
	flags.StringVar(&c.Dir, "dir", "", "directory of the data")
	flags.DurationVar(&c.Retention, "retention", 0, "age at which samples are removed")
	flags.Int64Var(&c.MemoryBytes, "memory", 0, "bytes of memory that the process may use")
	flags.Int64Var(&c.MinFreeBytes, "min-free", 0, "free bytes of the disk below which writes are refused")
	flags.IntVar(&c.Queries, "queries", 0, "number of queries that run at the same time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	listener, err := net.FileListener(os.NewFile(listenFD, "listener"))
	if err != nil {
		return fmt.Errorf("inherited listener: %w", err)
	}
	defer listener.Close()
	if err := victoria.ParseFlags(c); err != nil {
		return err
	}
	store, err := victoria.Open(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(serve(ctx, listener, store.Handler()), store.Close())
}

// serve answers requests until ctx ends, and then finishes those in flight.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	err := finish.Do(ctx, stopGrace, func(ctx finish.Context) error { return server.Shutdown(ctx) })
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
