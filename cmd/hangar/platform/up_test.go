package platform

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
)

// TestStoppingTakesAsLongAsDrain: the daemon announces a longer --drain to systemd, which kills programs that
// do not end in time.
func TestStoppingTakesAsLongAsDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_ = socket.SetDeadline(time.Now().Add(time.Minute))
	t.Setenv("NOTIFY_SOCKET", path)
	notify(slog.New(slog.DiscardHandler), stopping(time.Hour))
	got := make([]byte, 100)
	n, err := socket.Read(got)
	if want := "STOPPING=1\nEXTEND_TIMEOUT_USEC=3630000000"; err != nil || string(got[:n]) != want {
		t.Errorf("told %q, %v", got[:n], err)
	}
}

// TestDetachedArgs: the process in the background starts no other one, however the flag is written.
func TestDetachedArgs(t *testing.T) {
	t.Parallel()
	for _, given := range []string{"-d", "-d=true", "-d=1", "-dd", "--detach", "--detach=true", "--detach=1", "--detach=T", "--detach=false --detach"} {
		var f upFlags
		cmd := &cobra.Command{}
		f.register(cmd)
		args := detachedArgs(append(strings.Fields(given), "--api", "-d"))
		if err := cmd.ParseFlags(args); err != nil || f.detach || !f.signalUp || f.config.API != "-d" {
			t.Errorf("%s: %v gives %t, %t, --api %s, %v", given, args, f.detach, f.signalUp, f.config.API, err)
		}
	}
}

// TestRefusedConfigIsWrongUse: a refused config is wrong usage, an unreadable file is not.
func TestRefusedConfigIsWrongUse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*daemon.Config)
		wrong bool
	}{
		"--region":         {func(c *daemon.Config) { c.Region = "Local" }, true},
		"--api :4280":      {func(c *daemon.Config) { c.API = ":4280" }, true},
		"--allow-webhook":  {func(c *daemon.Config) { c.AllowWebhook = []string{"http://x"} }, true},
		"--allow-registry": {func(c *daemon.Config) { c.AllowRegistry = []string{"http://x"} }, true},
		`"/dev/null"`:      {func(c *daemon.Config) { c.ACMERoot = "/dev/null" }, true},
		"--acme-root":      {func(c *daemon.Config) { c.ACMERoot = "/nowhere/roots.pem" }, false},
	} {
		cfg := daemon.DefaultConfig()
		c.spoil(&cfg)
		err := wrongUse(cfg.Validate())
		if _, wrong := errors.AsType[cli.UsageError](err); err == nil || wrong != c.wrong || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := daemon.DefaultConfig()
	if err := wrongUse(cfg.Validate()); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
