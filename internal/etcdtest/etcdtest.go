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
	c := embed.NewConfig()
	c.Dir = tb.TempDir()
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}, nil
	c.TickMs, c.ElectionMs = 10, 100
	c.UnsafeNoFsync = true
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return "http://" + e.Clients[0].Addr().String()
}
