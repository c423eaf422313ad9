package proxy_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
)

// block is the header of a GET.
func block(host, path string) []byte {
	var b bytes.Buffer
	encoder := hpack.NewEncoder(&b)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", path}, {":authority", host}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return b.Bytes()
}

// speak begins HTTP/2 on a connection, sends something and returns the types of the received
// frames, up to the first frame of a type or the end of the connection, which must not be caused by
// a fault of the client.
func speak(t *testing.T, c net.Conn, until http2.FrameType, send func(*http2.Framer)) (got []http2.FrameType) {
	t.Helper()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	_ = fr.WriteSettings()
	_ = fr.WriteSettingsAck()
	send(fr)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Error("it does not end")
			}
			return got
		}
		if f, ok := f.(*http2.GoAwayFrame); ok && f.ErrCode != http2.ErrCodeNo {
			t.Errorf("it ends for %v", f.ErrCode)
		}
		if got = append(got, f.Header().Type); f.Header().Type == until {
			return got
		}
	}
}

// theEnd is not a frame type.
const theEnd http2.FrameType = 0xff

// TestTimeoutsOfAServiceOverHTTP2: they apply from the beginning if TLS is for the App's name, or
// the address is the App's own. A client that waits for an answer is not disconnected.
func TestTimeoutsOfAServiceOverHTTP2(t *testing.T) {
	const seconds = 3 // for a client to begin its request, and until one is late that does not
	limit := uint32(seconds)
	w := newWorld(t)
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	backend := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- struct{}{}
			<-leave
		}
		_, _ = io.WriteString(rw, "ok")
	})
	w.machine("a1", "app", backend, func(p *hangar.ServicePort) { p.HTTP = &hangar.HTTPOptions{IdleTimeout: &limit} })
	w.machine("s1", "second", backend, func(p *hangar.ServicePort) { p.HTTP = &hangar.HTTPOptions{HeadersReadTimeout: &limit} })
	ips := map[string]string{"app": "127.0.0.1", "second": "127.0.0.2"}
	byAddress := func(app string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ips[app])}}).Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	byName := func(app string) net.Conn { return w.begin(app+".apps.test", "h2") }
	w.mu.Lock()
	w.entry = func(e *listen.Entry) {
		for app, ip := range ips {
			if e.TLS == nil && e.Remote.Addr().String() == ip {
				e.Route, _ = w.routes.App(hangar.AppID(app))
			}
		}
	}
	w.mu.Unlock()
	request := func(fr *http2.Framer, host, path string) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(host, path), EndHeaders: true, EndStream: true})
	}
	first := http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("second.apps.test", "/")[:1], EndStream: true}
	for name, open := range map[string]func(app string) net.Conn{"by name": byName, "by address": byAddress} {
		t.Run(name, func(t *testing.T) {
			slow := make(chan []http2.FrameType, 1)
			c := open("second")
			go func() {
				slow <- speak(t, c, http2.FrameData, func(fr *http2.Framer) { request(fr, "second.apps.test", "/slow") })
			}()
			<-entered
			var ended sync.WaitGroup
			for what, ask := range map[string]func(*http2.Framer){
				"nothing":   func(*http2.Framer) {},
				"a request": func(fr *http2.Framer) { request(fr, "app.apps.test", "/") },
			} {
				c := open("app")
				ended.Go(func() {
					if got := speak(t, c, theEnd, ask); !slices.Contains(got, http2.FrameGoAway) || slices.Contains(got, http2.FrameData) != (what == "a request") {
						t.Errorf("after %s there came %v", what, got)
					}
				})
			}
			for what, begin := range map[string]func(net.Conn, *http2.Framer){
				"a header without an end": func(_ net.Conn, fr *http2.Framer) { _ = fr.WriteHeaders(first) },
				"a header in two frames without an end": func(_ net.Conn, fr *http2.Framer) {
					_ = fr.WriteHeaders(first)
					_ = fr.WriteContinuation(1, false, block("second.apps.test", "/")[1:])
				},
				"a frame that is cut": func(c net.Conn, _ *http2.Framer) {
					_, _ = c.Write([]byte{0, 0, 10, byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders), 0, 0, 0, 1, 0x82})
				},
				"a frame that is hardly begun": func(c net.Conn, _ *http2.Framer) { _, _ = c.Write([]byte{0}) },
			} {
				start := time.Now()
				c := open("second")
				ended.Go(func() {
					speak(t, c, theEnd, func(fr *http2.Framer) { begin(c, fr) })
					if took := time.Since(start); took < (seconds-1)*time.Second {
						t.Errorf("%s is waited for for %v", what, took)
					}
				})
			}
			ended.Wait()
			leave <- struct{}{}
			if got := <-slow; !slices.Contains(got, http2.FrameData) {
				t.Errorf("after a slow request there came %v", got)
			}
		})
	}
}
