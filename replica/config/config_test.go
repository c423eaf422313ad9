package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica/config"
)

func env(name string) string {
	return map[string]string{"REGION": "ams", "PRIMARY_REGION": "ams", "HOST": "m1"}[name]
}

func TestParse(t *testing.T) {
	c, err := config.Parse([]byte(`
fuse:
  dir: "/data"
data:
  dir: "/var/lib/db"
  retention: 1h
exec:
  - cmd: "migrate"
    if-candidate: true
  - cmd: "serve $HOST"
lease:
  type: "static"
  hostname: "${HOST}"
  advertise-url: "http://${HOST}.internal:20202"
  candidate: ${REGION == PRIMARY_REGION}
proxy:
  addr: ":8080"
  target: "localhost:8081"
  db: app.db
  max-lag: 3s
  passthrough: ["*.css"]
backup:
  type: file
  path: /srv/backup/
  retention: 48h
`), env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Fuse.Dir != "/data" || c.HTTP.Addr != config.DefaultAddr || c.Data.Retention != time.Hour || !c.Candidate() ||
		c.Lease.Hostname != "m1" || c.Lease.AdvertiseURL != "http://m1.internal:20202" ||
		len(c.Exec) != 2 || !c.Exec[0].IfCandidate || c.Exec[1].Cmd != "serve m1" {
		t.Errorf("%+v", c)
	}
	if p := c.Proxy; p.Target != "localhost:8081" || p.MaxLag != 3*time.Second || p.RedirectTimeout != 5*time.Second ||
		p.IdleTimeout != 30*time.Second || len(p.Passthrough) != 1 {
		t.Errorf("%+v", p)
	}
	if b := c.Backup; b.URL != "file:///srv/backup" || b.Delay != time.Second || b.Retention != 48*time.Hour || b.Exact != 24*time.Hour {
		t.Errorf("%+v", b)
	}
}

// TestEtcd reads the keys of an election.
func TestEtcd(t *testing.T) {
	c, err := config.Parse([]byte(`
sync: 1
sync-timeout: 3s
lease:
  type: etcd
  advertise-url: "http://${HOST}.internal:20202"
  etcd: {endpoints: ["http://etcd:2379"], prefix: /apps/x, ttl: 3s, lock-delay: 500ms, username: u, password: p}
tls: {cert: c.pem, key: k.pem, ca: ca.pem}
`), env, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := c.Lease.Etcd
	if c.Sync != 1 || c.SyncTimeout != 3*time.Second || len(e.Endpoints) != 1 || e.Prefix != "/apps/x" || e.TTL != 3*time.Second ||
		e.LockDelay != 500*time.Millisecond || e.Username != "u" || e.Password != "p" || c.TLS.CA != "ca.pem" || !c.Candidate() {
		t.Errorf("%+v", c)
	}
}

// TestInMachine: in a Machine the platform keeps the lease, unless the file says otherwise.
func TestInMachine(t *testing.T) {
	m := &config.Machine{App: "web", ID: "d8912340000001"}
	const inside, own = "http://d8912340000001.vm.web.internal:20202", "http://own:1"
	for text, want := range map[string]struct{ kind, hostname, url string }{
		`{}`:                               {"platform", m.ID, inside},
		`{lease: {type: platform}}`:        {"platform", m.ID, inside},
		`{http: {addr: "127.0.0.1:7000"}}`: {"platform", m.ID, "http://d8912340000001.vm.web.internal:7000"},
		`{tls: {cert: c, key: k}}`:         {"platform", m.ID, "https://d8912340000001.vm.web.internal:20202"},
		`{lease: {hostname: h, advertise-url: "http://own:1", platform: {election: two, ttl: 3s}}}`: {"platform", "h", own},
		`{lease: {type: static}}`: {"static", "", ""},
		`{lease: {type: etcd, advertise-url: "http://own:1", etcd: {endpoints: [x]}}}`: {"etcd", "", own},
	} {
		c, err := config.Parse([]byte(text), env, m)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := c.Lease; got.Type != want.kind || got.Hostname != want.hostname || got.AdvertiseURL != want.url {
			t.Errorf("%s: %+v", text, got)
		}
	}
	for _, text := range []string{`{lease: {consul: {key: x}}}`, `{lease: {etcd: {endpoints: [x]}}}`} {
		if _, err := config.Parse([]byte(text), env, m); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// TestRefused: every unsupported key is refused by its name.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`lease: {type: consul, consul: {url: "http://x"}}`: "lease.type: consul",
		`fuse: {dir: /x}`:                                 "lease.type is missing",
		`{lease: {type: static, promote: true}}`:          "lease.promote",
		`{lease: {type: static, candidate: false}}`:       "lease.advertise-url",
		`{lease: {type: static}, proxy: {addr: ":8080"}}`: "proxy.target is missing",
		`{lease: {type: static}, backup: {type: file}}`:   "backup.url is missing",

		`{lease: {type: static}, proxy: {target: "a:1"}}`:                                       "proxy.addr is missing",
		`{lease: {type: static}, proxy: {addr: ":1", target: "a", db: x}}`:                      "not a host:port",
		`{lease: {type: static}, proxy: {addr: ":1", target: "a:1"}}`:                           "proxy.db is missing",
		`{lease: {type: static}, proxy: {addr: ":1", target: "a:1", db: x, idle-timeout: -1s}}`: "proxy.idle-timeout",
		`{lease: {type: static}, backup: {type: litefs-cloud}}`:                                 "backup.type",
		`{lease: {type: static}, backup: {type: s3, url: "file:///x"}}`:                         "backup.type",
		`{lease: {type: static}, backup: {path: x}}`:                                            "must be absolute",
		`{lease: {type: static}, backup: {path: /x, url: "s3://b"}}`:                            "remove one",
		`{lease: {type: static}, backup: {url: "http://b"}}`:                                    "must be file or s3",
		`{lease: {type: static}, backup: {url: "s3://b", delay: 0s}}`:                           "must be positive",
		`{lease: {type: static}, backup: {url: "s3://b", exact: 48h, retention: 24h}}`:          "backup.exact",
		`{lease: {type: static}, tracing: {enabled: true}}`:                                     "tracing",
		`{lease: {type: static}, data: {compress: false}}`:                                      "data.compress",
		`{lease: {type: static}, data: {retention: -1s}}`:                                       "data.retention",
		`{lease: {type: static}, capture: often}`:                                               "capture",
		`{lease: {type: static}, log: {format: xml}}`:                                           "log.format",
		`{lease: {type: static}, skip-sync: true}`:                                              "skip-sync",
		`{lease: {type: static}, fuse: {dirr: /x}}`:                                             "dirr",
		`{lease: {type: static, databases: [a]}}`:                                               "lease.databases",
		`{lease: {type: static}, exec: [{cmd: " "}]}`:                                           "exec",
		`{lease: {type: raft}}`:                                                                 "raft",
		`{lease: {type: static, consul: {key: x}}}`:                                             "lease.consul",

		`{lease: {type: etcd, advertise-url: "http://a"}}`:                                 "lease.etcd.endpoints",
		`{lease: {type: etcd, etcd: {endpoints: [x]}}}`:                                    "lease.advertise-url",
		`{lease: {type: static, etcd: {endpoints: [x]}}}`:                                  "lease.etcd",
		`{lease: {type: etcd, advertise-url: u, etcd: {endpoints: [x], ttl: 10ms}}}`:       "lease.etcd.ttl",
		`{lease: {type: etcd, advertise-url: u, etcd: {endpoints: [x], lock-delay: -1s}}}`: "lease.etcd.lock-delay",
		`{lease: {type: platform}}`:                                                        "lease.advertise-url",
		`{lease: {type: platform, advertise-url: u, platform: {ttl: 2m}}}`:                 "lease.platform.ttl",
		`{lease: {type: platform, advertise-url: u, platform: {ttl: 10ms}}}`:               "lease.platform.ttl",
		`{lease: {type: platform, advertise-url: u, etcd: {endpoints: [x]}}}`:              "lease.etcd",
		`{lease: {type: static, platform: {election: x}}}`:                                 "lease.platform",
		`{lease: {type: static}, sync: -1}`:                                                "sync",
		`{lease: {type: static}, sync: 1, capture: tail}`:                                  "sync",
		`{lease: {type: static}, tls: {cert: a}}`:                                          "tls: cert and key",
		`{lease: {type: static}, tls: {ca: a}}`:                                            "tls.ca",
	} {
		if _, err := config.Parse([]byte(text), env, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
