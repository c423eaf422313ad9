package proxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
)

func h2Backend(p *hangar.ServicePort) {
	yes := true
	p.HTTP = &hangar.HTTPOptions{H2Backend: &yes}
}

// echo is a stream that returns what it gets, and ends with the status that the client asks for.
func echo(_ any, s grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	s.SetTrailer(metadata.Pairs("x-trailer", "the end", "x-client", strings.Join(md.Get("fly-client-ip"), ",")))
	for {
		var m wrapperspb.StringValue
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			return status.Error(codes.DataLoss, "it is over")
		} else if err != nil {
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

func TestGRPC(t *testing.T) {
	w := newWorld(t)
	l := w.listen()
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Echo", Handler: echo, ServerStreams: true, ClientStreams: true}},
	}, nil)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	w.machine("a1", "app", l.Addr().String(), h2Backend)

	conn, err := grpc.NewClient("passthrough:///app.apps.test:443",
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, ServerName: "app.apps.test"})),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", w.tlsAddr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 20 {
		res, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatalf("unary: %v %v", res, err)
		}
	}
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("an answer of trailers alone is %v", err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Echo")
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 50 {
				sent := wrapperspb.String(fmt.Sprint(i, strings.Repeat("x", i*100)))
				var got wrapperspb.StringValue
				if err := s.SendMsg(sent); err != nil {
					t.Error(err)
					return
				}
				if err := s.RecvMsg(&got); err != nil || got.Value != sent.Value {
					t.Errorf("got %.20q: %v", got.Value, err)
					return
				}
			}
			_ = s.CloseSend()
			if err := s.RecvMsg(&wrapperspb.StringValue{}); status.Code(err) != codes.DataLoss || s.Trailer()["x-trailer"][0] != "the end" || s.Trailer()["x-client"][0] != "127.0.0.1" {
				t.Errorf("it ended with %v and %v", err, s.Trailer())
			}
		})
	}
	all.Wait()
	if n := w.proxy.Stats().Dials; n > 2 {
		t.Errorf("%d connections were made", n)
	}
	t.Run("cancelled", func(t *testing.T) {
		brief, cancel := context.WithCancel(ctx)
		s, err := healthpb.NewHealthClient(conn).Watch(brief, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if !eventually(func() bool { return w.gate.inside() == 0 }) {
			t.Error("the Machine is still asked")
		}
	})
}

func eventually(ok func() bool) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

func TestHTTP2Backend(t *testing.T) {
	w := newWorld(t)
	var fail atomic.Bool
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if fail.CompareAndSwap(true, false) {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(rw, "%s %s %s %q %d %v", r.Proto, r.Host, r.URL.RequestURI(), r.UserAgent(), len(body), err)
	})
	w.machine("a1", "app", addr, h2Backend)
	for _, c := range []*http.Client{w.client(), w.clientOf(true)} {
		got := w.do(c, w.request("PUT", "http://app.apps.test/a%2Fb?x", strings.NewReader(strings.Repeat("x", 3<<20)), "User-Agent", ""))
		if want := `HTTP/2.0 app.apps.test /a%2Fb?x "" 3145728 <nil>`; got.body != want {
			t.Errorf("got %d %q, want %q", got.StatusCode, got.body, want)
		}
	}
	fail.Store(true)
	if got := w.get("http://app.apps.test/", "User-Agent", "me"); got.body != `HTTP/2.0 app.apps.test / "me" 0 <nil>` {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
	fail.Store(true)
	if got := w.do(w.client(), w.request("POST", "http://app.apps.test/", strings.NewReader("x"))); got.StatusCode != http.StatusBadGateway {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
	t.Run("many at once", func(t *testing.T) {
		var all sync.WaitGroup
		c := w.clientOf(true)
		for range 400 {
			all.Go(func() {
				if got := w.do(c, w.request("GET", "http://app.apps.test/", nil)); got.StatusCode != http.StatusOK {
					t.Errorf("got %d %q", got.StatusCode, got.body)
				}
			})
		}
		all.Wait()
	})
	t.Run("not spoken", func(t *testing.T) {
		addr := w.scripted(func(_ int, c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		})
		w.machine("b1", "second", addr, h2Backend)
		wantCode(t, w.do(w.client(), w.request("POST", "http://second.apps.test/", strings.NewReader("x"))), 502, hangar.EdgeHandshake)
	})
}

// TestH2spec runs a third-party conformance suite, all cases.
func TestH2spec(t *testing.T) {
	t.Parallel()
	tool, err := filepath.Abs("../../.tools/h2spec-v2.2.1")
	if err == nil {
		_, err = os.Stat(tool)
	}
	if err != nil {
		t.Skip("h2spec is not there: make h2spec")
	}
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		io.WriteString(rw, strings.Repeat("answer ", 100))
	}), nil)
	route, _ := w.routes.App("app")
	w.mu.Lock()
	w.entry = func(e *listen.Entry) { e.Route = route }
	w.mu.Unlock()
	_, port, _ := net.SplitHostPort(w.tlsAddr)
	failures, unknown := h2spec(t, tool, port, "2")
	if len(unknown) > 0 { // a busy machine may have been too slow
		failures, unknown = h2spec(t, tool, port, "20")
	}
	for _, name := range unknown {
		t.Errorf("%s\n%s", name, failures)
	}
}

// h2spec runs all cases with some seconds for each answer, and returns the output of the failed
// ones, and the names of unexpected failures.
func h2spec(t *testing.T, tool, port, seconds string) (failures string, unknown []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, tool, "-t", "-k", "-h", "127.0.0.1", "-p", port, "-o", seconds).CombinedOutput()
	_, failures, _ = strings.Cut(string(out), "Failures:")
	summary := regexp.MustCompile(`\d+ tests, \d+ passed, \d+ skipped, \d+ failed`).FindString(failures + string(out))
	if summary == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(summary)
	for _, failed := range regexp.MustCompile(`× \d+: (.*)`).FindAllStringSubmatch(failures, -1) {
		if why, known := deviations[failed[1]]; !known {
			unknown = append(unknown, failed[1])
		} else {
			t.Logf("%s: %s", failed[1], why)
		}
	}
	return failures, unknown
}

// deviations are where the server of golang.org/x/net/http2 differs from h2spec, and why that is
// harmless.
var deviations = map[string]string{
	`Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE`:                                        "it hangs up on a client that gives a setting twice in a frame",
	`Sends a HEADERS frame that contains the connection-specific header field`:                     "it answers 400, as RFC 9113, section 8.1.1, allows",
	`Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`: "it answers 400, as RFC 9113, section 8.1.1, allows",
}

// TestNotForHTTP1: HTTP/2 requests that HTTP/1 cannot express are refused, and no Machine gets one.
func TestNotForHTTP1(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(http.ResponseWriter, *http.Request) { t.Error("it was passed on") }), nil)
	for _, pseudo := range [][2]string{{":method", "G ET"}, {":authority", "app.apps.test:8 0"}} {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "app.apps.test"}, {":path", "/"}} {
			if f[0] == pseudo[0] {
				f = pseudo
			}
			_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		_, _ = io.WriteString(c, http2.ClientPreface)
		fr := http2.NewFramer(c, c)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = fr.WriteSettings()
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		for answered := false; !answered; {
			f, err := fr.ReadFrame()
			if err != nil {
				t.Fatalf("%v: %v", pseudo, err)
			}
			switch f := f.(type) {
			case *http2.MetaHeadersFrame:
				if got := f.PseudoValue("status"); got[0] != '4' {
					t.Errorf("%v: got %s", pseudo, got)
				}
				answered = true
			case *http2.RSTStreamFrame, *http2.GoAwayFrame:
				answered = true
			}
		}
	}
}
