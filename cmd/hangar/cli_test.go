package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/platform"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"hangar": func() {
			c := newInvocation()
			c.Settling = time.Millisecond // most scripts have Machines that stay
			os.Exit(run(context.Background(), c, os.Args[1:]))
		},
		"settling-hangar": func() {
			c := newInvocation()
			c.Settling = time.Minute // a script that needs all of it fails
			os.Exit(run(context.Background(), c, os.Args[1:]))
		},
	})
}

// atOnce are options of the race detector: without them, a program ends one second late.
const atOnce = "atexit_sleep_ms=0"

// TestCLI runs the scripts of testdata, each on a platform of its own.
func TestCLI(t *testing.T) {
	t.Parallel()
	upload := contract.NewUpload(t, "www.example.com")
	commands := proxyCommands()
	commands["code"] = expectCode
	commands["request"] = requestAtEdge
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			p := platform.Start(t, platform.Options{Config: func(c *daemon.Config) { c.ACME = "https://127.0.0.1:1/directory" }})
			env.Defer(p.End)
			env.Values[platformKey{}] = p
			if err := elsewhere(env, p); err != nil {
				return err
			}
			for name, text := range map[string]string{"www.pem": upload.Fullchain, "www.key": upload.PrivateKey} {
				if err := os.WriteFile(filepath.Join(env.WorkDir, name), []byte(text), 0o600); err != nil {
					return err
				}
			}
			env.Setenv("HANGAR_URL", p.URL())
			env.Setenv("HANGAR_TOKEN", p.Token())
			env.Setenv("ADMIN", p.Token())
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
func elsewhere(env *testscript.Env, p *platform.Platform) error {
	secure := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.Addr()}))
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

// platformKey is the key of a script's platform.
type platformKey struct{}

// requestAtEdge requests paths of an App from the edge in turn, until the script ends, so that a
// listener that starts meanwhile sees the requests: request APP PATH STATUS...
func requestAtEdge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args)%2 == 0 {
		ts.Fatalf("usage: request APP PATH STATUS...")
	}
	p, app := ts.Value(platformKey{}).(*platform.Platform), hangar.AppName(args[0])
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ts.Defer(func() {
		cancel()
		ts.Check(<-ended)
	})
	go func() {
		for ctx.Err() == nil {
			for pair := range slices.Chunk(args[1:], 2) {
				if got, err := p.Request(ctx, app, pair[0]); ctx.Err() == nil && (err != nil || strconv.Itoa(got) != pair[1]) {
					ended <- fmt.Errorf("%s of %s is answered %d, %w", pair[0], app, got, err)
					return
				}
			}
		}
		ended <- nil
	}()
}

// expectCode runs a command line that must end with an exit code: code 3 hangar apps list.
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
