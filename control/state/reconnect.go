package state

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// The pauses between attempts to connect to a member that cannot be reached.
const (
	minConnectPause = 100 * time.Millisecond
	maxConnectPause = 2 * time.Second
	// connectTimeout bounds an attempt. A cut network answers nothing, and TCP repeats what was lost later and later, so a
	// new attempt comes sooner than an old one.
	connectTimeout = 2 * time.Second
)

// reconnect has a client of etcd connect again soon after members were away. With the settings of gRPC it is silent for
// up to two minutes after it has failed for long, and waits 20 s for each attempt, so that a host which was cut off, and
// is not any more, would go on as if it were.
func reconnect() []grpc.DialOption {
	pauses := backoff.Config{BaseDelay: minConnectPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxConnectPause}
	return []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: connectTimeout})}
}
