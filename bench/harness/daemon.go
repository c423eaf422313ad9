// Package harness is what benchmarks of the platform share: a daemon, its cleanup, and the load of
// the server.
//
// Daemon.Down removes all that a Daemon has made. It needs no context, so that it also works when
// the measuring was interrupted. A Daemon is for one goroutine.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/internal/freeport"
)

// Options say what runs.
type Options struct {
	Program string        // hangar
	Args    []string      // of `hangar up`, beside where it serves and keeps its data
	Ready   time.Duration // how long it may take to serve
}

// Daemon is a platform with a data directory of its own.
type Daemon struct {
	Addr string // of the API, host:port, the same over restarts

	o    Options
	dir  string // its data
	log  string // file of its output
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start starts a daemon with a new data directory.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	// Short, because sockets live below it.
	dir, err := os.MkdirTemp("", "hgb")
	if err != nil {
		return nil, err
	}
	addr, err := freeport.Address(ctx)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	d := &Daemon{Addr: addr, o: o, dir: filepath.Join(dir, "data"), log: filepath.Join(dir, "daemon.log")}
	if _, err := d.Up(ctx); err != nil {
		return nil, errors.Join(err, d.Down())
	}
	return d, nil
}

// Up starts the daemon, which must not run, and returns how long it took until it
// answered.
func (d *Daemon) Up(ctx context.Context) (time.Duration, error) {
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	args := append([]string{"up", "--dir", d.dir, "--api", d.Addr, "--http", "127.0.0.1:0", "--https", "127.0.0.1:0"}, d.o.Args...)
	d.cmd = exec.Command(d.o.Program, args...) //nolint:noctx // Down ends it
	d.cmd.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null")
	d.cmd.Stdout, d.cmd.Stderr = out, out
	// Its own group: what interrupts the measuring is not for it.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		return 0, err
	}
	d.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(d.cmd, d.done)
	probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: d.o.Ready}
	for time.Since(began) < d.o.Ready {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Addr+"/healthz", http.NoBody)
		if err != nil {
			return 0, err
		}
		res, err := probe.Do(req)
		if err == nil {
			took := time.Since(began)
			_ = res.Body.Close()
			return took, nil
		}
		select {
		case <-d.done:
			return 0, fmt.Errorf("the daemon ended at once:\n%s", d.output())
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("the daemon does not serve after %s:\n%s", d.o.Ready, d.output())
}

// Kill ends the daemon as a crash would, and waits for its end.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.done
	return nil
}

// Down removes everything that the daemon made. It must work when the measuring was
// interrupted, hence without a context.
func (d *Daemon) Down() error {
	cmd := exec.Command(d.o.Program, "down", "--dir", d.dir, "--yes") //nolint:noctx // see above
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hangar down: %w\n%s\n%s", err, said, d.output())
	}
	if d.done != nil {
		<-d.done
	}
	return os.RemoveAll(filepath.Dir(d.dir))
}

// output returns the end of what the daemon printed.
func (d *Daemon) output() string {
	f, err := os.Open(d.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 4 << 10
	if fi, err := f.Stat(); err == nil && fi.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}

// Token returns the admin token.
func (d *Daemon) Token() (string, error) {
	b, err := os.ReadFile(filepath.Join(d.dir, "admin.token"))
	return strings.TrimSpace(string(b)), err
}

// Dir is where it keeps its data.
func (d *Daemon) Dir() string { return d.dir }

// PID is the process that serves now.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Push packs a static program and returns the reference of the image.
func (d *Daemon) Push(ctx context.Context, program, name string) (string, error) {
	token, err := d.Token()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, d.o.Program, "image", "push", program, name)
	cmd.Env = append(os.Environ(), "HANGAR_URL=http://"+d.Addr, "HANGAR_TOKEN="+token)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("image push: %w\n%s", err, stderr.String())
	}
	words := strings.Fields(stdout.String())
	if len(words) == 0 {
		return "", errors.New("image push printed no reference")
	}
	return words[len(words)-1], nil
}
