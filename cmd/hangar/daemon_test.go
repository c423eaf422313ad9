package main

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
)

// signals are the signals that scripts can send to daemons.
var signals = map[string]unix.Signal{"TERM": unix.SIGTERM, "KILL": unix.SIGKILL}

// TestDaemon runs scripts with real daemons in the background, which have the fake driver.
func TestDaemon(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/daemon",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			dirs := []string{filepath.Join(env.WorkDir, "a"), filepath.Join(env.WorkDir, "b")}
			env.Setenv("HANGAR_DIR", dirs[0])
			env.Setenv("HANGAR_CONFIG", "/dev/null")
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("GORACE", atOnce)
			private := newPrivateRegistry(t)
			env.Setenv("REGISTRY", private)
			env.Setenv("PRIVATE", private+"/private:v1")
			env.Setenv("UP", "up --driver fake --api 127.0.0.1:0 --http 127.0.0.1:0 --https 127.0.0.1:0")
			env.Defer(func() {
				for _, dir := range dirs {
					endDaemon(t, dir)
					// A script that failed may have left volumes open.
					down := cli.New(cli.Streams{Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader("")}, func(string) string { return "" })
					if _, err := os.Stat(filepath.Join(dir, daemon.ConfigFile)); err == nil && run(context.Background(), down, []string{"down", "--yes", "--dir", dir}) != cli.ExitOK {
						t.Errorf("%s is still there", dir)
					}
				}
			})
			return nil
		},
		Condition: func(condition string) (bool, error) {
			if condition != "root" {
				return false, fmt.Errorf("unknown condition %q", condition)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code":     expectCode,
			"tlsfront": tlsFront,
			"signal": func(ts *testscript.TestScript, _ bool, args []string) {
				d, err := daemon.Find(ts.MkAbs(args[1]))
				ts.Check(err)
				defer d.Close()
				ts.Check(d.Signal(signals[args[0]]))
				ended, err := d.Ended(context.Background(), time.Minute)
				ts.Check(err)
				if !ended {
					ts.Fatalf("the daemon survived %s", args[0])
				}
			},
		},
	})
}

// tlsFront serves the API of a daemon over TLS, as an edge does: tlsfront DIR. The address
// is in $FRONT, without a scheme, and the certificate in certs/ca.crt.
func tlsFront(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tlsfront DIR")
	}
	address := strings.TrimSpace(ts.ReadFile(filepath.Join(args[0], hangar.AddressFile)))
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address}))
	front.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that clients give up
	front.StartTLS()
	ts.Defer(front.Close)
	ts.Setenv("FRONT", front.Listener.Addr().String())
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	ts.Check(os.MkdirAll(ts.MkAbs("certs"), 0o700))
	ts.Check(os.WriteFile(ts.MkAbs("certs/ca.crt"), certificate, 0o600))
}

// newPrivateRegistry serves private:v1 to the user me with the password
// private-s3cret. It returns host:port.
func newPrivateRegistry(t *testing.T) string {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "private-s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	image, err := random.Image(1<<10, 1)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.Config(image, v1.Config{Cmd: []string{"/serve"}})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/private:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "me", Password: "private-s3cret"})); err != nil {
		t.Fatal(err)
	}
	return host
}

// endDaemon kills a daemon that a failed script left behind.
func endDaemon(t *testing.T, dir string) {
	t.Helper()
	d, err := daemon.Find(dir)
	if err != nil {
		return
	}
	defer d.Close()
	if err := d.Stop(context.Background(), time.Minute); err != nil {
		t.Error(err)
	}
}
