package state

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Pauses between attempts to connect to an unreachable member.
const (
	minConnectPause = 100 * time.Millisecond
	maxConnectPause = 2 * time.Second
	// connectTimeout bounds an attempt. A cut network answers nothing, and TCP retransmits with
	// growing delays, so a new attempt succeeds sooner than an old one.
	connectTimeout = 2 * time.Second
)

// connect returns a client of members of etcd. It asks a connection that was silent for keepAlive for a sign of life, and
// gives it up when none comes within patience.
func connect(endpoints []string, config *tls.Config, patience time.Duration, log *slog.Logger) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: config, DialTimeout: dialTimeout, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: patience,
		MaxCallSendMsgSize: maxRequestBytes, DialOptions: reconnect(), Logger: zap.New(slogCore{log: log}),
	})
	if err != nil {
		return nil, fmt.Errorf("state: connect to etcd: %w", err)
	}
	return client, nil
}

// reconnect makes a client of etcd reconnect soon after members were unreachable. With the defaults
// of gRPC it pauses for up to two minutes after long failures, and waits 20 s for each attempt, so
// a host that was cut off would behave as if it still were.
func reconnect() []grpc.DialOption {
	pauses := backoff.Config{BaseDelay: minConnectPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxConnectPause}
	return []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: connectTimeout})}
}
