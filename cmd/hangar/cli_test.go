package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"hangar": func() {
			c := newCLI()
			c.settling = time.Millisecond // most scripts have Machines that stay
			os.Exit(c.run(context.Background(), os.Args[1:]))
		},
		"settling-hangar": func() {
			c := newCLI()
			c.settling = time.Minute // a script that needs it to the end waits in vain
			os.Exit(c.run(context.Background(), os.Args[1:]))
		},
	})
}

// atOnce are options of the race detector: a program ends when it ends, and not a second later.
const atOnce = "atexit_sleep_ms=0"

// TestCLI runs the scripts of testdata against the real API over a platform in
// memory, one for each script.
func TestCLI(t *testing.T) {
	t.Parallel()
	commands := proxyCommands()
	commands["code"] = expectCode
	commands["request"] = requestAtEdge
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			service := fake.New("loc")
			env.Values[platformKey{}] = service
			handler := api.New(api.Config{
				Orgs: service, Tokens: service, Apps: service, Machines: service, Logs: service, Images: service, Platform: service,
				Secrets: service, SecretKeys: service, Registries: service, Encryption: service, Identity: service, SigningKeys: service, Issuer: service, Peers: service, Volumes: service, Addresses: service, Certificates: service,
				Auth:         service.Login(fake.Tokens{"secret": {Subject: "admin", Admin: true}}),
				Registry:     registry.New(registry.Logger(log.New(io.Discard, "", 0))),
				AppURL:       func(app hangar.AppName) string { return "http://" + string(app) + ".hangar.localhost" },
				RegistryName: "registry.example.com", Region: "loc", Version: "test", Log: slog.New(slog.DiscardHandler),
			})
			server := httptest.NewServer(handler)
			env.Defer(server.Close)
			if err := elsewhere(env, handler); err != nil {
				return err
			}
			env.Setenv("HANGAR_URL", server.URL)
			env.Setenv("HANGAR_TOKEN", "secret")
			env.Setenv("HANGAR_DIR", filepath.Join(env.WorkDir, "no-daemon"))
			env.Setenv("HANGAR_CONFIG", "/dev/null")
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GORACE", atOnce)
			return nil
		},
		Cmds: commands,
	})
}

// elsewhere serves the platform to scripts as https://example.com, behind a proxy, with the
// certificate that ca.pem has.
func elsewhere(env *testscript.Env, handler http.Handler) error {
	secure := httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that clients give up
	secure.StartTLS()
	env.Defer(secure.Close)
	proxy := httptest.NewServer(connectProxy("example.com:443", secure.Listener.Addr().String()))
	env.Defer(proxy.Close)
	env.Setenv("HTTPS_PROXY", proxy.URL)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	return os.WriteFile(filepath.Join(env.WorkDir, "ca.pem"), certificate, 0o600)
}

// connectProxy connects clients that ask for one address to another.
func connectProxy(asked, address string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != asked {
			http.Error(w, "no such server", http.StatusBadGateway)
			return
		}
		to, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		})
		_, _ = io.Copy(from, to)
		_ = from.Close()
		both.Wait()
	})
}

// platformKey is where a script has its platform.
type platformKey struct{}

// requestAtEdge lets the edge tell of a request once somebody listens: request APP PATH STATUS.
func requestAtEdge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: request APP PATH STATUS")
	}
	status, err := strconv.Atoi(args[2])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ts.Check(ts.Value(platformKey{}).(*fake.Service).Request(ctx, hangar.AppName(args[0]), "148ed726c12358", hangar.EdgeRequest{
		Client: netip.MustParseAddr("192.0.2.7"), Method: "GET", Host: "hello.example", Path: args[1], Proto: "HTTP/1.1", Status: status,
		Bytes: 12, Millis: 3.21, RequestID: "01HX-loc",
	}))
}

// expectCode runs a command line that must end with a code: code 3 hangar apps list.
func expectCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program args...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if want := args[0]; want != fmt.Sprint(got) {
		ts.Fatalf("exit code %d, want %s", got, want)
	}
}

func TestEveryCodeOfTheLanguageHasAnExitCode(t *testing.T) {
	t.Parallel()
	for _, code := range hangar.Codes() {
		if _, ok := exitCodes[code]; !ok {
			t.Errorf("no exit code for %s", code)
		}
	}
	if got := codeFor(fmt.Errorf("x: %w", context.DeadlineExceeded)); got != exitTimeout {
		t.Errorf("a deadline exits with %d", got)
	}
}
