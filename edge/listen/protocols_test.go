package listen

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// pgMessage is what a client begins with.
func pgMessage(number uint32, rest string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(pgHeader+len(rest)))
	return string(binary.BigEndian.AppendUint32(b, number)) + rest
}

func TestPostgresNegotiation(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.echo(t, 1, "pg:")
	w.app("db", []string{"v4 " + dedicated}, service("tcp", 1, port, "pg_tls"))
	newRig(t, w, nil)
	secure := &tls.Config{RootCAs: w.roots, ServerName: "db.apps.test"}
	direct := secure.Clone()
	direct.NextProtos = []string{protoPostgres}
	start := pgMessage(3<<16, "user\x00me\x00\x00")

	begin := func(say, want string) net.Conn {
		t.Helper()
		c := dial(t, "tcp", at(dedicated, port))
		_, err := io.WriteString(c, say)
		must(err)
		b := make([]byte, len(want))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
			t.Fatalf("%q is answered by %q, %v", say, b, err)
		}
		return c
	}
	if got := exchange(t, tls.Client(begin(pgMessage(pgTLS, ""), "S"), secure), start); got != "pg:"+start {
		t.Errorf("with TLS: %q", got)
	}
	c := begin(pgMessage(pgGSS, ""), "N")
	_, err := io.WriteString(c, pgMessage(pgTLS, ""))
	must(err)
	_, err = io.ReadFull(c, make([]byte, 1))
	must(err)
	if got := exchange(t, tls.Client(c, secure), start); got != "pg:"+start {
		t.Errorf("with TLS after GSSAPI: %q", got)
	}
	if got := exchange(t, tls.Client(begin("", ""), direct), start); got != "pg:"+start {
		t.Errorf("with TLS at once: %q", got)
	}
	if c := tls.Client(begin("", ""), secure); c.Handshake() == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("TLS without ALPN is taken")
		}
	}
	cancel := pgMessage(pgCancel, "pid.key!")
	if got := exchange(t, begin("", ""), cancel); got != "pg:"+cancel {
		t.Errorf("cancel: %q", got)
	}
	refused := exchange(t, begin("", ""), start)
	if !bytes.HasPrefix([]byte(refused), []byte("E\x00\x00\x00")) || !bytes.Contains([]byte(refused), []byte("C28000\x00Mthe connection has to be encrypted")) {
		t.Errorf("without TLS: %q", refused)
	}
	for _, bad := range []string{"GET / HTTP/1.1\r\n\r\n", pgMessage(pgTLS, "x"), pgMessage(pgGSS, "") + pgMessage(pgGSS, "") + pgMessage(pgGSS, "")} {
		c := dial(t, "tcp", at(dedicated, port))
		_, err := io.WriteString(c, bad)
		must(err)
		if b, err := io.ReadAll(c); err == nil {
			t.Errorf("%q is answered by %q", bad, b)
		}
	}
}

func FuzzPostgres(f *testing.F) {
	for _, s := range []string{pgMessage(pgTLS, ""), pgMessage(pgGSS, ""), pgMessage(pgCancel, "pid.key!"), pgMessage(3<<16, ""), "GET / HT"} {
		f.Add([]byte(s[:pgHeader]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pgHeader {
			return
		}
		wish, rest, err := parsePg([pgHeader]byte(b))
		if err == nil && (rest < 0 || rest > maxPgCancel || rest > 0 && wish != pgWantsCancel) {
			t.Errorf("%x is %d with %d more bytes", b[:pgHeader], wish, rest)
		}
	})
}

// udpEcho is a backend that returns datagrams with a greeting.
func (w *world) udpEcho(t *testing.T, port int, greeting string) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(err)
	w.mu.Lock()
	w.backends[port] = c.LocalAddr().String()
	w.mu.Unlock()
	done := make(chan struct{})
	t.Cleanup(func() {
		must(c.Close())
		<-done
	})
	go func() {
		defer close(done)
		b := make([]byte, maxDatagram)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(greeting), b[:n]...), from)
		}
	}()
}

// say sends a datagram until it is answered, and returns the answer.
func say(t *testing.T, c net.Conn, text string) string {
	t.Helper()
	b := make([]byte, maxDatagram)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		_, _ = io.WriteString(c, text) // there may be no listener yet
		must(c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
		if n, err := c.Read(b); err == nil {
			return string(b[:n])
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%q is not answered", text)
	return ""
}

func TestDatagrams(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.udpEcho(t, 1, "udp ")
	w.app("game", []string{"v4 " + dedicated, "v6 ::1", "shared_v4 127.0.0.1"}, service("udp", 1, port))
	r := newRig(t, w, func(o *Options) { o.Limits.ClientSessions = 3 })
	var clients []net.Conn
	for _, ip := range []string{dedicated, "::1", dedicated, dedicated} {
		c, err := net.Dial("udp", at(ip, port)) // takes answers from that address alone
		must(err)
		defer c.Close()
		clients = append(clients, c)
		for i := range 10 {
			text := fmt.Sprintf("datagram %d", i)
			if got := say(t, c, text); got != "udp "+text && i == 0 {
				t.Errorf("answered %q", got)
			}
		}
	}
	w.emptied(t, len(clients))
	refused, err := net.Dial("udp", at(dedicated, port))
	must(err)
	defer refused.Close()
	_, err = refused.Write([]byte("one too many"))
	must(err)
	must(refused.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
	if n, err := refused.Read(make([]byte, 100)); err == nil {
		t.Errorf("a client of too many is answered %d bytes", n)
	}
	w.logged(t, "game error [PR04] datagrams of a client are dropped")
	r.stop()
	w.emptied(t, 0)
}

func TestHTTP3(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	w.app("raw", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls"))
	r := newRig(t, w, func(o *Options) { o.HTTP3 = true })
	_, https := r.Addrs()
	if got, want := r.AltSvc(), fmt.Sprintf(`h3=":%d"; ma=86400`, https.Port()); got != want {
		t.Errorf("Alt-Svc is %s", got)
	}
	for name, served := range map[string]bool{"shop.apps.test": true, "raw.apps.test": false, "nobody.test": false} {
		transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: name}, QUICConfig: patient()}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+https.String()+"/", nil)
		must(err)
		request.Host = name
		answer, err := transport.RoundTrip(request)
		switch {
		case !served && err == nil && answer.StatusCode == http.StatusOK:
			t.Errorf("%s is served", name)
		case served && err != nil:
			t.Errorf("%s: %v", name, err)
		case served:
			var got seen
			must(json.NewDecoder(answer.Body).Decode(&got))
			if got.Name != "shop.apps.test" || !got.TLS || got.Port != 443 || got.ALPN != "h3" {
				t.Errorf("told %+v", got)
			}
		}
		must(transport.Close())
	}
}
