package proxy_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy"
)

// TestStreamsThatStall: a client over HTTP/2 that reads nothing of its answers, or sends nothing of
// its bodies, does not keep its requests in the Machine.
func TestStreamsThatStall(t *testing.T) {
	t.Parallel()
	const streams = 50
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, func(o *proxy.Options) { o.Limits.BodyTimeout = 300 * time.Millisecond })
		var change func(*hangar.ServicePort)
		if h2 {
			change = h2Backend
		}
		w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				_, _ = io.Copy(io.Discard, r.Body)
				return
			}
			for range 100 {
				if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}), change)
		for _, method := range []string{"GET", "POST"} {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, _ = io.WriteString(c, http2.ClientPreface)
			fr := http2.NewFramer(c, c)
			_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			var block bytes.Buffer
			encoder := hpack.NewEncoder(&block)
			for n := range streams {
				block.Reset()
				for _, f := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", "/"}, {":authority", "app.apps.test"}} {
					_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
				}
				_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: block.Bytes(), EndHeaders: true, EndStream: method == "GET"})
			}
			ended := 0
			for ended < streams {
				f, err := fr.ReadFrame()
				if err != nil {
					t.Fatalf("%s, h2 %t: %d streams have ended: %v", method, h2, ended, err)
				}
				switch f.(type) {
				case *http2.RSTStreamFrame:
					ended++
				case *http2.HeadersFrame:
					if method == "POST" {
						ended++ // it gets the error for being too slow
					}
				}
			}
			if !eventually(func() bool { return w.gate.inside() == 0 }) {
				t.Errorf("%s, h2 %t: %d requests still count", method, h2, w.gate.inside())
			}
		}
	}
}
