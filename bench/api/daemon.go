package main

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
)

// daemon is a platform with a data directory of its own, whose Machines are pretended:
// what is measured is the API and what is behind it, not sandboxes.
type daemon struct {
	hangar string // the program
	dir    string // its data
	addr   string // of the API, the same over restarts
	log    string // file of its output
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
}

// readyWithin bounds how long a daemon may take to serve.
const readyWithin = 5 * time.Minute

// startDaemon starts a daemon with a new data directory below dir.
func startDaemon(ctx context.Context, program, dir string) (*daemon, error) {
	addr, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	d := &daemon{hangar: program, dir: filepath.Join(dir, "data"), addr: addr, log: filepath.Join(dir, "daemon.log")}
	if _, err := d.up(ctx); err != nil {
		return nil, errors.Join(err, d.down())
	}
	return d, nil
}

// up starts the daemon, which must not run, and returns how long it took until it
// answered.
func (d *daemon) up(ctx context.Context) (time.Duration, error) {
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	d.cmd = exec.Command(d.hangar, "up", "--driver", "fake", "--dir", d.dir, "--api", d.addr, "--http", "127.0.0.1:0", "--https", "127.0.0.1:0") //nolint:noctx // down ends it
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
	probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: readyWithin}
	for time.Since(began) < readyWithin {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.addr+"/healthz", http.NoBody)
		if err != nil {
			return 0, err
		}
		if res, err := probe.Do(req); err == nil {
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
	return 0, fmt.Errorf("the daemon does not serve after %s:\n%s", readyWithin, d.output())
}

// restart kills the daemon as a crash would, and returns how soon it serves again.
func (d *daemon) restart(ctx context.Context) (time.Duration, error) {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	<-d.done
	return d.up(ctx)
}

// down removes everything that the daemon made. It must work when the measuring was
// interrupted, hence without a context.
func (d *daemon) down() error {
	cmd := exec.Command(d.hangar, "down", "--dir", d.dir, "--yes") //nolint:noctx // see above
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hangar down: %w\n%s\n%s", err, said, d.output())
	}
	if d.done != nil {
		<-d.done
	}
	return nil
}

// output returns the end of what the daemon printed.
func (d *daemon) output() string {
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

func (d *daemon) pids() []int { return []int{d.cmd.Process.Pid} }

// token returns the admin token.
func (d *daemon) token() (string, error) {
	b, err := os.ReadFile(filepath.Join(d.dir, "admin.token"))
	return strings.TrimSpace(string(b)), err
}

// push packs a static program and returns the reference of the image.
func (d *daemon) push(ctx context.Context, program, name, token string) (string, error) {
	cmd := exec.CommandContext(ctx, d.hangar, "image", "push", program, name)
	cmd.Env = append(os.Environ(), "HANGAR_URL=http://"+d.addr, "HANGAR_TOKEN="+token)
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
