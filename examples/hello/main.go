// Command hello is the smallest thing worth hosting: a web server that counts its
// requests in memory, to show whether its memory survives.
//
// It listens on port 8080, or on PORT, and answers every path with one line. With DATA,
// a directory on a volume, /notes keeps what is posted to it, a line each: when it has
// answered, the line is on the disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// run serves until it is asked to stop.
func run() error {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", counter(host, time.Now()))
	if dir := os.Getenv("DATA"); dir != "" {
		mux.Handle("/notes", &notes{path: filepath.Join(dir, "notes")})
	}
	server := &http.Server{Addr: ":" + port, Handler: mux, ReadHeaderTimeout: 5 * time.Second}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	drained := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		drained <- server.Shutdown(limit)
	})
	fmt.Println("hello listens on port", port)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}

// counter answers with how often it was asked since it was started.
func counter(host string, started time.Time) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from %s: request %d since %s\n", host, requests.Add(1), started.UTC().Format(time.RFC3339))
	})
}
