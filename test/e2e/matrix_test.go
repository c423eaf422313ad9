package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/test/e2e/reach"
)

// reachable is who reaches whom, over TCP, UDP and ICMP: T, U and I by IPv6, t, u and i
// by IPv4. Machines a and b are of two Apps in one network, c and d of two in another,
// x of another daemon on this server; gateway is this host as Machines see it, and host
// is an address of it that others use.
const reachable = `
from      to a    to b    to c    to d    to x    to gateway to host to private to internet
a         self    TUI...  ......  ......  ......  ..I..i  ......  ......  TUItui
b         TUI...  self    ......  ......  ......  ..I..i  ......  ......  TUItui
c         ......  ......  self    TUI...  ......  ..I..i  ......  ......  TUItui
d         ......  ......  TUI...  self    ......  ..I..i  ......  ......  TUItui
x         ......  ......  ......  ......  self    ......  ......  ......  TUItui
internet  ......  ......  ......  ......  ......  ......  TUItui  -       -
private   ......  ......  ......  ......  ......  ......  -       -       -
`

// The patience of attempts that are to succeed, and of those that are not.
const (
	untilReached = 20 * time.Second
	untilSilent  = 400 * time.Millisecond
)

// place is a member that reaches out and is reached.
type place struct {
	name         string
	addr6, addr4 netip.Addr
	// try makes attempts from here; nil: none are made.
	try func(t *testing.T, attempts []reach.Attempt) []reach.Outcome
}

// prober is a Machine with the program probe.
type prober struct {
	*machine
	place
}

// probeImage packs the program probe, without anything else.
func probeImage(t *testing.T) v1.Image {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "probe")
	t.Setenv("CGO_ENABLED", "0")
	local(t, "go", "build", "-o", binary, "./probe")
	img, err := ociimage.FromBinary(binary, ociimage.Config{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img.Image
}

// runProbe runs a probe in an App of its own, in a network.
func (p *platform) runProbe(t *testing.T, ref, name, network string) *prober {
	t.Helper()
	in := hangar.AppCreate{Name: hangar.AppName("probe-" + name), Org: hangar.OrgPersonal, Network: network}
	if _, err := p.c.CreateApp(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	got, err := p.c.CreateMachine(t.Context(), in.Name, hangar.MachineCreate{Name: name, Config: hangar.MachineConfig{
		Image: ref, Env: map[string]string{"PROBE_NAME": name}, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m := &prober{machine: &machine{p: p, ref: got.Ref(), ip: got.PrivateIP.String()}, place: place{name: name, addr6: got.PrivateIP}}
	m.wait(t, hangar.MachineStarted)
	m.serves(t, 8080, "/self")
	for _, a := range asked[[]netip.Addr](t, m, "/self", nil) {
		if a.Unmap().Is4() {
			m.addr4 = a.Unmap()
		}
	}
	m.try = func(t *testing.T, attempts []reach.Attempt) []reach.Outcome {
		t.Helper()
		return asked[[]reach.Outcome](t, m, "/try", attempts)
	}
	return m
}

// asked asks a probe for something, by POST if there is something to send.
func asked[T any](t *testing.T, m *prober, path string, send any) T {
	t.Helper()
	var body bytes.Buffer
	method := http.MethodGet
	if send != nil {
		method = http.MethodPost
		if err := json.NewEncoder(&body).Encode(send); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.addr(8080)+path, &body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer T
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatalf("%s of %s: %s, %v", path, m.name, res.Status, err)
	}
	return answer
}

// lab has all members that the table names.
type lab struct {
	p, other           *platform
	a, b, c, d, x      *prober
	internet, private  *outside
	places             []place
	gateway6, gateway4 netip.Addr
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{p: start(t), other: start(t)}
	image := probeImage(t)
	ref := l.p.push(t, image, "probe:1")
	l.a, l.b = l.p.runProbe(t, ref, "a", ""), l.p.runProbe(t, ref, "b", "")
	l.c, l.d = l.p.runProbe(t, ref, "c", "second"), l.p.runProbe(t, ref, "d", "second")
	l.x = l.other.runProbe(t, l.other.push(t, image, "probe:1"), "x", "")
	l.internet = newOutside(t, "internet", "198.51.100.0/30", "2001:db8:e2e::/64")
	l.private = newOutside(t, "private", "192.168.213.0/30", "fd00:e2e::/64")
	l.gateway6, l.gateway4 = gateways(t, l.a)
	for _, gateway := range []netip.Addr{l.gateway6, l.gateway4} {
		serveOnHost(t, "gateway", netip.AddrPortFrom(gateway, reach.Port))
	}
	for _, m := range []*prober{l.a, l.b, l.c, l.d, l.x} {
		l.places = append(l.places, m.place)
	}
	l.places = append(l.places,
		place{name: "gateway", addr6: l.gateway6, addr4: l.gateway4},
		place{name: "host", addr6: l.internet.host6, addr4: l.internet.host4},
		place{name: "private", addr6: l.private.addr6, addr4: l.private.addr4, try: l.private.try},
		place{name: "internet", addr6: l.internet.addr6, addr4: l.internet.addr4, try: l.internet.try},
	)
	return l
}

// gateways are the addresses of this host in the private networks: as it calls a Machine
// by IPv6, and as the Machine's next hop by IPv4.
func gateways(t *testing.T, m *prober) (six, four netip.Addr) {
	t.Helper()
	for proto, to := range map[string]netip.Addr{"udp6": m.addr6, "udp4": m.addr4} {
		out := reach.Try(t.Context(), reach.Attempt{Proto: "udp", To: netip.AddrPortFrom(to, reach.Port), Text: []byte("who am I?"), Patience: untilReached})
		_, heard, ok := strings.Cut(out.Answer, " heard ")
		if !ok {
			t.Fatalf("the host does not reach a Machine by %s: %+v", proto, out)
		}
		if a := netip.MustParseAddr(heard); a.Is4() {
			four = a
		} else {
			six = a
		}
	}
	return six, four
}

var marks = []struct{ proto, six, four string }{{"tcp", "T", "t"}, {"udp", "U", "u"}, {"icmp", "I", "i"}}

// expected reads the table: by source and target, what reaches.
func expected(t *testing.T) map[[2]string]string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(reachable), "\n")
	targets := strings.Fields(strings.ReplaceAll(strings.TrimPrefix(lines[0], "from"), "to ", ""))
	cells := map[[2]string]string{}
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		if len(words) != len(targets)+1 {
			t.Fatalf("%d cells in %q, want %d", len(words)-1, line, len(targets))
		}
		for i, cell := range words[1:] {
			cells[[2]string{words[0], targets[i]}] = cell
		}
	}
	return cells
}

// check compares who reaches whom with the table, all sources at once.
func (l *lab) check(t *testing.T, when string) {
	t.Helper()
	want := expected(t)
	var mu sync.Mutex
	var wrong []string
	var all sync.WaitGroup
	for _, from := range l.places {
		if from.try == nil {
			continue
		}
		all.Go(func() {
			for to, found := range from.reaches(t, l.places, want) {
				if found != want[[2]string{from.name, to}] {
					mu.Lock()
					wrong = append(wrong, fmt.Sprintf("%s to %s: %s, want %s", from.name, to, found, want[[2]string{from.name, to}]))
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	slices.Sort(wrong)
	if len(wrong) > 0 {
		t.Fatalf("%s:\n%s", when, strings.Join(wrong, "\n"))
	}
	t.Logf("%s: %d pairs are as expected", when, len(want))
}

// reaches tries whom the table has for a source, and returns what was reached.
func (from place) reaches(t *testing.T, places []place, want map[[2]string]string) map[string]string {
	t.Helper()
	type cell struct {
		to   place
		mark string
	}
	var cells []cell
	var attempts []reach.Attempt
	found := map[string]string{}
	for _, to := range places {
		expect := want[[2]string{from.name, to.name}]
		if len(expect) != 2*len(marks) { // itself, or of no interest
			found[to.name] = expect
			continue
		}
		for i := range 2 * len(marks) {
			m := marks[i%len(marks)]
			c, addr := cell{to, m.six}, to.addr6
			if i >= len(marks) {
				c.mark, addr = m.four, to.addr4
			}
			a := reach.Attempt{Proto: m.proto, To: netip.AddrPortFrom(addr, reach.Port), Text: []byte("hello"), Patience: untilSilent}
			if strings.Contains(expect, c.mark) {
				a.Patience = untilReached
			}
			cells, attempts = append(cells, c), append(attempts, a)
		}
	}
	for i, out := range from.try(t, attempts) {
		c, mark := cells[i], "."
		switch {
		case !out.Reached:
		case attempts[i].Proto == "icmp" || from.isHeardBy(c.to, out.Answer):
			mark = c.mark
		default:
			t.Errorf("%s to %s: another one answers %q", from.name, c.to.name, out.Answer)
			mark = "!"
		}
		found[c.to.name] += mark
	}
	return found
}

// isHeardBy reports whether an answer is of whom it was expected from. Within a network
// the caller is known by its address.
func (from place) isHeardBy(to place, answer string) bool {
	name, heard, ok := strings.Cut(answer, " heard ")
	return ok && name == to.name && (!strings.HasPrefix(heard, "fdaa:") || heard == from.addr6.String())
}

// checkServices: from every network the platform's ports are reached and the others
// are not, at each address that the platform has there.
func (l *lab) checkServices(t *testing.T) {
	t.Helper()
	// Who serves does not matter here. Where the platform does itself, these find the
	// address in use.
	for _, at := range []netip.AddrPort{
		netip.AddrPortFrom(l.gateway6, hangar.ServicesDNSPort), netip.AddrPortFrom(l.gateway4, hangar.ServicesDNSPort),
		netip.AddrPortFrom(l.gateway6, hangar.ServicesAPIPort),
	} {
		s, err := reach.Serve("services", at)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
		case err != nil:
			t.Fatal(err)
		default:
			t.Cleanup(func() { s.Close() })
		}
	}
	api := netip.MustParseAddrPort(l.p.d.Addr()).Port()
	question := []byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1} // the name servers of the root
	type service struct {
		proto string
		to    netip.AddrPort
		open  bool
	}
	for _, m := range []*prober{l.a, l.c} {
		withNetwork := hangar.ServicesAddress.As16()
		own := m.addr6.As16()
		copy(withNetwork[2:6], own[2:6])
		var all []service
		for _, at := range []netip.Addr{hangar.ServicesAddress, netip.AddrFrom16(withNetwork), l.gateway6, l.gateway4} {
			all = append(all,
				service{"tcp", netip.AddrPortFrom(at, hangar.ServicesDNSPort), true},
				service{"udp", netip.AddrPortFrom(at, hangar.ServicesDNSPort), true},
				service{"tcp", netip.AddrPortFrom(at, api), false},
				service{"tcp", netip.AddrPortFrom(at, reach.Port), false},
				service{"udp", netip.AddrPortFrom(at, reach.Port), false},
			)
			if at.Is6() {
				all = append(all, service{"tcp", netip.AddrPortFrom(at, hangar.ServicesAPIPort), true},
					service{"udp", netip.AddrPortFrom(at, hangar.ServicesAPIPort), false})
			}
		}
		var attempts []reach.Attempt
		for _, s := range all {
			a := reach.Attempt{Proto: s.proto, To: s.to, Text: question, Patience: untilSilent}
			if s.open {
				a.Patience = untilReached
			}
			attempts = append(attempts, a)
		}
		for i, out := range m.try(t, attempts) {
			// A connection to a server that waits for a question is one, too.
			if out.Reached != all[i].open {
				t.Errorf("%s to %s %s: %+v", m.name, all[i].proto, all[i].to, out)
			}
		}
	}
}

// checkForgeries: packets with a forged source do not arrive. Each forger's own name, sent after
// it, does.
func (l *lab) checkForgeries(t *testing.T, round string) {
	t.Helper()
	unused := l.a.addr6.As16() // of the same network and host, a number that no Machine has
	unused[10], unused[11] = 0x7f, 0xff
	forgeries := []struct {
		by     *prober
		as, to netip.Addr
		forged bool
	}{
		{l.a, l.d.addr6, l.c.addr6, true},
		{l.c, l.a.addr6, l.b.addr6, true},
		{l.c, netip.AddrFrom16(unused), l.b.addr6, true},
		{l.a, netip.AddrFrom16(unused), l.b.addr6, true},
		{l.a, l.gateway6, l.b.addr6, true},
		{l.x, l.a.addr6, l.b.addr6, true},
		{l.x, l.gateway6, l.b.addr6, true},
		{l.a, l.b.addr4, l.internet.addr4, true},
		{l.a, l.internet.host4, l.internet.addr4, true},
		{l.a, l.b.addr6, l.internet.addr6, true},
		{l.a, l.internet.host6, l.internet.addr6, true},
		{l.a, l.a.addr6, l.b.addr6, false},
		{l.a, l.a.addr6.Next(), l.b.addr6, false}, // all of a /112 is the Machine's own
		{l.c, l.c.addr6, l.d.addr6, false},
		{l.a, l.a.addr4, l.internet.addr4, false},
		{l.a, l.a.addr6, l.internet.addr6, false},
	}
	text := func(i int) string { return fmt.Sprintf("%s: %d", round, i) }
	send := func(forged bool) {
		for i, f := range forgeries {
			if f.forged != forged {
				continue
			}
			out := f.by.try(t, []reach.Attempt{{
				Proto: "forged", From: f.as, To: netip.AddrPortFrom(f.to, reach.Port), Text: []byte(text(i)), Patience: untilSilent,
			}})
			if out[0].Err != "" {
				t.Fatalf("%s as %s to %s: %s", f.by.name, f.as, f.to, out[0].Err)
			}
		}
	}
	heard := func() string {
		all := l.internet.server.Heard()
		for _, m := range []*prober{l.a, l.b, l.c, l.d, l.x} {
			all = append(all, asked[[]string](t, m, "/heard", nil)...)
		}
		return strings.Join(all, "\n") + "\n"
	}
	send(true)
	until(t, "honest senders to be heard", func() error {
		send(false)
		all := heard()
		for i, f := range forgeries {
			if !f.forged && !strings.Contains(all, text(i)+" from ") {
				return fmt.Errorf("%s to %s is not heard", f.by.name, f.to)
			}
		}
		return nil
	})
	all := heard()
	for i, f := range forgeries {
		if f.forged && strings.Contains(all, text(i)+" from ") {
			t.Errorf("%s reaches %s as %s", f.by.name, f.to, f.as)
		}
	}
}

// TestMatrix tries all pairs: at the start, after suspends, while the daemon is down, when it is
// back, and after many Machines have come and gone, which leaves nothing behind.
func TestMatrix(t *testing.T) {
	l := newLab(t)
	l.check(t, "at the start")
	l.checkServices(t)
	l.checkForgeries(t, "at the start")

	for _, m := range []*prober{l.a, l.b, l.c, l.d} {
		m.suspend(t)
	}
	for _, m := range []*prober{l.a, l.b, l.c, l.d} {
		m.resume(t)
	}
	l.check(t, "after a resume")
	l.checkForgeries(t, "after a resume")

	l.p.d.Kill()
	l.check(t, "while the daemon is down")
	l.p.d.Up()
	l.check(t, "after a kill of the daemon")
	l.checkForgeries(t, "after a kill")

	l.cycle(t)
	l.check(t, "after Machines have come and gone")
}

// cycle makes and destroys Machines in networks of their own, and compares what the
// host has before and after.
func (l *lab) cycle(t *testing.T) {
	t.Helper()
	dir, id := l.p.d.Dir(), instance(t, l.p.d)
	network := func() map[string]bool {
		found := map[string]bool{}
		spares := 0 // writable layers that are made ahead, of ever new names
		for thing := range inventory(t) {
			if strings.Contains(thing, dir+"/layers/spare/") {
				spares++
				continue
			}
			kind, _, _ := strings.Cut(thing, " ")
			if kind == "process" || !strings.Contains(thing, dir) && !strings.Contains(thing, id) {
				continue // their daemon's other processes come and go
			}
			found[thing] = true
		}
		maps.Copy(found, ruleset(t, "hangar_"+id))
		found[fmt.Sprintf("%d spare layers", spares)] = true
		return found
	}
	before := network()
	const next = hangar.AppName("next")
	for i := range times(100, 10) {
		if _, err := l.p.c.CreateApp(t.Context(), hangar.AppCreate{Name: next, Org: hangar.OrgPersonal, Network: fmt.Sprintf("cycle-%d", i)}); err != nil {
			t.Fatal(err)
		}
		got, err := l.p.c.CreateMachine(t.Context(), next, hangar.MachineCreate{Config: hangar.MachineConfig{Image: l.p.reference("probe:1")}})
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{p: l.p, ref: got.Ref(), ip: got.PrivateIP.String()}
		m.wait(t, hangar.MachineStarted)
		m.destroy(t)
		if err := l.p.c.DestroyApp(t.Context(), next, true); err != nil {
			t.Fatal(err)
		}
	}
	var left, lost []string
	for range 200 { // the kernel takes devices down in its own time
		after := network()
		left, lost = without(after, before), without(before, after)
		if len(left)+len(lost) == 0 {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Errorf("left behind:\n%s\nlost:\n%s", strings.Join(left, "\n"), strings.Join(lost, "\n"))
}

// without is what is in one inventory and not in another.
func without(in, other map[string]bool) []string {
	var more []string
	for thing := range in {
		if !other[thing] {
			more = append(more, thing)
		}
	}
	slices.Sort(more)
	return more
}
