package certs_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/certs"
)

// refusing is an ACME server (RFC 8555) that notes what is ordered, and refuses it.
type refusing struct {
	*httptest.Server

	mu     sync.Mutex
	orders map[string]int // by name
}

func newRefusing(t *testing.T) *refusing {
	t.Helper()
	r := &refusing{orders: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"newNonce": r.URL + "/nonce", "newAccount": r.URL + "/account", "newOrder": r.URL + "/order"})
	})
	mux.HandleFunc("/nonce", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /account", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", r.URL+"/account/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"status":"valid"}`))
	})
	mux.HandleFunc("POST /order", func(w http.ResponseWriter, req *http.Request) {
		var signed struct {
			Payload string `json:"payload"`
		}
		var order struct {
			Identifiers []struct {
				Value string `json:"value"`
			} `json:"identifiers"`
		}
		err := json.NewDecoder(req.Body).Decode(&signed)
		if err == nil {
			var raw []byte
			if raw, err = base64.RawURLEncoding.DecodeString(signed.Payload); err == nil {
				err = json.Unmarshal(raw, &order)
			}
		}
		if err != nil || len(order.Identifiers) != 1 {
			t.Errorf("order %+v, %v", order, err)
			return
		}
		r.mu.Lock()
		r.orders[order.Identifiers[0].Value]++
		r.mu.Unlock()
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"type":"urn:ietf:params:acme:error:rejectedIdentifier","detail":"not for you"}`))
	})
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Replay-Nonce", fmt.Sprintf("nonce%d", time.Now().UnixNano()))
		mux.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

// ordered counts the orders for names with an end.
func (r *refusing) ordered(end string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, orders := range r.orders {
		if strings.HasSuffix(name, end) {
			n += orders
		}
	}
	return n
}

// limits are those of the tests: nothing comes back while one runs.
func limits(account, org, domain, own, name int) certs.Limits {
	of := func(n int) certs.Limit { return certs.Limit{N: n, Per: 1000 * time.Hour} }
	return certs.Limits{Account: of(account), Org: of(org), Domain: of(domain), Own: of(own), Name: of(name)}
}

// decided reports whether orders for names were placed and refused, or have to wait.
func decided(c *certs.Certs, names []hangar.Hostname) bool {
	return !slices.ContainsFunc(names, func(name hangar.Hostname) bool { return len(c.CertificateState(name).Errors) == 0 })
}

// TestTenantThatOrdersMany: an organization with 1,000 hostnames uses up its own share of what the
// ACME server allows, however often it comes back with them, and another has its certificate
// asked for at once.
func TestTenantThatOrdersMany(t *testing.T) {
	server := newRefusing(t)
	f := newFeed(hangar.CertificateSet{})
	c, _ := run(t, certs.Options{Directory: server.URL + "/directory", Limits: limits(100, 20, 1000, 10, 5), Feed: f})
	var names []hangar.Hostname
	var all hangar.CertificateSet
	for i := range 1000 {
		name := hangar.Hostname(fmt.Sprintf("www.many%d.evil", i))
		names = append(names, name)
		all.ACME = append(all.ACME, hangar.WantedCertificate{Hostname: name, Org: "evil"})
	}
	for range 3 { // and gives them up, and claims them again
		f.put(all)
		eventually(t, "all are asked for or have to wait", func() bool { return decided(c, names) })
		if n := server.ordered(".evil"); n != 20 {
			t.Fatalf("%d orders were placed for one organization, want 20", n)
		}
		f.put(hangar.CertificateSet{})
		eventually(t, "none is wanted", func() bool {
			return len(c.CertificateState(names[0]).Errors)+len(c.CertificateState(names[999]).Errors) == 0
		})
	}
	good := hangar.WantedCertificate{Hostname: "www.example.com", Org: "good"}
	f.put(hangar.CertificateSet{ACME: append(slices.Clone(all.ACME), good)})
	eventually(t, "the other organization's order is placed", func() bool { return server.ordered("www.example.com") > 0 })
	eventually(t, "all are asked for or have to wait", func() bool { return decided(c, names) })
	if n := server.ordered(".evil"); n != 20 {
		t.Errorf("%d orders were placed for one organization, want 20", n)
	}
	state := c.CertificateState(names[0])
	if e := state.Errors[0]; e.Code != "rateLimited" || !strings.Contains(e.Message, "20 certificates for the organization") || e.Remediation == "" || !state.RateLimitedUntil.After(time.Now()) {
		t.Errorf("the state of an order that has to wait: %+v", state)
	}
}

// TestLimitsOfOrders: each limit by itself, and that what waits for one does not use up others.
func TestLimitsOfOrders(t *testing.T) {
	wanted := func(org hangar.OrgID, names ...hangar.Hostname) (list []hangar.WantedCertificate) {
		for _, name := range names {
			list = append(list, hangar.WantedCertificate{Hostname: name, Org: org})
		}
		return list
	}
	below := func(domain string, n int) (names []hangar.Hostname) {
		for i := range n {
			names = append(names, hangar.Hostname(fmt.Sprintf("n%d.%s", i, domain)))
		}
		return names
	}
	for _, test := range []struct {
		what   string
		limits certs.Limits
		sets   []hangar.WantedCertificate
		want   map[string]int // orders by the end of names
	}{
		{"of all organizations", limits(10, 6, 50, 10, 5), append(wanted("a", below("one.com", 30)...), wanted("b", below("two.com", 30)...)...), map[string]int{".com": 10}},
	} {
		t.Run(test.what, func(t *testing.T) {
			server := newRefusing(t)
			c, _ := run(t, certs.Options{Directory: server.URL + "/directory", Limits: test.limits, Feed: newFeed(hangar.CertificateSet{ACME: test.sets})})
			var names []hangar.Hostname
			for _, w := range test.sets {
				names = append(names, w.Hostname)
			}
			eventually(t, "all are asked for or have to wait", func() bool { return decided(c, names) })
			for end, want := range test.want {
				if n := server.ordered(end); n != want {
					t.Errorf("%d orders for %s, want %d", n, end, want)
				}
			}
		})
	}
	t.Run("of a name", func(t *testing.T) {
		server := newRefusing(t)
		name := hangar.Hostname("www.example.com")
		c, _ := run(t, certs.Options{Directory: server.URL + "/directory", Limits: limits(100, 50, 50, 10, 4), Feed: newFeed(wants(name))})
		eventually(t, "the name has to wait, however often it is checked", func() bool {
			c.RetryCertificate(name)
			errs := c.CertificateState(name).Errors
			return len(errs) > 0 && errs[0].Code == "rateLimited"
		})
		c.RetryCertificate(name)
		if n := server.ordered(string(name)); n != 4 {
			t.Errorf("%d orders for a name, want 4", n)
		}
	})
}

// TestAppsThatGoLeaveNothing: what is known of the own names of Apps that are gone does not stay, in the process or on
// the disk, also if the server was down when they went.
func TestAppsThatGoLeaveNothing(t *testing.T) {
	server := newRefusing(t)
	var gone atomic.Bool
	o := certs.Options{
		Dir: t.TempDir(), Directory: server.URL + "/directory", DemandWait: time.Millisecond,
		Owner: func(hangar.Hostname) (hangar.OrgID, bool) { return "org", !gone.Load() },
	}
	attempts := func() int {
		files, err := os.ReadDir(filepath.Join(o.Dir, "attempts"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return len(files)
	}
	c, stop := run(t, o)
	for i := range 3 {
		_, _ = c.Get(hello(fmt.Sprintf("app%d.apps.example.com", i)), false)
	}
	eventually(t, "all are refused", func() bool { return attempts() == 3 })
	gone.Store(true)
	eventually(t, "the attempts are forgotten", func() bool { return attempts() == 0 })
	stop()
	old := fmt.Sprintf(`{"org_id":"org","failures":1,"next":%q,"errors":[]}`, time.Now().Add(-60*24*time.Hour).Format(time.RFC3339))
	recent := fmt.Sprintf(`{"org_id":"org","failures":1,"next":%q,"errors":[]}`, time.Now().Add(time.Hour).Format(time.RFC3339))
	for name, text := range map[string]string{"old": old, "recent": recent} {
		if err := os.WriteFile(filepath.Join(o.Dir, "attempts", name+".apps.example.com.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, o)
	if n := attempts(); n != 1 {
		t.Errorf("%d attempts stay on the disk, want the one that says when to ask again", n)
	}
}
