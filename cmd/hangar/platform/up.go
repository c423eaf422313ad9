// Package platform has the commands for operators of a server: to start and stop the daemon, check its configuration,
// and print the version of this binary.
package platform

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/flagfile"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const upLong = `Run the platform on this server, in the foreground. Needs root.

SIGTERM and Ctrl-C end the daemon and leave Machines running; the next start
manages them again. ` + "`hangar down`" + ` stops everything and removes the data directory.

Flags can also be set in a configuration file: see ` + "`hangar config --help`" + `.

Several daemons can share a server if each has its own --dir and its own addresses.`

const upExample = `  hangar up
  hangar up --config ./hangar.yaml --log-level debug
  hangar up --detach --domain apps.example.com`

// The files of a daemon in the background.
const (
	daemonLog = "daemon.log"
	readyFD   = 3 // in the child, which writes a line here once it is ready
)

// startPatience is how long `up --detach` waits for the daemon to be ready.
const startPatience = time.Minute

// upFlags are the flags of `up`: the daemon's config and those of this start.
type upFlags struct {
	config     daemon.Config
	configPath string         // the value of --config
	file       *flagfile.File // nil: there is none
	logLevel   string
	logFormat  string
	detach     bool
	signalUp   bool // hidden: report on readyFD
}

// register adds the flags of `up` except --dir. The configuration file can set those that are not about a single start.
func (f *upFlags) register(cmd *cobra.Command) {
	f.config = daemon.DefaultConfig()
	daemonFlags(cmd, &f.config)
	set := cmd.Flags()
	set.StringVar(&f.logLevel, "log-level", "info", "lowest level to log: debug, info, warn or error")
	set.StringVar(&f.logFormat, "log-format", "text", "text or json")
	set.StringVar(&f.configPath, "config", "", "YAML file with values for these flags (default "+cli.DefaultConfigFile+", if it exists)")
	set.BoolVarP(&f.detach, "detach", "d", false, "run in the background, return once it is ready")
	set.BoolVar(&f.signalUp, "signal-ready", false, "report readiness on file descriptor "+strconv.Itoa(readyFD))
	_ = set.MarkHidden("signal-ready")
	flagfile.Exclude(set, "config", "detach", "signal-ready", "forget-secrets", "join")
}

// NewUpCommand returns `hangar up`.
func NewUpCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the platform on this server",
		Long:  upLong, Example: upExample,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.load(c.Invocation, cmd); err != nil {
				return err
			}
			if f.config.Join != "" {
				f.config.JoinToken = hangar.NewSensitive(cmp.Or(c.Token, c.Getenv("HANGAR_JOIN_TOKEN")))
			}
			log, err := newLogger(c.Invocation, f.logLevel, f.logFormat)
			if err != nil {
				return err
			}
			if f.detach {
				if err := f.config.Prepare(cmd.Context()); err != nil {
					return err
				}
				return c.upDetached(cmd.Context(), f.config, f.file.Name())
			}
			return c.up(cmd.Context(), &f, log)
		},
	}
	f.register(cmd)
	return cmd
}

// newLogger returns the logger of the daemon.
func newLogger(c *cli.Invocation, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, cli.UsageErrorf("--log-level %q: must be debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(c.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(c.Stderr, options)), nil
	}
	return nil, cli.UsageErrorf("--log-format %q: must be text or json", format)
}

// up runs the daemon until a signal ends it.
func (c commands) up(ctx context.Context, f *upFlags, log *slog.Logger) error {
	began := time.Now()
	// After the first signal the default handling returns, so that a second signal ends a daemon that hangs.
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer restore()
	defer context.AfterFunc(ctx, func() {
		restore()
		notify(log, stopping(f.config.Drain))
	})()

	err := daemon.Run(ctx, f.config, daemon.Options{
		Version: c.Build.Version, DockerConfig: dockerConfig(), Guard: []string{"/proc/self/exe", guardCommand}, Log: log,
		Ready: func(addr string) error {
			if err := c.announce(f, addr, time.Since(began)); err != nil {
				return err
			}
			notify(log, systemd.SdNotifyReady)
			// Starting allocates much more than the idle daemon needs, and the runtime would keep that memory for minutes.
			go debug.FreeOSMemory()
			log.Info("ready", "api", addr, "duration", time.Since(began), "version", c.Build.Version, "commit", c.Build.Commit, "config", f.file.Name())
			return nil
		},
	})
	if err != nil {
		return err
	}
	log.Info("stopped; Machines keep running")
	return nil
}

// dockerConfig returns the path of the file where `docker login` keeps credentials.
func dockerConfig() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker", "config.json")
}

// endTime is how long a daemon may take to end, in addition to --drain. It equals TimeoutStopSec of
// packaging/hangar.service.
const endTime = 30 * time.Second

// stopping returns the message to systemd that the daemon ends, with the time after which systemd may kill it.
func stopping(drain time.Duration) string {
	return fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", systemd.SdNotifyStopping, (drain + endTime).Microseconds())
}

// notify sends a message to systemd, if it runs this daemon.
func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("notify systemd", "error", err)
	}
}

// announce prints the addresses and paths of a ready daemon, and tells a waiting `up --detach`.
func (c commands) announce(f *upFlags, addr string, took time.Duration) error {
	dir := f.config.Dir
	fmt.Fprintf(c.Stdout, "hangar %s is ready after %s\n", c.Build.Version, cli.Brief(took))
	err := c.PrintFields([]cli.Field{
		{"api", "http://" + cli.Reachable(addr)},
		{"public api", f.config.PublicAPI()},
		{"token", filepath.Join(dir, cli.TokenFile)},
		{"apps domain", f.config.Domain},
		{"data", dir},
		{"config", f.file.Name()},
	})
	if f.signalUp {
		ready := os.NewFile(readyFD, "ready")
		_, failed := fmt.Fprintln(ready, addr)
		err = errors.Join(err, failed, ready.Close())
	}
	return err
}

// upDetached starts the daemon in a session of its own, and returns once it is ready or has failed.
func (c commands) upDetached(ctx context.Context, cfg daemon.Config, file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(cfg.Dir, daemonLog)
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	ready, child, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()

	// The daemon outlives this process: ctx bounds only the wait.
	cmd := exec.Command(self, detachedArgs(c.Args)...) //nolint:noctx // see above
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{child}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = child.Close() // so that the pipe closes when the daemon ends
	if err != nil {
		return err
	}
	if err := ready.SetReadDeadline(time.Now().Add(startPatience)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	addr, err := bufio.NewReader(ready).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cli.WithHint(fmt.Errorf("the daemon, process %d, is not ready after %s", cmd.Process.Pid, startPatience), "see "+path)
	case err != nil:
		_ = cmd.Wait() // its log says why it failed
		return cli.WithHint(fmt.Errorf("the daemon did not start: %s", lastLine(path)), "see "+path)
	}
	fmt.Fprintf(c.Stdout, "hangar %s runs in the background, process %d\n", c.Build.Version, cmd.Process.Pid)
	return c.PrintFields([]cli.Field{
		{"api", "http://" + cli.Reachable(strings.TrimSpace(addr))},
		{"public api", cfg.PublicAPI()},
		{"token", filepath.Join(cfg.Dir, cli.TokenFile)},
		{"apps domain", cfg.Domain},
		{"data", cfg.Dir},
		{"config", file},
		{"log", path},
	})
}

// detachedArgs returns the arguments for the process in the background. Of a flag that is given twice, the last counts.
func detachedArgs(args []string) []string {
	return slices.Concat(args, []string{"--detach=false", "--signal-ready"})
}

// lastLine returns the last line in a daemon's log.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, line := range slices.Backward(lines) {
		if text, ok := strings.CutPrefix(line, "Error: "); ok {
			return text
		}
	}
	return lines[len(lines)-1]
}
