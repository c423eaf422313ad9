package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/client"
)

// Main is the body of a benchmark's main function. The first signal ends the measuring and
// lets it clean up.
func Main(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/"+name+":", err)
		os.Exit(1)
	}
}

// NeedRoot refuses to go on as another user, who cannot run Machines.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("running Machines needs root")
	}
	return nil
}

// AllowFiles lets this process and its children have as many descriptors open as a service
// manager would allow them: the edge takes no more connections than it has descriptors for. Where a process may not
// have more than it was started with (a container without CAP_SYS_RESOURCE), it gets as many as it may.
func AllowFiles() error {
	const files = 1 << 20 // LimitNOFILE of packaging/hangar.service
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max >= files {
		return err
	}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files})
	if errors.Is(err, syscall.EPERM) {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit.Max, Max: limit.Max})
	}
	if err != nil {
		return fmt.Errorf("allow %d open files: %w", files, err)
	}
	return nil
}

// Parts are words of a flag, separated by commas.
type Parts []string

// ParseParts reads the value of a flag, of which every word must be known.
func ParseParts(flag, text string, known ...string) (Parts, error) {
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	for _, p := range parts {
		if !slices.Contains(known, p) {
			return nil, fmt.Errorf("-%s %s: must be among %s", flag, p, strings.Join(known, ", "))
		}
	}
	return parts, nil
}

// Has reports whether a part is among them.
func (p Parts) Has(part string) bool { return slices.Contains(p, part) }

// Build builds a program of this module that needs no C library.
func Build(ctx context.Context, to string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", to}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(args, " "), err, said)
	}
	return nil
}

// Platform is a daemon with the image of a guest, and a client of it.
type Platform struct {
	*Daemon
	Client *client.Client
	Image  string
}

// StartPlatform starts a platform, which undo removes, and pushes the guest.
func StartPlatform(ctx context.Context, o Options, guest string, undo *Undo) (*Platform, error) {
	if o.Ready == 0 {
		o.Ready = time.Minute
	}
	d, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	undo.Add(d.Down)
	p := &Platform{Daemon: d}
	if p.Image, err = d.Push(ctx, guest, "guest:1"); err != nil {
		return nil, err
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	p.Client = client.New("http://"+d.Addr, token, client.WithHTTPClient(&http.Client{Transport: &http.Transport{}}))
	undo.Add(func() error { p.Client.Close(); return nil })
	return p, nil
}
