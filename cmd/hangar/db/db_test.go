package db

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// dialer connects to the nodes in a test's Machines.
type dialer map[hangar.MachineID]string

func (d dialer) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	address := d[ref.ID]
	if address == "" || port != defaultPort {
		return nil, fmt.Errorf("nothing listens on port %d of machine %s", port, ref.ID)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

const (
	one   hangar.MachineID = "3d8d413b29d081"
	two   hangar.MachineID = "3d8d413b29d082"
	three hangar.MachineID = "3d8d413b29d083"
)

// nodes serves a primary in Machine one, a replica in two, and nothing in three.
func nodes(t *testing.T) (dialer, []*hangar.Machine, *[]string) {
	t.Helper()
	var asked []string
	serve := func(info string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/info" {
				io.WriteString(w, info)
				return
			}
			b, _ := io.ReadAll(r.Body)
			asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+string(b))
			switch r.URL.Path {
			case "/export":
				w.Header().Set("Hangar-Db-Position", "0000000000000012/c")
				io.WriteString(w, "content")
			case "/handoff":
				io.WriteString(w, "two\n")
			default:
				http.Error(w, "no such thing", http.StatusConflict)
			}
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	d := dialer{
		one: serve(`{"isPrimary":true,"candidate":true,"capture":"tail","databases":[{"name":"app.db","txID":"0000000000000012","postApplyChecksum":"c"}]}`),
		two: serve(`{"isPrimary":false,"capture":"strict","primary":{"hostname":"one"},"databases":[{"name":"app.db","txID":"0000000000000000","diverged":true}]}`),
	}
	var machines []*hangar.Machine
	for i, id := range []hangar.MachineID{one, two, three} {
		machines = append(machines, &hangar.Machine{ID: id, App: "shop", Name: fmt.Sprint("m", i+1), Region: "ams"})
	}
	return d, machines, &asked
}

func TestStatus(t *testing.T) {
	d, machines, _ := nodes(t)
	all := ask(t.Context(), d, machines, defaultPort)
	defer closeAll(all)
	want := [][]string{
		{string(one), "m1", "ams", "primary", "", "tail", "app.db@12"},
		{string(two), "m2", "ams", "replica", "one", "strict", "app.db@0 (differs)"},
		{string(three), "m3", "ams", "no node", "", ""},
	}
	for i, s := range all {
		row := s.row()
		if i == 2 {
			if !strings.Contains(row[6], "nothing listens") {
				t.Errorf("%q", row)
			}
			row = row[:6]
		}
		if !slices.Equal(row, want[i]) {
			t.Errorf("%q, want %q", row, want[i])
		}
	}
}

func TestPrimary(t *testing.T) {
	d, machines, asked := nodes(t)
	all := ask(t.Context(), d, machines, defaultPort)
	defer closeAll(all)
	n, err := primary("shop", all)
	if err != nil || n.machine.ID != one {
		t.Fatal(n, err)
	}
	if to, err := n.change(t.Context(), "/handoff", url.Values{"nodeID": {string(two)}}); err != nil || to != "two" {
		t.Error(to, err)
	}
	if _, err := n.change(t.Context(), "/promote", nil); err == nil || !strings.Contains(err.Error(), "409 Conflict: no such thing") || !strings.Contains(err.Error(), string(one)) {
		t.Error(err)
	}
	if !slices.Equal(*asked, []string{"POST /handoff?nodeID=" + string(two) + " ", "POST /promote? "}) {
		t.Errorf("%q", *asked)
	}
	if _, err := primary("shop", all[1:]); err == nil || !strings.Contains(err.Error(), "no Machine of App shop has a primary") || !strings.Contains(err.Error(), "nothing listens") {
		t.Error(err)
	}
}

func TestExport(t *testing.T) {
	d, machines, _ := nodes(t)
	n := newNode(d, machines[0], defaultPort)
	defer n.close()
	resp, err := n.call(t.Context(), http.MethodGet, "/export", url.Values{"name": {"app.db"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "content" {
		t.Errorf("%q %v", b, err)
	}
}
