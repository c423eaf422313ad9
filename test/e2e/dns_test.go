package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// resolvers is a Debian system with the resolvers of glibc and musl, and dig.
func (p *platform) resolvers(t *testing.T) string {
	t.Helper()
	img := build(t, debian.Recipe{
		Packages: []string{"bind9-dnsutils", "musl-tools"},
		Setup:    write("resolve.c", "/src/resolve.c") + "musl-gcc -static -o /usr/local/bin/resolve-musl /src/resolve.c\n",
		Version:  "dig -v 2>&1",
		Config:   v1.Config{Cmd: []string{"sleep", "infinity"}, Env: software.Path},
	})
	return p.push(t, img, "resolvers:1")
}

// goResolver is an image of the program resolve.
func (p *platform) goResolver(t *testing.T) string {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	binary := filepath.Join(t.TempDir(), "resolve")
	local(t, "go", "build", "-o", binary, "./resolve")
	img, err := ociimage.FromBinary(binary, ociimage.Config{TempDir: t.TempDir(), Cmd: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return p.push(t, img, "resolve:1")
}

// TestDNS looks up names in Machines, with the resolvers that programs have.
func TestDNS(t *testing.T) {
	p := start(t)
	debianRef, goRef := p.resolvers(t), p.goResolver(t)
	m := p.run(t, "debian", hangar.MachineConfig{Image: debianRef})
	g := p.run(t, "go", hangar.MachineConfig{Image: goRef})
	other := hangar.AppName("e2e-other")
	if _, err := p.c.CreateApp(t.Context(), hangar.AppCreate{Name: other, Org: hangar.OrgPersonal, Network: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	created, err := p.c.CreateMachine(t.Context(), other, hangar.MachineCreate{Config: hangar.MachineConfig{Image: goRef}})
	if err != nil {
		t.Fatal(err)
	}
	foreign := &machine{p: p, ref: created.Ref(), ip: created.PrivateIP.String()}
	foreign.wait(t, hangar.MachineStarted)

	all := []string{m.ip, g.ip}
	slices.Sort(all)
	internal := string(app) + ".internal"
	of := func(m *machine) string { return string(m.ref.ID) + ".vm." + string(m.ref.App) + ".internal" }
	lines := func(out string) []string {
		out = strings.TrimSpace(out)
		if out == "" {
			return nil
		}
		found := strings.Split(out, "\n")
		slices.Sort(found)
		return slices.Compact(found)
	}

	t.Run("resolv.conf", func(t *testing.T) {
		if got := m.exec(t, "cat", "/etc/resolv.conf"); got != "nameserver fdaa::3\n" {
			t.Errorf("%q", got)
		}
	})
	for _, c := range []struct {
		title   string
		machine *machine
		command []string
	}{
		{"dig", m, []string{"dig", "+short", "AAAA"}},
		{"dig over TCP", m, []string{"dig", "+tcp", "+short", "AAAA"}},
		{"musl", m, []string{"resolve-musl"}},
		{"glibc", m, []string{"sh", "-c", "getent ahostsv6 $0 | cut -d ' ' -f 1"}},
		{"Go", g, []string{"/resolve"}},
	} {
		t.Run(c.title, func(t *testing.T) {
			for name, want := range map[string][]string{internal: all, of(g): {g.ip}, of(m): {m.ip}, "_api.internal": {"fdaa::3"}} {
				if got := lines(c.machine.exec(t, append(slices.Clone(c.command), name)...)); !slices.Equal(got, want) {
					t.Errorf("%s: %q, not %q", name, got, want)
				}
			}
			for _, name := range []string{of(foreign), string(other) + ".internal", "none.internal"} {
				out, _, err := c.machine.tryExec(t.Context(), append(slices.Clone(c.command), name)...)
				if err != nil || strings.Contains(out, "fdaa:0") {
					t.Errorf("%s: %q, %v", name, out, err)
				}
			}
		})
	}
	t.Run("text", func(t *testing.T) {
		want := strconv.Quote(string(app))
		if got := strings.TrimSpace(m.exec(t, "dig", "+short", "TXT", "_apps.internal")); got != want {
			t.Errorf("%q, not %q", got, want)
		}
		if got := m.exec(t, "dig", "+short", "-x", g.ip); got != of(g)+".\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("over IPv4", func(t *testing.T) {
		gateway := strings.Fields(m.exec(t, "sh", "-c", `awk '$2 == "00000000" {print $3}' /proc/net/route`))[0]
		var parts []string
		for i := len(gateway) - 2; i >= 0; i -= 2 { // the kernel's order of bytes
			b, err := strconv.ParseUint(gateway[i:i+2], 16, 8)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, strconv.FormatUint(b, 10))
		}
		if got := lines(m.exec(t, "dig", "+short", "AAAA", internal, "@"+strings.Join(parts, "."))); !slices.Equal(got, all) {
			t.Errorf("%q, not %q", got, all)
		}
	})
	t.Run("the other network", func(t *testing.T) {
		if got := lines(foreign.exec(t, "/resolve", of(foreign))); !slices.Equal(got, []string{foreign.ip}) {
			t.Errorf("%q", got)
		}
		for _, name := range []string{internal, of(m)} {
			if out, code, err := foreign.tryExec(t.Context(), "/resolve", name); err != nil || code == 0 {
				t.Errorf("%s: %q, %v", name, out, err)
			}
		}
	})
	t.Run("names follow at once", func(t *testing.T) { followNames(t, p, m, g, of(m)) })
	t.Run("flood", func(t *testing.T) {
		floodNames(t, p, g, p.run(t, "flooder", hangar.MachineConfig{Image: goRef}), of(m))
	})
	t.Run("daemon killed", func(t *testing.T) {
		p.d.Kill()
		p.d.Up()
		until(t, "names after a restart", func() error {
			out, code, err := g.tryExec(t.Context(), "/resolve", of(m))
			if err == nil && (code != 0 || strings.TrimSpace(out) != m.ip) {
				err = fmt.Errorf("code %d, %q", code, out)
			}
			return err
		})
	})
}

// followNames watches the name of a Machine from another one while it is stopped and
// started.
func followNames(t *testing.T, p *platform, m, watcher *machine, name string) {
	t.Helper()
	rounds := times(20, 5)
	r, w := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := p.c.ExecMachine(ctx, watcher.ref,
			hangar.ExecRequest{Command: []string{"/resolve", "watch", name, strconv.Itoa(2 * rounds)}}, hangar.ExecStreams{Stdout: w})
		_ = w.CloseWithError(err)
		ended <- err
	}()
	changes := bufio.NewReader(r)
	next := func() (at time.Time, there bool) {
		t.Helper()
		line, err := changes.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		number, addrs, _ := strings.Cut(strings.TrimSpace(line), " ")
		ns, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Unix(0, ns), addrs != ""
	}
	if _, there := next(); !there {
		t.Fatal("the name is not there at first")
	}
	var appeared, vanished []time.Duration
	for range rounds {
		m.stop(t)
		gone, there := next()
		if there {
			t.Fatal("another address")
		}
		vanished = append(vanished, gone.Sub(m.since(t, "stopping")))
		m.start(t)
		back, there := next()
		if !there {
			t.Fatal("two names vanished")
		}
		appeared = append(appeared, back.Sub(m.since(t, hangar.MachineStarted)))
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	slices.Sort(appeared)
	slices.Sort(vanished)
	t.Logf("appeared after %s (median), %s at most; vanished after %s, %s at most",
		appeared[rounds/2], appeared[rounds-1], vanished[rounds/2], vanished[rounds-1])
	// It takes some 10 ms. What polls, or waits for an answer to expire, takes seconds.
	const goal = 500 * time.Millisecond
	if appeared[rounds/2] > goal || vanished[rounds/2] > goal {
		t.Errorf("names follow after %s and %s", appeared[rounds/2], vanished[rounds/2])
	}
}

// floodNames asks from one Machine while another one asks as much as it can.
func floodNames(t *testing.T, p *platform, asker, flooder *machine, name string) {
	t.Helper()
	lookups := strconv.Itoa(times(5000, 1000))
	measure := func() (half, p99 time.Duration) {
		t.Helper()
		if _, err := fmt.Sscan(asker.exec(t, "/resolve", "time", name, lookups), (*int64)(&half), (*int64)(&p99)); err != nil {
			t.Fatal(err)
		}
		return half, p99
	}
	measure()
	half, p99 := measure()
	beside := func(command ...string) (half, p99 time.Duration) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = p.c.ExecMachine(ctx, flooder.ref, hangar.ExecRequest{Command: command}, hangar.ExecStreams{})
		}()
		half, p99 = measure()
		cancel()
		<-ended
		return half, p99
	}
	// A Machine that floods takes its processors, too; what one takes that does not
	// flood is no fault of the name server.
	spinHalf, spinP99 := beside("/resolve", "spin")
	floodHalf, floodP99 := beside("/resolve", "flood", name)
	t.Logf("half of the lookups took up to %s, 99 of 100 up to %s; beside a Machine that is busy %s and %s; beside one that floods %s and %s",
		half, p99, spinHalf, spinP99, floodHalf, floodP99)
}

// since is when the Machine last came to be in a state.
func (m *machine) since(t *testing.T, state hangar.MachineState) time.Time {
	t.Helper()
	got, err := m.p.c.Machine(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got.Events {
		if e.Type.Transits() && e.Status == string(state) {
			return time.UnixMilli(e.Timestamp)
		}
	}
	t.Fatalf("it was never %s: %s", state, describe(got))
	return time.Time{}
}
