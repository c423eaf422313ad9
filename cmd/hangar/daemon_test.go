package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
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
)

// signals are what scripts send to daemons.
var signals = map[string]unix.Signal{"TERM": unix.SIGTERM, "KILL": unix.SIGKILL}

// TestDaemon runs scripts with real daemons in the background, whose Machines are
// pretended.
func TestDaemon(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/daemon",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			dirs := []string{filepath.Join(env.WorkDir, "a"), filepath.Join(env.WorkDir, "b")}
			env.Setenv("HANGAR_DIR", dirs[0])
			env.Setenv("HOME", env.WorkDir)
			private := newPrivateRegistry(t)
			env.Setenv("REGISTRY", private)
			env.Setenv("PRIVATE", private+"/private:v1")
			env.Setenv("UP", "up --driver fake --api 127.0.0.1:0 --http 127.0.0.1:0 --https 127.0.0.1:0")
			env.Defer(func() {
				for _, dir := range dirs {
					endDaemon(t, dir)
					// A script that failed may have left volumes open.
					down := cli{stdout: io.Discard, stderr: io.Discard, stdin: strings.NewReader(""), getenv: func(string) string { return "" }}
					if _, err := os.Stat(filepath.Join(dir, configFile)); err == nil && down.run(context.Background(), []string{"down", "--yes", "--dir", dir}) != exitOK {
						t.Errorf("%s is not taken down", dir)
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
			"code": expectCode,
			"signal": func(ts *testscript.TestScript, _ bool, args []string) {
				d, err := findDaemon(ts.MkAbs(args[1]))
				ts.Check(err)
				defer d.close()
				ts.Check(d.signal(signals[args[0]]))
				ended, err := d.ended(context.Background(), time.Minute)
				ts.Check(err)
				if !ended {
					ts.Fatalf("the daemon survived %s", args[0])
				}
			},
		},
	})
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

// endDaemon ends a daemon that a failed script left behind.
func endDaemon(t *testing.T, dir string) {
	t.Helper()
	d, err := findDaemon(dir)
	if err != nil {
		return
	}
	defer d.close()
	if err := d.stop(context.Background(), time.Minute); err != nil {
		t.Error(err)
	}
}
