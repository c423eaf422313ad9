package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// front is a proxy in front of the Machine, or the Machine itself.
type front struct {
	name    string
	version string
	pids    func() []int // whose processor time it costs; nil: none
	http    string       // host:port
	https   string       // empty: it has none
	tcp     string       // passes bytes through to the Machine's port 9090; empty: it cannot
}

// The names of those that are compared.
const (
	nameDirect  = "direct"
	nameHangar  = "hangar"
	nameNginx   = "nginx"
	nameHAProxy = "haproxy"
	nameCaddy   = "caddy"
)

// started waits until something takes connections.
func started(ctx context.Context, address string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// peerPlan says how a peer is started.
type peerPlan struct {
	name    string
	version []string // arguments that make it print that
	tcp     bool
	config  func(p ports, dir string, to netip.Addr) string
	args    func(config string) []string
}

// ports are where a peer listens, host:port.
type ports struct{ http, https, tcp string }

var plans = []peerPlan{ //nolint:gochecknoglobals // a constant
	{
		name: nameNginx, version: []string{"-v"},
		config: func(p ports, dir string, to netip.Addr) string {
			return fmt.Sprintf(`daemon off;
worker_processes auto;
worker_rlimit_nofile 65536;
pid %[1]s/nginx.pid;
error_log /dev/null;
events { worker_connections 16384; }
http {
  access_log off;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  keepalive_requests 100000000;
  keepalive_timeout 300s;
  map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
  upstream machine { server [%[4]s]:8080; keepalive 128; keepalive_requests 100000000; }
  server {
    listen %[2]s backlog=4096;
    listen %[3]s ssl backlog=4096;
    ssl_certificate %[1]s/cert.pem;
    ssl_certificate_key %[1]s/key.pem;
    location / {
      proxy_pass http://machine;
      proxy_http_version 1.1;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering on;
      proxy_max_temp_file_size 0;
    }
  }
}
`, dir, p.http, p.https, to)
		},
		args: func(config string) []string { return []string{"-c", config} },
	},
	{
		name: nameHAProxy, version: []string{"-v"}, tcp: true,
		config: func(p ports, dir string, to netip.Addr) string {
			return fmt.Sprintf(`global
  maxconn 6500
  tune.ssl.default-dh-param 2048
defaults
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  timeout http-keep-alive 300s
  timeout tunnel 300s
  option splice-auto
frontend web
  mode http
  bind %[2]s backlog 4096
  bind %[3]s backlog 4096 ssl crt %[1]s/both.pem alpn h2,http/1.1
  option forwardfor
  default_backend machine
backend machine
  mode http
  http-reuse always
  server machine [%[5]s]:8080
listen through
  mode tcp
  bind %[4]s
  server machine [%[5]s]:9090
`, dir, p.http, p.https, p.tcp, to)
		},
		args: func(config string) []string { return []string{"-db", "-f", config} },
	},
	{
		name: nameCaddy, version: []string{"version"},
		config: func(p ports, dir string, to netip.Addr) string {
			return fmt.Sprintf(`{
  admin off
  auto_https off
  storage file_system %[1]s
}
http://%[2]s {
  reverse_proxy [%[4]s]:8080
}
https://%[3]s {
  tls %[1]s/cert.pem %[1]s/key.pem
  reverse_proxy [%[4]s]:8080
}
`, dir, p.http, p.https, to)
		},
		args: func(config string) []string { return []string{"run", "--adapter", "caddyfile", "--config", config} },
	},
}

// startPeer starts a proxy in front of a Machine's address.
func startPeer(ctx context.Context, plan peerPlan, dir string, to netip.Addr, undo *harness.Undo) (*front, error) {
	if _, err := exec.LookPath(plan.name); err != nil {
		return nil, fmt.Errorf("%w: apt-get install nginx-light haproxy caddy, or leave it out with -skip", err)
	}
	var p ports
	for _, to := range []*string{&p.http, &p.https, &p.tcp} {
		free, err := freeport.Address(ctx)
		if err != nil {
			return nil, err
		}
		*to = free
	}
	config := filepath.Join(dir, plan.name+".conf")
	if err := os.WriteFile(config, []byte(plan.config(p, dir, to)), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(plan.name, plan.args(config)...) //nolint:noctx // undo ends it
	log, err := os.Create(filepath.Join(dir, plan.name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	undo.Add(func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		return nil
	})
	f := &front{
		name: plan.name, version: publish.Said(ctx, plan.name, plan.version...), http: p.http, https: p.https,
		pids: func() []int { return harness.Children(cmd.Process.Pid) },
	}
	if plan.tcp {
		f.tcp = p.tcp
	}
	if err := started(ctx, p.http); err != nil {
		said, _ := os.ReadFile(log.Name())
		return nil, errors.Join(err, errors.New(string(said)))
	}
	return f, started(ctx, p.https)
}

// makeCertificate writes a certificate and its key as each peer wants them.
func makeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "cert.pem"), cert, 0o600), os.WriteFile(filepath.Join(dir, "key.pem"), private, 0o600),
		os.WriteFile(filepath.Join(dir, "both.pem"), append(cert, private...), 0o600),
	)
}
