// Package etcdtest starts an etcd for tests of what uses one that others operate.
package etcdtest

import (
	"net/url"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Start starts an etcd of one member that serves clients on a port of loopback, until the test ends. It returns its
// endpoint, "http://127.0.0.1:PORT". Leases may be as short as a second.
func Start(tb testing.TB) string {
	tb.Helper()
	return "http://" + start(tb, config(tb)).Clients[0].Addr().String()
}

func config(tb testing.TB) *embed.Config {
	tb.Helper()
	c := embed.NewConfig()
	c.Dir = tb.TempDir()
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}, nil
	c.TickMs, c.ElectionMs = 10, 100
	c.UnsafeNoFsync = true
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return c
}
