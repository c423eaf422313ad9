package main

import (
	"context"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/client"
)

// readyWithin bounds how long a daemon may take to serve.
const readyWithin = time.Minute

func startDaemon(ctx context.Context, program string) (*harness.Daemon, error) {
	return harness.Start(ctx, harness.Options{Program: program, Ready: readyWithin})
}

// newClient returns a client with the admin token.
func newClient(d *harness.Daemon) (*client.Client, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	// A crowd keeps as many connections as it has instances, as clients of their
	// own would.
	transport := &http.Transport{MaxIdleConnsPerHost: crowdMost, IdleConnTimeout: time.Minute}
	return client.New("http://"+d.Addr, token, client.WithHTTPClient(&http.Client{Transport: transport})), nil
}
