// Package etcdtest starts an etcd for tests of programs that use an external one.
package etcdtest

import (
	"net/url"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/hangar-platform/hangar/internal/freeport"
)

// Start starts an etcd of one member that serves clients on a loopback port, until the test ends. It
// returns its endpoint, "http://127.0.0.1:PORT". Leases may be as short as a second.
func Start(tb testing.TB) string {
	tb.Helper()
	return "http://" + start(tb, config(tb, "http")).Clients[0].Addr().String()
}

// config is the configuration of a member that serves with a scheme. Its JSON gateway connects to the
// configured address, so the port cannot be 0.
func config(tb testing.TB, scheme string) *embed.Config {
	tb.Helper()
	address, err := freeport.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	c := embed.NewConfig()
	c.Dir = tb.TempDir()
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{{Scheme: scheme, Host: address}}, nil
	c.TickMs, c.ElectionMs = 10, 100
	c.UnsafeNoFsync = true
	c.BcryptCost = 4 // the least
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return c
}
