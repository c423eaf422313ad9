package e2e

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// TestGuest: the environment of the programs of a Machine, before and after a suspend.
func TestGuest(t *testing.T) {
	p := start(t)
	m := debianMachine(t, p, "guest", func(c *hangar.MachineConfig) {
		c.Env = map[string]string{"MINE": "config", "FLY_REGION": "xyz"}
		c.Metadata = map[string]string{"fly_process_group": "worker"}
		c.Guest = &hangar.Guest{CPUs: 1, MemoryMB: 512}
	})
	now, err := p.c.Machine(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("environment", func(t *testing.T) {
		want := map[string]string{"HOME": "/root", "MINE": "config", "PATH": strings.TrimPrefix(software.Path[0], "PATH=")}
		for name, value := range map[string]string{
			"APP_NAME": "e2e", "MACHINE_ID": string(m.ref.ID), "ALLOC_ID": string(m.ref.ID), "MACHINE_VERSION": string(now.InstanceID),
			"REGION": "loc", "IMAGE_REF": p.reference("guest:1"), "PRIVATE_IP": m.ip, "PROCESS_GROUP": "worker", "VM_MEMORY_MB": "512",
		} {
			want["FLY_"+name], want["PLATFORM_"+name] = value, value
		}
		got := map[string]string{}
		for line := range strings.SplitSeq(m.exec(t, "sh", "-c", "tr '\\0' '\\n' </proc/2/environ"), "\n") {
			if name, value, ok := strings.Cut(line, "="); ok && !strings.HasSuffix(name, "_PUBLIC_IP") { // only where the server has one
				got[name] = value
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("environment of the main process:\n%v, want\n%v", got, want)
		}
	})
	look := func(t *testing.T) map[string]string {
		t.Helper()
		const script = `
echo "hostname: $(hostname) $(cat /etc/hostname) $(uname -n)"
echo "hosts: $(tr '\n\t' '; ' </etc/hosts)"
echo "6pn: $(getent ahostsv6 fly-local-6pn | head -1 | cut -d' ' -f1) $(getent ahostsv6 platform-local-6pn | head -1 | cut -d' ' -f1)"
echo "global: $(getent ahostsv4 fly-global-services | head -1 | cut -d' ' -f1) $(getent ahostsv4 platform-global-services | head -1 | cut -d' ' -f1)"
echo "ipv4: $(ip -4 -o addr show dev eth0 | awk '{print $4}' | cut -d/ -f1)"
echo "ipv6: $(ip -6 -o addr show dev eth0 scope global | awk '{print $4}')"
echo "mtu: $(ip -o link show dev eth0 | grep -o 'mtu [0-9]*' | cut -d' ' -f2)"
echo "files: $(awk '/Max open files/ {print $4}' /proc/2/limits)"
for d in /dev/shm /dev/mqueue /dev/pts /proc /sys /.fly /.platform; do
	echo "mount $d: $(awk -v d=$d '$2 == d {print $3, substr($4, 1, 2)}' /proc/mounts)"
done
for f in /root /run /run/lock /tmp /dev/shm /.fly; do echo "mode $f: $(stat -c '%a %u:%g %F' $f)"; done
for l in /dev/fd /dev/stdin /dev/stdout /dev/stderr; do echo "link $l: $(readlink $l)"; done
for d in null zero full random urandom tty ptmx; do test -e /dev/$d || echo "device $d: missing"; done
echo "shm: $(echo x >/dev/shm/a && cat /dev/shm/a && rm /dev/shm/a)"
echo "pid 1: $(cat /proc/1/comm)"
`
		found := map[string]string{}
		for line := range strings.Lines(m.exec(t, "sh", "-c", script)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			found[name] = value
		}
		return found
	}
	before := look(t)
	ipv4, err := netip.ParseAddr(before["ipv4"])
	if err != nil || !ipv4.IsPrivate() {
		t.Errorf("eth0 has the IPv4 address %q", before["ipv4"])
	}
	id := string(m.ref.ID)
	for name, want := range map[string]string{
		"hostname": id + " " + id + " " + id,
		"hosts": "192.0.2.7 legacy-database;127.0.0.1 localhost;::1 localhost ip6-localhost ip6-loopback;" +
			fmt.Sprintf("%s fly-global-services platform-global-services;%s %s fly-local-6pn platform-local-6pn;", ipv4, m.ip, id),
		"6pn": m.ip + " " + m.ip, "global": ipv4.String() + " " + ipv4.String(), "ipv6": m.ip + "/112", "mtu": "1420", "files": "10240",
		"mount /dev/shm": "tmpfs rw", "mount /dev/mqueue": "mqueue rw", "mount /dev/pts": "devpts rw", "mount /proc": "proc rw", "mount /sys": "sysfs rw",
		"mode /root": "755 0:0 directory", // as the image has it
		"mode /run":  "755 0:0 directory", "mode /run/lock": "1777 0:0 directory", "mode /tmp": "1777 0:0 directory", "mode /dev/shm": "1777 0:0 directory",
		"mode /.fly":   "755 0:0 directory",
		"link /dev/fd": "/proc/self/fd", "link /dev/stdin": "/proc/self/fd/0", "link /dev/stdout": "/proc/self/fd/1", "link /dev/stderr": "/proc/self/fd/2",
		"shm": "x", "pid 1": "init",
	} {
		if before[name] != want {
			t.Errorf("%s: %q, want %q", name, before[name], want)
		}
	}
	for name := range before {
		if strings.HasPrefix(name, "device ") {
			t.Errorf("%s is missing", name)
		}
	}
	t.Run("UDP", func(t *testing.T) { m.answersUDP(t, ipv4) })
	m.exec(t, "sh", "-c", "echo '192.0.2.9 added' >>/etc/hosts")
	m.suspend(t)
	m.resume(t)
	after := look(t)
	before["hosts"] += "192.0.2.9 added;"
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			t.Errorf("%s: %q after a suspend, %q before", name, after[name], before[name])
		}
	}
	t.Run("API", func(t *testing.T) {
		const ask = "curl -s -o /dev/null -w '%{http_code}' --max-time 10 "
		if got := m.exec(t, "sh", "-c", ask+"http://[fdaa::3]:4280/v1/apps/e2e/machines/"+id); got != "401" {
			t.Errorf("without a token: %q", got)
		}
		if got := m.exec(t, "sh", "-c", ask+"-H 'Authorization: Bearer "+p.d.Token()+"' http://[fdaa::3]:4280/v1/apps/e2e/machines/"+id); got != "200" {
			t.Errorf("with a token: %q", got)
		}
	})
	t.Run("without anything", func(t *testing.T) { bare(t, p) })
}

// answersUDP has the Machine answer a datagram at fly-global-services, and its answer
// come from there.
func (m *machine) answersUDP(t *testing.T, ipv4 netip.Addr) {
	t.Helper()
	m.does(t, `perl -MIO::Socket::INET -e '
		my $s = IO::Socket::INET->new(Proto => "udp", LocalAddr => "fly-global-services", LocalPort => 5005) or die $@;
		$s->recv(my $got, 100); $s->send("heard $got")'`)
	conn, err := net.Dial("udp4", netip.AddrPortFrom(ipv4, 5005).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	until(t, "an answer by UDP", func() error {
		answer := make([]byte, 100)
		_, _ = conn.Write([]byte("hello")) // refused as long as there is no listener
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Read(answer)
		if err == nil && string(answer[:n]) != "heard hello" {
			err = fmt.Errorf("answered %q", answer[:n])
		}
		return err
	})
}

// bare runs an image that has nothing but its program.
func bare(t *testing.T, p *platform) {
	t.Helper()
	dir := daemon.Busybox(t, "sh", "sleep", "stat", "cat")
	m := p.run(t, "bare", hangar.MachineConfig{Image: p.d.Push(dir, "bare:1", "--cmd", "sleep", "--cmd", "100000")})
	const want = "/root 700 0:0\n/run 755 0:0\n/run/lock 1777 0:0\n/tmp 1777 0:0\n/.fly 755 0:0\n/etc/hosts 644 0:0\n"
	if got := m.exec(t, "stat", "-c", "%n %a %u:%g", "/root", "/run", "/run/lock", "/tmp", "/.fly", "/etc/hosts"); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := m.exec(t, "cat", "/etc/hosts"); !strings.HasPrefix(got, "127.0.0.1\tlocalhost\n") {
		t.Errorf("hosts: %q", got)
	}
}
