// Package software has recipes of real servers, of Debian packages, for tests that run them in Machines and use
// them with their own clients.
package software

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar/test/e2e/debian"
)

// Path is the environment of a program that finds others.
var Path = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// CacheDir is where images are kept between runs.
func CacheDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(dir, "hangar-e2e")
}

// Builder returns a builder of images, which is closed with the test.
func Builder(tb testing.TB) *debian.Builder {
	tb.Helper()
	b, err := debian.New(tb.Context(), CacheDir(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// Nginx serves files on port 80, and counts its requests at /status.
func Nginx() debian.Recipe {
	const site = `
cat >/etc/nginx/sites-available/default <<'END'
server {
	listen 80;
	listen [::]:80;
	root /var/www/html;
	keepalive_timeout 1h;
	location = /status { stub_status; }
}
END
seq 1 50000 >/var/www/html/numbers.txt
ln -sf /dev/stdout /var/log/nginx/access.log
ln -sf /dev/stderr /var/log/nginx/error.log
`
	return nginx(site)
}

// NginxStore is an nginx on port 80 that keeps the files that clients put below /kept/, serves them again, and prints its
// requests. On port 81 connections begin with a PROXY header, and it answers with the client's address.
func NginxStore() debian.Recipe {
	const site = `
cat >/etc/nginx/sites-available/default <<'END'
server {
	listen 80;
	listen [::]:80;
	root /var/www/html;
	client_max_body_size 0;
	location /kept/ {
		dav_methods PUT DELETE;
		create_full_put_path on;
	}
}
server {
	listen 81 proxy_protocol;
	listen [::]:81 proxy_protocol;
	location / { return 200 "$proxy_protocol_addr\n"; }
}
END
mkdir /var/www/html/kept
chown www-data /var/www/html/kept
echo kept >/var/www/html/kept/index.html
ln -sf /dev/stdout /var/log/nginx/access.log
ln -sf /dev/stderr /var/log/nginx/error.log
`
	return nginx(site)
}

func nginx(setup string) debian.Recipe {
	return debian.Recipe{
		Packages: []string{"nginx"}, Version: "nginx -v 2>&1 | cut -d/ -f2 | cut -d' ' -f1", Setup: setup,
		Config: v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}, Env: Path, StopSignal: "SIGQUIT"},
	}
}

// Redis serves clients on port 6379, and keeps its data in /var/lib/redis.
func Redis() debian.Recipe {
	return debian.Recipe{
		Packages: []string{"redis-server"}, Version: "redis-server --version | sed 's/.* v=\\([^ ]*\\).*/\\1/'", Setup: "chown redis /var/lib/redis",
		Config: v1.Config{
			Entrypoint: []string{"redis-server"}, Env: Path, User: "redis", WorkingDir: "/var/lib/redis",
			Cmd: []string{"--protected-mode", "no", "--bind", "*", "-::*", "--save", "3600", "1"},
		},
	}
}

// PostgreSQL serves every client as the user that it names, on port 5432 and without TLS. In the image, `pg TOOL` runs
// one of its programs.
func PostgreSQL() debian.Recipe {
	const setup = `
cluster=$(echo /etc/postgresql/*/main)
printf 'host all all all trust\nlocal all all trust\n' >"$cluster/pg_hba.conf"
printf "listen_addresses = '*'\nlogging_collector = off\n" >>"$cluster/postgresql.conf"
version=$(basename "$(dirname "$cluster")")
printf '#!/bin/sh\nexec /usr/lib/postgresql/%s/bin/postgres -D %s\n' "$version" "$cluster" >/usr/local/bin/serve
printf '#!/bin/sh\ntool=$1\nshift\nexec /usr/lib/postgresql/%s/bin/$tool "$@"\n' "$version" >/usr/local/bin/pg
chmod 755 /usr/local/bin/serve /usr/local/bin/pg
`
	return debian.Recipe{
		Packages: []string{"postgresql"}, Version: "pg postgres --version | cut -d' ' -f3", Setup: setup,
		Config: v1.Config{Cmd: []string{"serve"}, Env: append(Path, "PGUSER=postgres"), User: "postgres", StopSignal: "SIGINT"},
	}
}

// Unbound answers on port 53, by UDP and TCP, that answer.test is at 192.0.2.7.
func Unbound() debian.Recipe {
	const setup = `
cat >/etc/unbound/serve.conf <<'END'
server:
	interface: 0.0.0.0
	interface: ::0
	access-control: 0.0.0.0/0 allow
	access-control: ::0/0 allow
	chroot: ""
	username: ""
	pidfile: ""
	use-syslog: no
	local-zone: "test." static
	local-data: "answer.test. A 192.0.2.7"
END
`
	return debian.Recipe{
		Packages: []string{"unbound"}, Version: "unbound -V | sed -n '1s/Version //p'", Setup: setup,
		Config: v1.Config{Cmd: []string{"unbound", "-d", "-c", "/etc/unbound/serve.conf"}, Env: Path},
	}
}

//go:embed serve.cjs
var serve string

// Node is serve.cjs, on port 8080 of Node.js.
func Node() debian.Recipe {
	return debian.Recipe{
		Packages: []string{"nodejs", "node-ws"}, Version: "node --version | cut -dv -f2", Setup: "mkdir /app\ncat >/app/serve.cjs <<'END OF FILE'\n" + serve + "END OF FILE\n",
		Config: v1.Config{Cmd: []string{"node", "/app/serve.cjs"}, Env: Path},
	}
}
