package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/internal/freeport"
)

// peer is another program that the same clients ask.
type peer struct {
	name             string
	network, address string
	request          []byte
	cmd              *exec.Cmd
	remove           func() error // what stopping the program leaves; nil: nothing
}

// peerReady bounds how long a peer may take to answer.
const peerReady = 20 * time.Second

// up starts the program of a peer and waits for the first answer.
func (p *peer) up(ctx context.Context) error {
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	var err error
	for deadline := time.Now().Add(peerReady); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err = once(ctx, p.network, p.address, p.request); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not answer: %w", p.name, err)
}

// down ends the program and all that it started.
func (p *peer) down() error {
	var err error
	if p.cmd.Process != nil {
		err = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
		_ = p.cmd.Wait() // it was asked to end
	}
	if p.remove != nil {
		err = errors.Join(err, p.remove())
	}
	return err
}

// processes are those of a peer: the program and its children.
func (p *peer) processes() []int {
	pids := []int{p.cmd.Process.Pid}
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pids[0], pids[0]))
	for word := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// nginxConf serves files without a log, over connections that stay.
const nginxConf = `daemon off;
user root;
worker_processes %d;
pid %[2]s/nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
	access_log off;
	keepalive_requests 1000000000;
	open_file_cache max=16 inactive=1h;
	client_body_temp_path %[2]s/body;
	proxy_temp_path %[2]s/proxy;
	fastcgi_temp_path %[2]s/fastcgi;
	uwsgi_temp_path %[2]s/uwsgi;
	scgi_temp_path %[2]s/scgi;
	server {
		listen %[3]s;
		root %[2]s;
		default_type application/json;
	}
}
`

// nginx serves an answer of hangar as a file: what an answer of that size costs at
// the least.
func nginx(ctx context.Context, dir string, body []byte) (*peer, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		return nil, err
	}
	address, err := freeport.Address(ctx)
	if err != nil {
		return nil, err
	}
	if dir, err = os.MkdirTemp(dir, "nginx"); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(filepath.Join(dir, "machine.json"), body, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, 2, dir, address), 0o600); err != nil {
		return nil, err
	}
	return &peer{
		name: partNginx, network: "tcp", address: address,
		request: []byte("GET /machine.json HTTP/1.1\r\nHost: " + address + "\r\n\r\n"),
		cmd:     exec.Command(program, "-c", conf, "-p", dir, "-e", "stderr"), //nolint:noctx // down ends it
	}, nil
}

// podman serves its REST API and has one container, which never ran.
func podman(ctx context.Context, dir string) (*peer, error) {
	program, err := exec.LookPath("podman")
	if err != nil {
		return nil, err
	}
	if dir, err = os.MkdirTemp(dir, "pod"); err != nil {
		return nil, err
	}
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(rootfs, 0o700); err != nil {
		return nil, err
	}
	prefix := []string{
		"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
	}
	create := exec.CommandContext(ctx, program, append(prefix, "create", "--name", "bench", "--network", "none", "--log-driver", "none",
		"--env", "PORT=8080", "--label", "role=web", "--rootfs", rootfs, "/guest")...)
	if said, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("podman create: %w: %.300s", err, strings.TrimSpace(string(said)))
	}
	socket := filepath.Join(dir, "sock")
	return &peer{
		name: partPodman, network: "unix", address: socket,
		request: []byte("GET /v4.0.0/libpod/containers/bench/json HTTP/1.1\r\nHost: d\r\n\r\n"),
		cmd:     exec.Command(program, append(prefix, "system", "service", "--time", "0", "unix://"+socket)...), //nolint:noctx // down ends it
		remove: func() error {
			rm := exec.Command(program, append(prefix, "rm", "--force", "bench")...) //nolint:noctx // also after an interruption
			if said, err := rm.CombinedOutput(); err != nil {
				return fmt.Errorf("podman rm: %w: %.300s", err, said)
			}
			return nil
		},
	}, nil
}

// compare asks the peers what hangar was asked, as many clients at once. A peer that
// does not run here becomes a line of the report.
func (b *bench) compare(ctx context.Context, p *platform) error {
	body, err := once(ctx, "tcp", p.addr, p.request(http.MethodGet, p.refs[0].path(), nil))
	if err != nil {
		return err
	}
	for name, make := range map[string]func() (*peer, error){
		partNginx:  func() (*peer, error) { return nginx(ctx, b.dir, body) },
		partPodman: func() (*peer, error) { return podman(ctx, b.dir) },
	} {
		if b.options.skip.Has(name) {
			continue
		}
		other, err := make()
		if err == nil {
			err = b.comparePeer(ctx, other)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.notes = append(b.notes, "no "+name+": "+strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	return nil
}

func (b *bench) comparePeer(ctx context.Context, p *peer) (err error) {
	defer func() { err = errors.Join(err, p.down()) }()
	if err := p.up(ctx); err != nil {
		return err
	}
	next := func(int) []byte { return p.request }
	if _, err := drive(ctx, p.network, p.address, b.options.clients, b.options.span/5, next); err != nil {
		return err
	}
	r, err := cost(p.processes, func() (*load, error) {
		return drive(ctx, p.network, p.address, b.options.clients, b.options.span, next)
	})
	if err != nil {
		return err
	}
	if r.load.failed > 0 {
		return fmt.Errorf("%d answers failed: %s", r.load.failed, r.load.first)
	}
	r.name, r.clients = p.name, b.options.clients
	progress(r)
	b.peers = append(b.peers, r)
	return nil
}
