// Command hello is the smallest thing worth hosting: a web server that counts its
// requests in memory, which shows whether its memory survives.
//
// It listens on PORT, by default 8080, and answers every path with one line. If DATA is
// a directory on a volume, each POST to /notes appends a line to a file there, which is
// synced to disk before the response.
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

// run serves until SIGINT or SIGTERM.
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

// counter answers with the number of requests since the start.
func counter(host string, started time.Time) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from %s: request %d since %s\n", host, requests.Add(1), started.UTC().Format(time.RFC3339))
	})
}
