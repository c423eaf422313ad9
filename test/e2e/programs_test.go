package e2e

import (
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

//go:embed testdata
var sources embed.FS

// program is real software, how it is packed, and how it is used.
type program struct {
	title    string // in the table
	recipe   debian.Recipe
	memoryMB int
	keeps    bool // its root file system outlives a stop
	// serves waits until the program serves a new client, and checks what it says.
	serves func(t *testing.T, m *machine)
	// session connects a client that stays.
	session func(t *testing.T, m *machine) session
	// own is the program's own check, and checks what it is, for the table.
	own    func(t *testing.T, m *machine)
	checks string
	// reopened, if set, is checked after a stop and a start.
	reopened func(t *testing.T, m *machine)
}

// image makes the image of a program, and returns the version of the software.
func (prog *program) image(t *testing.T, b *debian.Builder) (v1.Image, string) {
	t.Helper()
	if prog.recipe.Packages == nil {
		return keeperImage(t), strings.TrimPrefix(runtime.Version(), "go")
	}
	img, err := b.Build(t.Context(), prog.recipe)
	if err != nil {
		t.Fatal(err)
	}
	return img, img.Version
}

// keeperImage packs the program remember, without anything else.
func keeperImage(t *testing.T) v1.Image {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "keeper")
	buildKeeper(t, binary)
	img, err := ociimage.FromBinary(binary, ociimage.Config{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img.Image
}

func buildKeeper(t *testing.T, to string) {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	local(t, "go", "build", "-o", to, "./remember")
}

// write is shell code that makes a file of a source in testdata.
func write(source, to string) string {
	b, err := sources.ReadFile("testdata/" + source)
	if err != nil {
		panic(err) // it is embedded, or it is not
	}
	return fmt.Sprintf("mkdir -p %s\ncat >%s <<'END OF FILE'\n%s\nEND OF FILE\n", filepath.Dir(to), to, strings.TrimRight(string(b), "\n"))
}

// counts is a session with a program of testdata that counts requests.
func counts(t *testing.T, m *machine) session {
	t.Helper()
	m.serves(t, 8080, "/")
	return newHTTPSession(t, m.addr(8080), "/count", firstNumber)
}

// programs are run one after the other.
func programs() []program {
	return []program{goServer(), busybox(), base(), nginx(), redis(), postgres(), python(), node(), java()}
}

func goServer() program {
	return program{
		title: "Go server, static",
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			if body := m.serves(t, 8080, "/state"); !strings.Contains(body, `"steps":`) {
				t.Fatalf("answered %q", body)
			}
		},
		session: func(t *testing.T, m *machine) session { t.Helper(); return newLineSession(t, m.addr(7000), countLines) },
		checks:  "checksums of memory and files as of the same program outside",
		own:     compareWithTwin,
	}
}

// countLines is an exchange with a program that numbers the lines of a connection.
func countLines(s *lineSession, n int) error {
	if err := s.send("line\n"); err != nil {
		return err
	}
	return s.expect(fmt.Sprintf("%d line", n))
}

func busybox() program {
	const setup = `
mkdir -p /out/bin /out/www /out/tmp /out/proc /out/etc
chmod 1777 /out/tmp
cp /bin/busybox /out/bin/
chroot /out /bin/busybox --install -s /bin
seq 1 5000 >/out/www/index.html
printf '#!/bin/sh\nn=0\nwhile read line; do n=$((n+1)); echo "$n $line"; done\n' >/out/bin/count
printf '#!/bin/sh\nhttpd -p 8080 -h /www\nexec nc -ll -p 7000 -e /bin/count\n' >/out/bin/serve
chmod 755 /out/bin/count /out/bin/serve
`
	return program{
		title: "BusyBox",
		recipe: debian.Recipe{
			Packages: []string{"busybox-static"}, Version: "busybox | sed -n '1s/BusyBox v\\([^ ]*\\).*/\\1/p'", Setup: setup, Only: "/out",
			Config: v1.Config{Cmd: []string{"/bin/serve"}, Env: []string{"PATH=/bin"}},
		},
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			if body := m.serves(t, 8080, "/index.html"); !strings.HasSuffix(body, "4999\n5000\n") {
				t.Fatalf("a file came as %d bytes", len(body))
			}
		},
		session: func(t *testing.T, m *machine) session { t.Helper(); return newLineSession(t, m.addr(7000), countLines) },
		checks:  "tar, gzip, sort, awk and checksums agree over a pipeline",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			out := m.exec(t, "sh", "-c", `set -e
				cd /tmp; mkdir -p a; seq 1 20000 >a/numbers; ln -sf numbers a/link; ln -f a/numbers a/hard
				tar czf a.tgz a; mkdir -p b; tar xzf a.tgz -C b
				[ "$(sha256sum <a/numbers)" = "$(sort -rn b/a/link | sort -n | sha256sum)" ]
				[ "$(stat -c %h b/a/hard)" = 2 ]
				awk '{s += $1} END {print s}' b/a/numbers`)
			if strings.TrimSpace(out) != "200010000" {
				t.Fatalf("the sum is %q", out)
			}
		},
	}
}

// base is a Debian system: what every other image stands on.
func base() program {
	const setup = `
cp /usr/bin/id /usr/local/bin/id-suid
chmod 4755 /usr/local/bin/id-suid
cp /usr/bin/sleep /usr/local/bin/capable
setcap cap_net_raw+ep /usr/local/bin/capable
ln /usr/local/bin/id-suid /usr/local/bin/id-suid-too
touch /etc/removed-later
`
	return program{
		title: "Debian, with Perl",
		recipe: debian.Recipe{
			Packages: []string{"base-files", "libcap2-bin"}, Version: "cat /etc/debian_version",
			Setup:  write("lines.pl", "/app/lines.pl") + write("listing.sh", "/app/listing.sh") + setup + "rm -rf /etc/removed-later /usr/share/common-licenses/BSD\nsh /app/listing.sh >/listing\n",
			Config: v1.Config{Cmd: []string{"perl", "/app/lines.pl"}, Env: software.Path},
		},
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			if err := newLineSession(t, m.addr(7000), countLines).step(); err != nil {
				t.Fatal(err)
			}
		},
		session: func(t *testing.T, m *machine) session { t.Helper(); return newLineSession(t, m.addr(7000), countLines) },
		checks:  "`dpkg --verify`; every file as it was packed: owner, mode, links, time; set-user-id",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			if out := m.exec(t, "sh", "-c", "sh /app/listing.sh >/tmp/listing; diff /listing /tmp/listing && echo same"); !strings.HasSuffix(out, "same\n") {
				t.Fatalf("files differ from those that were packed:\n%s", out)
			}
			if out := m.exec(t, "sh", "-c", "dpkg --verify coreutils libc6 perl-base dpkg bash | grep -v -e '^missing .* /usr/share/' -e ' c /' || echo clean"); !strings.Contains(out, "clean") {
				t.Fatalf("packages are damaged:\n%s", out)
			}
			if out := m.exec(t, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "id-suid"); !strings.Contains(out, "uid=65534(nobody)") || !strings.Contains(out, "euid=0(root)") {
				t.Fatalf("a program with set-user-id runs as %s", out)
			}
			if out := m.exec(t, "getcap", "/usr/local/bin/capable"); !strings.Contains(out, "cap_net_raw=ep") {
				t.Fatalf("capabilities of a file: %q", out)
			}
		},
	}
}

func nginx() program {
	requests := regexp.MustCompile(`\n \d+ \d+ (\d+) \n`)
	return program{
		title:  "nginx",
		recipe: software.Nginx(),
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			if body := m.serves(t, 80, "/numbers.txt"); len(body) != 288894 || !strings.HasSuffix(body, "\n50000\n") {
				t.Fatalf("a file came as %d bytes", len(body))
			}
		},
		session: func(t *testing.T, m *machine) session {
			t.Helper()
			m.serves(t, 80, "/numbers.txt")
			return newHTTPSession(t, m.addr(80), "/status", func(body string) (int, error) {
				found := requests.FindStringSubmatch(body)
				if found == nil {
					return 0, errors.New("no number of requests")
				}
				return strconv.Atoi(found[1])
			})
		},
		checks: "`nginx -t`, reload, and curl of a file",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			if out := m.exec(t, "nginx", "-t"); !strings.Contains(out, "test is successful") {
				t.Fatal(out)
			}
			before := m.processes(t, "nginx: worker")
			m.exec(t, "nginx", "-s", "reload")
			// Workers of before close their connections when they end: clients that
			// come later must not meet them.
			until(t, "reload", func() error {
				for pid := range m.processes(t, "nginx: worker") {
					if before[pid] {
						return fmt.Errorf("worker %d is still there", pid)
					}
				}
				return nil
			})
			if out := local(t, "curl", "--silent", "--show-error", "--fail", "--retry", "5", "--retry-connrefused", "http://"+m.addr(80)+"/numbers.txt"); len(out) != 288894 {
				t.Fatalf("curl got %d bytes", len(out))
			}
		},
	}
}

func redis() program {
	return program{
		title:  "Redis",
		recipe: software.Redis(),
		keeps:  true,
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			dial(t, m.addr(6379))
			if out := local(t, "redis-cli", "-h", m.ip, "SET", "greeting", "hello"); out != "OK\n" {
				t.Fatalf("SET answered %q", out)
			}
			if out := local(t, "redis-cli", "-h", m.ip, "GET", "greeting"); out != "hello\n" {
				t.Fatalf("GET answered %q", out)
			}
		},
		session: func(t *testing.T, m *machine) session {
			t.Helper()
			var client, last int
			return newLineSession(t, m.addr(6379), func(s *lineSession, n int) error {
				if err := s.send("CLIENT ID\r\nINCR counted\r\n"); err != nil {
					return err
				}
				for i, value := range []*int{&client, &last} {
					text, err := s.line()
					if err != nil {
						return err
					}
					got, err := strconv.Atoi(strings.TrimPrefix(text, ":"))
					if err != nil || n > 1 && got != *value+i {
						return fmt.Errorf("answered %q after %d: %w", text, *value, err)
					}
					*value = got
				}
				return nil
			})
		},
		checks: "`redis-benchmark`, and `redis-check-rdb` of what it saved",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			out := local(t, "redis-benchmark", "-h", m.ip, "-n", "3000", "-c", "20", "-P", "4", "-q", "-t", "set,get,incr,lpush,sadd,zadd")
			if strings.Contains(strings.ToLower(out), "error") || !strings.Contains(out, "ZADD: ") {
				t.Fatal(out)
			}
			if out := local(t, "redis-cli", "-h", m.ip, "SAVE"); out != "OK\n" {
				t.Fatalf("SAVE answered %q", out)
			}
			if out := m.exec(t, "redis-check-rdb", "/var/lib/redis/dump.rdb"); !strings.Contains(out, "RDB looks OK") {
				t.Fatal(out)
			}
		},
		reopened: func(t *testing.T, m *machine) {
			t.Helper()
			until(t, "GET after a restart", func() error {
				if out := local(t, "redis-cli", "-h", m.ip, "GET", "greeting"); out != "hello\n" {
					return fmt.Errorf("GET answered %q", out)
				}
				return nil
			})
		},
	}
}

func postgres() program {
	psql := func(m *machine) []string {
		return []string{"psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1", "--host", m.ip, "--username", "postgres"}
	}
	return program{
		title:    "PostgreSQL",
		recipe:   software.PostgreSQL(),
		keeps:    true,
		memoryMB: 512,
		serves: func(t *testing.T, m *machine) {
			t.Helper()
			until(t, "pg_isready", func() error {
				out, code, err := m.tryExec(t.Context(), "pg", "pg_isready")
				if err == nil && code != 0 {
					err = fmt.Errorf("exit code %d: %s", code, out)
				}
				return err
			})
			if out := local(t, append(psql(m), "--command", "SELECT sum(n) FROM generate_series(1, 1000) n")...); out != "500500\n" {
				t.Fatalf("psql printed %q", out)
			}
		},
		session: func(t *testing.T, m *machine) session {
			t.Helper()
			backend := ""
			return newProgramSession(t, func(s *lineSession, n int) error {
				if n == 1 {
					if err := s.send("CREATE TEMP TABLE counted AS SELECT 0 AS n;\n"); err != nil {
						return err
					}
				}
				if err := s.send("UPDATE counted SET n = n + 1 RETURNING n, pg_backend_pid();\n"); err != nil {
					return err
				}
				line, err := s.line()
				number, pid, _ := strings.Cut(line, "|")
				if err != nil || number != strconv.Itoa(n) || n > 1 && pid != backend {
					return fmt.Errorf("step %d of backend %q answered %q: %w", n, backend, line, err)
				}
				backend = pid
				return nil
			}, psql(m)...)
		},
		checks: "`pgbench`, its invariants, and `pg_amcheck`",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			m.exec(t, "pg", "createdb", "bench")
			m.exec(t, "pg", "pgbench", "--quiet", "--initialize", "--scale", "1", "bench")
			out := m.exec(t, "pg", "pgbench", "--client", "4", "--transactions", "50", "bench")
			if !strings.Contains(out, "number of transactions actually processed: 200/200") {
				t.Fatal(out)
			}
			sums := "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history) " +
				"AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches), count(*) FROM pgbench_history"
			if out := local(t, append(psql(m), "--dbname", "bench", "--command", sums)...); out != "t|200\n" {
				t.Fatalf("the sums of the benchmark differ: %q", out)
			}
			m.exec(t, "pg", "pg_amcheck", "--install-missing", "--heapallindexed", "--all")
		},
		reopened: func(t *testing.T, m *machine) {
			t.Helper()
			if out := local(t, append(psql(m), "--dbname", "bench", "--command", "SELECT count(*) FROM pgbench_history")...); out != "200\n" {
				t.Fatalf("the database has %q transactions", out)
			}
		},
	}
}

func python() program {
	return program{
		title: "Python",
		recipe: debian.Recipe{
			Packages: []string{"python3", "^libpython3[.][0-9]+-testsuite$"}, Version: "python3 --version | cut -d' ' -f2", Setup: write("count.py", "/app/count.py"),
			Config: v1.Config{Cmd: []string{"python3", "/app/count.py"}, Env: software.Path},
		},
		memoryMB: 512,
		serves:   saysAfterCount("python 3."),
		session:  counts,
		checks:   "the modules of its own regression tests for servers, select, threads, processes, mmap, archives; SQLite",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			modules := "test_select test_thread test_threading_local test_mmap test_json test_os"
			if !short() {
				modules += " test_selectors test_poll test_queue test_zipfile test_tarfile test_subprocess test_socketserver test_ftplib"
			}
			out := m.exec(t, "sh", "-c", "cd /tmp && exec python3 -m test --timeout 120 "+modules)
			if !strings.Contains(out, "Tests result: SUCCESS") {
				t.Fatal(out)
			}
			const rows = `import sqlite3; c = sqlite3.connect("/tmp/db"); c.execute("PRAGMA journal_mode=WAL"); c.execute("CREATE TABLE t(n)"); ` +
				`c.executemany("INSERT INTO t VALUES(?)", ((n,) for n in range(10000))); c.commit(); ` +
				`print(c.execute("SELECT sum(n) FROM t").fetchone()[0], c.execute("PRAGMA integrity_check").fetchone()[0])`
			if out := m.exec(t, "python3", "-c", rows); out != "49995000 ok\n" {
				t.Fatalf("SQLite says %q", out)
			}
		},
	}
}

// saysAfterCount waits for the answer of a program that counts.
func saysAfterCount(want string) func(*testing.T, *machine) {
	return func(t *testing.T, m *machine) {
		t.Helper()
		if body := m.serves(t, 8080, "/"); !strings.Contains(body, want) {
			t.Fatalf("answered %q", body)
		}
	}
}

func node() program {
	return program{
		title: "Node.js",
		recipe: debian.Recipe{
			Packages: []string{"nodejs"}, Version: "node --version | cut -dv -f2", Setup: write("count.mjs", "/app/count.mjs") + write("check.test.mjs", "/app/check.test.mjs"),
			Config: v1.Config{Cmd: []string{"node", "/app/count.mjs"}, Env: software.Path},
		},
		memoryMB: 512,
		serves:   saysAfterCount("node v"),
		session:  counts,
		checks:   "`node --test` over workers, watched files, sockets, keys, processes",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			if out := m.exec(t, "node", "--test", "/app/check.test.mjs"); !strings.Contains(out, "# fail 0") {
				t.Fatal(out)
			}
		},
	}
}

func java() program {
	return program{
		title: "OpenJDK",
		recipe: debian.Recipe{
			Packages: []string{"default-jre-headless", "ecj"}, Version: `java -version 2>&1 | sed -n 's/.*version "\(.*\)".*/\1/p'`,
			Setup:  write("Count.java", "/app/Count.java") + write("Check.java", "/app/Check.java") + "cd /app\necj -17 -proc:none -nowarn Count.java Check.java\n",
			Config: v1.Config{Cmd: []string{"java", "-Xmx128m", "-cp", "/app", "Count"}, Env: software.Path},
		},
		memoryMB: 768,
		serves:   saysAfterCount("java "),
		session:  counts,
		checks:   "`java -version`, and a program with threads, collection, mapped files, processes",
		own: func(t *testing.T, m *machine) {
			t.Helper()
			if out := m.exec(t, "java", "-version"); !strings.Contains(out, "OpenJDK") {
				t.Fatal(out)
			}
			if out := m.exec(t, "java", "-Xmx128m", "-cp", "/app", "Check"); !strings.Contains(out, "all right") {
				t.Fatal(out)
			}
		},
	}
}

// config is how a program is run.
func (prog *program) config(ref string) hangar.MachineConfig {
	c := hangar.MachineConfig{
		Image:   ref,
		Guest:   &hangar.Guest{MemoryMB: max(prog.memoryMB, 256)},
		Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
	}
	if prog.keeps {
		c.Rootfs = &hangar.RootfsConfig{Persist: hangar.PersistAlways}
	}
	return c
}
