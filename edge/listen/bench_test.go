package listen

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkPassThrough sends 1 MiB at a time to a Machine that reads it: directly, through
// the edge, and through HAProxy if that is there.
func BenchmarkPassThrough(b *testing.B) {
	w := newWorld()
	w.listen(b, 1, func(conn net.Conn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 1<<20))
	})
	port := freePort(b)
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	newRig(b, w, nil)
	targets := map[string]string{"direct": w.backend(1), "edge": at(dedicated, port)}
	if haproxy, err := exec.LookPath("haproxy"); err == nil {
		targets["haproxy"] = startHAProxy(b, haproxy, w.backend(1))
	}
	for _, name := range []string{"direct", "edge", "haproxy"} {
		address, ok := targets[name]
		if !ok {
			continue
		}
		b.Run(name, func(b *testing.B) {
			c := dial(b, "tcp", address)
			must(c.SetDeadline(time.Time{}))
			piece := make([]byte, 1<<20)
			b.SetBytes(int64(len(piece)))
			for b.Loop() {
				if _, err := c.Write(piece); err != nil {
					b.Fatal(err)
				}
			}
			must(c.(*net.TCPConn).CloseWrite())
			_, _ = io.Copy(io.Discard, c)
		})
	}
}

// startHAProxy starts one that passes connections on, and returns its address.
func startHAProxy(b *testing.B, haproxy, backend string) string {
	b.Helper()
	address := at("127.0.0.1", freePort(b))
	config := filepath.Join(b.TempDir(), "haproxy.cfg")
	must(os.WriteFile(config, fmt.Appendf(nil, `global
	maxconn 1000
defaults
	mode tcp
	timeout connect 5s
	timeout client 60s
	timeout server 60s
	option splice-auto
listen shop
	bind %s
	server one %s
`, address, backend), 0o600))
	cmd := exec.CommandContext(b.Context(), haproxy, "-f", config, "-db")
	must(cmd.Start())
	b.Cleanup(func() {
		must(cmd.Process.Kill())
		_ = cmd.Wait()
	})
	must(dial(b, "tcp", address).Close())
	return address
}

// BenchmarkHandshake begins TLS 1.3 with an ECDSA certificate, client included.
func BenchmarkHandshake(b *testing.B) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	r := newRig(b, w, func(o *Options) { o.Limits.ClientRate, o.Limits.NameRate = -1, -1 })
	_, https := r.Addrs()
	for _, kind := range []string{"full", "resumed"} {
		b.Run(kind, func(b *testing.B) {
			config := &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test"}
			if kind == "resumed" {
				config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			}
			for b.Loop() {
				c, err := net.Dial("tcp", https.String())
				must(err)
				secure := tls.Client(c, config)
				must(secure.HandshakeContext(b.Context()))
				if kind == "resumed" && !secure.ConnectionState().DidResume {
					_, _ = io.WriteString(secure, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
					_, _ = secure.Read(make([]byte, 1000)) // the ticket comes first
				}
				must(c.Close())
			}
		})
	}
}

// BenchmarkIdle reports what a connection costs that says nothing.
func BenchmarkIdle(b *testing.B) {
	w := newWorld()
	w.listen(b, 1, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	raw, secure := freePort(b), freePort(b)
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, raw), service("tcp", 1, secure, "tls"))
	r := newRig(b, w, func(o *Options) {
		o.Limits.ClientConns, o.Limits.ClientRate, o.Limits.NameRate, o.Limits.FirstByte = -1, -1, -1, time.Hour
	})
	const count = 1000
	plain, _ := r.Addrs()
	for name, open := range map[string]func() net.Conn{
		"http before a byte": func() net.Conn { return dial(b, "tcp", plain.String()) },
		"raw":                func() net.Conn { return dial(b, "tcp", at(dedicated, raw)) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before, files := memory(), openFiles()
				all := make([]net.Conn, count)
				for i := range all {
					all[i] = open()
				}
				time.Sleep(100 * time.Millisecond)
				b.ReportMetric(float64(memory()-before)/count, "B/conn")
				b.ReportMetric(float64(openFiles()-files)/count, "files/conn")
				for _, c := range all {
					must(c.Close())
				}
			}
		})
	}
}

// memory is what the heap and the stacks take, clients' included.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func openFiles() int {
	names, err := os.ReadDir("/proc/self/fd")
	must(err)
	return len(names)
}

// Bytes between a client and a Machine do not come into this process.
func TestKernelPassesBytesOn(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	received := make(chan int64, 1)
	w.listen(t, 1, func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn)
		received <- n
	})
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	newRig(t, w, nil)
	c := dial(t, "tcp", at(dedicated, port))
	const size = 64 << 20
	before := readBytes(t)
	for sent := 0; sent < size; sent += 1 << 20 {
		_, err := c.Write(make([]byte, 1<<20))
		must(err)
	}
	must(c.(*net.TCPConn).CloseWrite())
	if n := <-received; n != size {
		t.Errorf("%d bytes arrived", n)
	}
	// The Machine of this test is in this process, and reads them once.
	if n := readBytes(t) - before; n > size*3/2 {
		t.Errorf("%d bytes were read for %d", n, size)
	}
}

// readBytes is how many bytes this process has read by system calls.
func readBytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := strings.Cut(string(text), "rchar: ")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(line, 10, 64)
	must(err)
	return n
}
