package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	for _, bad := range [][]string{{"-machines", "0"}, {"-machines", "1000,100"}, {"-machines", "x"}, {"-clients", "0"}, {"-skip", "everything"}, {"more"}} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	o, err := parse([]string{"-quick", "-skip", "podman", "-machines", "10"})
	if err != nil {
		t.Fatal(err)
	}
	if o.out != "" || !slices.Equal(o.machines, []int{10}) || !o.skip.Has(partPodman) || o.skip.Has(partNginx) {
		t.Errorf("a quick run is %+v", o)
	}
}

func TestHeading(t *testing.T) {
	for flag, want := range map[string]string{"100,1000,10000": "## API: `make bench-api`", "100,100000": "## API: 100 and 100,000 Machines"} {
		o, err := parse([]string{"-machines", flag})
		if err != nil {
			t.Fatal(err)
		}
		if got := o.heading(); got != want {
			t.Errorf("the heading of -machines %s is %q, want %q", flag, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 100_005: "100,005"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestDrive(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/long": // is sent in chunks
			fmt.Fprint(w, strings.Repeat("x", 10_000))
		case "/missing":
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, "hello")
		}
	}))
	defer server.Close()
	address := server.Listener.Addr().(*net.TCPAddr).String()
	raw := func(path string) []byte { return []byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n") }
	for _, test := range []struct {
		path          string
		bytes, failed int64
	}{{"/", 5, 0}, {"/long", 10_000, 0}, {"/missing", 19, 20}} {
		left := make(chan struct{}, 20)
		for range cap(left) {
			left <- struct{}{}
		}
		l, err := drive(t.Context(), "tcp", address, 4, time.Minute, func(int) []byte {
			select {
			case <-left:
				return raw(test.path)
			default:
				return nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.took) != 20 || l.bytes != 20*test.bytes || l.failed != test.failed {
			t.Errorf("%s: %d answers with %d bytes, %d failed", test.path, len(l.took), l.bytes, l.failed)
		}
	}
	body, err := once(t.Context(), "tcp", address, raw("/long"))
	if err != nil || len(body) != 10_000 {
		t.Errorf("once: %d bytes, %v", len(body), err)
	}
	if _, err := once(t.Context(), "tcp", address, raw("/missing")); err == nil {
		t.Error("once takes an answer of 404")
	}
}
