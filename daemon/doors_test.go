package daemon

import (
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
)

// TestTLSBeyondThisServer: commands on the server still reach the API without TLS, and connections from
// elsewhere need it.
func TestTLSBeyondThisServer(t *testing.T) {
	t.Parallel()
	pair := func(local, remote string) net.Conn {
		return addressed{local: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local)), remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))}
	}
	for _, c := range []struct {
		local, remote string
		plain         bool
	}{
		{"127.0.0.1:4280", "127.0.0.1:5000", true},
		{"127.0.0.1:4280", "127.0.0.2:5000", true},
		{"[::1]:4280", "[::1]:5000", true},
		{"10.0.0.5:4280", "10.0.0.5:5000", true},
		{"[::ffff:10.0.0.5]:4280", "10.0.0.5:5000", true},
		{"10.0.0.5:4280", "10.0.0.6:5000", false},
		{"[fdaa::3]:4280", "[fdaa:0:1::2]:5000", false},
		{"127.0.0.1:4280", "10.0.0.5:5000", false},
	} {
		got, err := tlsBeyond{one{pair(c.local, c.remote)}, &tls.Config{}}.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, secure := got.(*tls.Conn); secure == c.plain {
			t.Errorf("from %s to %s: TLS is %t", c.remote, c.local, secure)
		}
	}
}

// addressed is a connection with nothing but addresses.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr { return a.local }

func (a addressed) RemoteAddr() net.Addr { return a.remote }

// one is a listener with one connection.
type one struct{ conn net.Conn }

func (o one) Accept() (net.Conn, error) { return o.conn, nil }
func (one) Close() error                { return nil }
func (one) Addr() net.Addr              { return &net.TCPAddr{} }
