package ownhost

import (
	"io"
	"net"
	"testing"
)

// Serve sends every caller of l the caller's own address, until the test ends.
func Serve(tb testing.TB, l net.Listener) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().String())
			_ = c.Close()
		}
	}()
	tb.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}
