package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/client"
)

// daemon is a platform with a data directory of its own.
type daemon struct {
	hangar string // the program
	dir    string // its data
	addr   string // of the API, the same over restarts
	log    string // file of its output
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	apis   []*client.Client
}

// readyWithin bounds how long a daemon may take to serve.
const readyWithin = time.Minute

// startDaemon starts a daemon with a new data directory.
func startDaemon(ctx context.Context, program string) (*daemon, error) {
	// Short, because sockets live below it.
	dir, err := os.MkdirTemp("", "hgb")
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	d := &daemon{hangar: program, dir: filepath.Join(dir, "data"), addr: listener.Addr().String(), log: filepath.Join(dir, "daemon.log")}
	_ = listener.Close()
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
	d.cmd = exec.Command(d.hangar, "up", "--dir", d.dir, "--api", d.addr, "--http", "127.0.0.1:0", "--https", "127.0.0.1:0") //nolint:noctx // down ends it
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
	return 0, fmt.Errorf("the daemon does not serve after %s:\n%s", readyWithin, d.output())
}

// kill ends the daemon as a crash would, and waits for its end.
func (d *daemon) kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.done
	return nil
}

// down removes everything that the daemon made. It must work when the measuring was
// interrupted, hence without a context.
func (d *daemon) down() error {
	for _, api := range d.apis {
		api.Close()
	}
	cmd := exec.Command(d.hangar, "down", "--dir", d.dir, "--yes") //nolint:noctx // see above
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hangar down: %w\n%s\n%s", err, said, d.output())
	}
	if d.done != nil {
		<-d.done
	}
	return os.RemoveAll(filepath.Dir(d.dir))
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

// client returns a client with the admin token. down closes it.
func (d *daemon) client() (*client.Client, error) {
	token, err := os.ReadFile(filepath.Join(d.dir, "admin.token"))
	if err != nil {
		return nil, err
	}
	// A crowd keeps as many connections as it has instances, as clients of their
	// own would.
	transport := &http.Transport{MaxIdleConnsPerHost: crowdMost, IdleConnTimeout: time.Minute}
	c := client.New("http://"+d.addr, strings.TrimSpace(string(token)), client.WithHTTPClient(&http.Client{Transport: transport}))
	d.apis = append(d.apis, c)
	return c, nil
}

// push packs a static program and returns the reference of the image.
func (d *daemon) push(ctx context.Context, program, name string) (string, error) {
	cmd := exec.CommandContext(ctx, d.hangar, "image", "push", program, name)
	cmd.Env = append(os.Environ(), "HANGAR_DIR="+d.dir)
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
