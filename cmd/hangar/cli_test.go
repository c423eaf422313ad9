package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hangar": func() { os.Exit(hangarMain()) }})
}

// TestCLI runs the scripts of testdata against the real API over a platform in
// memory, one for each script.
func TestCLI(t *testing.T) {
	t.Parallel()
	commands := proxyCommands()
	commands["code"] = expectCode
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			service := fake.New("loc")
			server := httptest.NewServer(api.New(api.Config{
				Orgs: service, Tokens: service, Apps: service, Machines: service, Logs: service, Images: service, Platform: service,
				Secrets: service, Registries: service, Encryption: service, Identity: service, SigningKeys: service, Issuer: service, Peers: service, Volumes: service,
				Auth:     service.Login(fake.Tokens{"secret": {Subject: "admin", Admin: true}}),
				Registry: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
				Region:   "loc", Version: "test", Log: slog.New(slog.DiscardHandler),
			}))
			env.Defer(server.Close)
			env.Setenv("HANGAR_URL", server.URL)
			env.Setenv("HANGAR_TOKEN", "secret")
			env.Setenv("HANGAR_DIR", filepath.Join(env.WorkDir, "no-daemon"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: commands,
	})
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
