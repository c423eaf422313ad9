package daemon_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a daemon of this process.
type running struct {
	*client.Client
	address string // of its API
	token   string
	end     func()
}

// run runs a daemon with the fake driver in a directory, until end is called.
func run(t *testing.T, dir string, store state.Store) *running {
	t.Helper()
	cfg := daemon.DefaultConfig()
	cfg.Dir, cfg.Driver = dir, daemon.DriverFake
	cfg.API, cfg.HTTP, cfg.HTTPS, cfg.ACME = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "off"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	began := time.Now()
	go func() {
		ended <- daemon.Run(ctx, cfg, daemon.Options{
			Version: "test", Around: daemon.Around{State: store, NoSync: true}, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
			Ready: func(addr string) error {
				ready <- addr
				return nil
			},
		})
	}()
	var address string
	select {
	case address = <-ready:
	case err := <-ended:
		stop()
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(began))
	token, err := os.ReadFile(filepath.Join(dir, auth.AdminFile))
	if err != nil {
		t.Error(err)
	}
	r := &running{address: address, token: strings.TrimSpace(string(token))}
	r.Client = client.New("http://"+address, r.token)
	r.end = sync.OnceFunc(func() {
		r.Close()
		began := time.Now()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		t.Logf("ended in %s", time.Since(began))
	})
	t.Cleanup(r.end)
	return r
}

// push pushes an image with a file and returns its reference.
func (r *running) push(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "serve"), []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	image, err := ociimage.Open(dir, ociimage.Config{Cmd: []string{"/serve"}})
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	to := r.address + "/personal/hello:v1"
	digest, err := ociimage.Push(t.Context(), image, to, ociimage.Registry{Plain: true, Token: r.token}, func(int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return to + "@" + digest.String()
}

// TestDaemonsOfOneProcess: each has its own Machines, and finds them when it starts again.
func TestDaemonsOfOneProcess(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]state.Store{"etcd": nil, "memory": state.NewMemory()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first := run(t, dir, store)
			if _, err := first.CreateApp(t.Context(), hangar.AppCreate{Name: "hello", Org: hangar.OrgPersonal}); err != nil {
				t.Fatal(err)
			}
			made, err := first.CreateMachine(t.Context(), "hello", hangar.MachineCreate{Config: hangar.MachineConfig{Image: first.push(t)}})
			if err != nil {
				t.Fatal(err)
			}
			started := hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}
			if _, err := first.WaitMachine(t.Context(), made.Ref(), started); err != nil {
				t.Fatal(err)
			}
			first.end()

			second := run(t, dir, store)
			found, err := second.Machine(t.Context(), made.Ref())
			if err != nil || found.State != hangar.MachineStarted || found.InstanceID != made.InstanceID {
				t.Errorf("it finds %+v, %v", found, err)
			}
			apps, err := second.Apps(t.Context(), hangar.AppFilter{})
			if err != nil || len(apps) != 1 {
				t.Errorf("there are %d Apps, %v", len(apps), err)
			}
			second.end()
		})
	}
}
