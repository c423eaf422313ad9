package scrape_test

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/scrape"
)

// zipped answers with a compressed body.
func zipped(body []byte) server {
	return answering(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(body)
	})
}

func compress(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, p)
		_ = z.Close()
	}
	return b.Bytes()
}

// bomb is 128 MiB in some hundred KiB.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	block := make([]byte, 1<<20)
	for range 128 {
		_, _ = z.Write(block)
	}
	_ = z.Close()
	return b.Bytes()
})

func series(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("series{i=\"" + strconv.Itoa(i) + "\"} 1\n")
	}
	return b.String()
}

// secure answers by TLS with a self-signed certificate.
func secure(t *testing.T, inner server) server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return func(conn net.Conn) {
		inner(tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}))
	}
}

// TestEndpoints checks the result of each kind of endpoint.
func TestEndpoints(t *testing.T) {
	const one = "a" + own + " 1"
	const secret = "SECRET" // no text of a Machine is passed on
	long := strings.Repeat(secret, 20_000)
	for _, c := range []struct {
		name   string
		serve  server
		change func(*scrape.Target)
		want   string // series; empty: it fails
		told   string
		result string // empty: ok
		cheap  bool   // it is asked in every interval
		slow   bool   // under the race detector
	}{
		{name: "gzip", serve: zipped(compress("a 1\n")), want: one},
		{name: "gzip in two members", serve: zipped(compress("a 1\n", "b 2\n")), want: one + ";b" + own + " 2"},
		{name: "chunked", serve: raw(0, slices.Values([]string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "2\r\na \r\n", "2;x=y\r\n1\n\r\n", "0\r\nTrailer: " + secret + "\r\n\r\n"})), want: one},
		{name: "HTTP/1.0", serve: raw(0, slices.Values([]string{"HTTP/1.0 200 OK\r\n\r\na 1\n"})), want: one},
		{name: "an interim answer", serve: raw(0, slices.Values([]string{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", okHeader + "a 1\n"})), want: one},
		{name: "OpenMetrics", serve: answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
			_, _ = io.WriteString(w, "a 1 # {x=\"y\"} 1\n# EOF\n")
		}), want: one},
		{name: "TLS", serve: secure(t, text("a 1\n")), change: func(s *scrape.Target) { s.HTTPS = true }, want: one},
		{name: "a query", serve: answering(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "a %s\n", r.FormValue("v")) }), change: func(s *scrape.Target) { s.Path = "/x?v=1" }, want: one},
		{name: "NaN", serve: text("a NaN\n"), want: "a" + own + " NaN"},
		{name: "invalid UTF-8", serve: text("a 1\nb{x=\"" + secret + "\xff\"} 1\n"), want: one, told: "Some of the metrics of port 9091 are left out: 1 lines cannot be read; the first is line 2", result: "lines"},
		{name: "long labels", serve: text("a 1\nb{x=\"" + long[:2000] + "\"} 1\n"), want: one, told: "left out: 1 series have more than 30 labels, or one of more than 1024 bytes", result: "labels"},
		{name: "duplicates", serve: text("a 1\na{app=\"x\"} 1\n"), want: one, told: "left out: 1 samples are of series that were there already", result: "duplicates"},
		{name: "nothing", serve: text("")},

		{name: "refused", serve: nil, told: "nothing listens on the port", result: "connect", cheap: true},
		{name: "silent", serve: func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, told: "there was no complete answer within 10s", result: "timeout", cheap: true},
		{name: "never reads", serve: func(conn net.Conn) { time.Sleep(time.Minute) }, told: "there was no complete answer within 10s", result: "timeout", cheap: true},
		{name: "hangs up", serve: func(net.Conn) {}, told: "the connection ended before the answer was complete", result: "http", cheap: true},
		{name: "no HTTP", serve: raw(0, slices.Values([]string{"220 " + secret + "\r\n"})), told: "does not answer as HTTP wants it", result: "http", cheap: true},
		{name: "cut off", serve: raw(0, slices.Values([]string{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na 1\n"})), told: "the connection ended before the answer was complete", result: "http", cheap: true},
		{name: "500", serve: answering(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusInternalServerError) }), told: "the answer has the status 500", result: "status", cheap: true},
		{name: "a redirect", serve: answering(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1/"+secret, http.StatusFound)
		}), told: "status 302; redirects are not followed", result: "status", cheap: true},
		{name: "an upgrade", serve: raw(0, slices.Values([]string{"HTTP/1.1 101 Switching Protocols\r\n\r\n"})), told: "the answer has the status 101", result: "status", cheap: true},
		{name: "endless interim answers", serve: raw(0, forever("HTTP/1.1 100 Continue\r\n\r\n")), told: "does not answer as HTTP wants it", result: "http"},
		{name: "a header bomb", serve: raw(0, forever("HTTP/1.1 200 OK\r\n", "X: "+long[:1000]+"\r\n")), told: "the header of the answer is too long", result: "http"},
		{name: "an endless header line", serve: raw(0, forever("HTTP/1.1 200 OK\r\nX: ", long[:1000])), told: "the header of the answer is too long", result: "http"},
		{name: "a slow header", serve: raw(time.Second, forever("HTTP/1.1 200 OK\r\n", "X: y\r\n")), told: "there was no complete answer within 10s", result: "timeout", cheap: true},
		{name: "a slow body", serve: raw(time.Second, forever(okHeader, "a 1\n")), told: "there was no complete answer within 10s", result: "timeout", cheap: true},
		{name: "a slow large body", serve: raw(100*time.Millisecond, forever(okHeader, "# "+long[:20_000]+"\n")), told: "not complete 3s after its first 128 KiB", result: "timeout"},
		{name: "an endless body", serve: raw(0, forever(okHeader, "# "+long+"\n")), told: "the answer is larger than 16 MiB", result: "size"},
		{name: "an endless line", serve: raw(0, forever(okHeader, "a{x=\"", long)), told: "the answer is larger than 16 MiB", result: "size"},
		{name: "endless short chunks", serve: raw(0, forever("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\n#\r\n", 10_000))), told: "the answer is larger than 16 MiB", result: "size", slow: true},
		{name: "a length that is too much", serve: raw(0, forever("HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")), told: "the answer is larger than 16 MiB", result: "size"},
		{name: "a gzip bomb", serve: zipped(bomb()), told: "the answer is larger than 16 MiB", result: "size"},
		{name: "endless empty members", serve: raw(0, forever("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", string(bytes.Repeat(compress(""), 1000)))), told: "the answer is larger than 16 MiB", result: "size"},
		{name: "no gzip", serve: zipped([]byte(secret + secret)), told: "the answer is not compressed as it says", result: "http", cheap: true},
		{name: "broken gzip", serve: zipped(append(compress("a 1\n"), long...)), told: "the answer is not complete", result: "http", cheap: true},
		{name: "another encoding", serve: answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "a 1\n")
		}), told: "an encoding that was not asked for", result: "http", cheap: true},
		{name: "a million series", serve: text(series(1_000_000)[:16<<20]), told: "there are more than 20000 series", result: "series"},
		{name: "a page", serve: text("<html>" + secret + "</html>\n"), told: "not in the text format of Prometheus", result: "not_text"},
		{name: "noise", serve: text(strings.Repeat(secret+"\n", 100_000)), told: "not in the text format of Prometheus", result: "not_text"},
		{name: "no TLS", serve: func(conn net.Conn) {
			go io.Copy(io.Discard, conn)
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n"+secret)
		}, change: func(s *scrape.Target) { s.HTTPS = true }, told: "the port does not speak TLS as it should", result: "tls", cheap: true},
		{name: "a path that breaks requests", serve: text("a 1\n"), change: func(s *scrape.Target) { s.Path = "/ HTTP/1.1\r\nX: y" }, told: "the path is not valid", result: "path", cheap: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow && testing.Short() {
				t.Skip("-short")
			}
			within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
				x := target("o", "m")
				if c.change != nil {
					c.change(&x)
				}
				r.add(x, c.serve)
				other := target("p", "other")
				r.add(other, text("fine 1\n"))
				time.Sleep(4*metrics.Interval + metrics.Interval/2)
				var got []string
				others := 0
				for _, s := range r.take() {
					switch {
					case s.org == "p":
						others++
					case len(got) > 0 && strings.HasPrefix(got[0], s.series+" "): // the next scrape
					default:
						got = append(got, fmt.Sprintf("%s %v", s.series, s.value))
					}
				}
				if list := strings.Join(slices.Compact(got), ";"); !strings.HasPrefix(list, c.want) || (c.want == "") != (list == "") {
					t.Errorf("series %.200q, want %q", list, c.want)
				}
				if others < 4 {
					t.Errorf("%d samples of another organization", others)
				}
				told := r.lines()
				switch {
				case c.told == "" && len(told) > 0, c.told != "" && (len(told) != 1 || !strings.Contains(told[0], c.told)):
					t.Errorf("told %q, want %q", told, c.told)
				case strings.Contains(strings.Join(told, ""), secret), strings.Contains(strings.Join(told, ""), "10.9.8.7"):
					t.Errorf("told %q", told)
				}
				result := c.result
				if result == "" {
					result = "ok"
				}
				fine := 0.0
				if result == "ok" {
					fine = r.value(t, "hangar_scrape_scrapes_total", "ok") - float64(others)
				} else {
					fine = r.value(t, "hangar_scrape_scrapes_total", result)
				}
				if often := c.cheap || c.want != "" || c.told == ""; often && fine < 3 || !often && (fine < 1 || fine > 3) {
					t.Errorf("it was asked %v times in four intervals", fine)
				}
				r.remove("m")
				time.Sleep(3 * time.Second)
				if n := r.value(t, "hangar_scrape_series", ""); n != 1 {
					t.Errorf("%v series are remembered", n)
				}
			})
		})
	}
}

// TestMemoryOfAScrape: a bomb costs about as much as the largest permitted answer.
func TestMemoryOfAScrape(t *testing.T) {
	body := bomb()
	for name, s := range map[string]server{
		"bomb":    zipped(body),
		"endless": raw(0, forever(okHeader, "a{x=\""+strings.Repeat("y", 900)+"\"} 1\n")),
	} {
		within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
			r.add(target("o", "m"), s)
			time.Sleep(time.Second)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			time.Sleep(metrics.Interval)
			synctest.Wait()
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 100 {
				t.Errorf("%s: a scrape takes %d MiB", name, n)
			}
			if n := r.value(t, "hangar_scrape_scrapes_total", "size"); n != 1 {
				t.Errorf("%s: %v scrapes", name, n)
			}
		})
	}
}

// TestAMachineThatIsTooMuchIsAskedLessOften, and immediately after it has booted again.
func TestAMachineThatIsTooMuchIsAskedLessOften(t *testing.T) {
	within(t, scrape.Limits{Series: 10}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), answering(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, series(11))
		}))
		time.Sleep(time.Hour)
		var pauses []int
		list := r.dialled()
		for i := range list[1:] {
			pauses = append(pauses, int((list[i+1].at-list[i].at)/metrics.Interval))
		}
		if got := fmt.Sprint(pauses[:6]); got != "[2 4 8 16 16 16]" {
			t.Errorf("pauses of %s intervals", got)
		}
		r.take()
		fixed := target("o", "m")
		fixed.Generation++
		r.add(fixed, text(series(10)))
		time.Sleep(metrics.Interval + 2*time.Second)
		if got := len(r.take()); got != 10 {
			t.Errorf("%d samples after it has booted", got)
		}
	})
}

// TestOrganizationsTakeTurns: an organization with the slowest permitted Machines delays no other.
func TestOrganizationsTakeTurns(t *testing.T) {
	within(t, scrape.Limits{AtOnce: 4}, func(t *testing.T, r *rig) {
		for i := range 300 {
			r.add(target("hostile", fmt.Sprintf("h%d", i)), func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		}
		for i := range 20 {
			r.add(target("fine", fmt.Sprintf("f%d", i)), text("a 1\n"))
		}
		time.Sleep(time.Minute)
		r.take()
		most := 0.0
		for range 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			most = max(most, r.value(t, "hangar_scrape_under_way", ""))
		}
		times := map[string][]time.Duration{}
		for _, s := range r.take() {
			times[s.series] = append(times[s.series], s.at)
		}
		for who, list := range times {
			if len(list) != 4 {
				t.Errorf("%s has %d samples in four intervals", who, len(list))
			}
		}
		if len(times) != 20 || most < 3 || most > 4 {
			t.Errorf("samples of %d Machines; %v scrapes at once", len(times), most)
		}
	})
}

// TestLargeAnswersTakeTurns: a limited number of them is in memory, and no organization holds all
// of these.
func TestLargeAnswersTakeTurns(t *testing.T) {
	within(t, scrape.Limits{Large: 2}, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		passed, most := 0, 0
		slow := func(conn net.Conn) {
			if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
				return
			}
			go io.Copy(io.Discard, conn)
			block := "# " + strings.Repeat("x", 9_997) + "\n"
			if _, err := io.WriteString(conn, okHeader+strings.Repeat(block, 12)); err != nil {
				return
			}
			for i := 0; ; i++ {
				if _, err := io.WriteString(conn, block); err != nil {
					if i > 2 {
						mu.Lock()
						passed--
						mu.Unlock()
					}
					return
				}
				if i == 2 { // beyond what needs no slot
					mu.Lock()
					passed++
					most = max(most, passed)
					mu.Unlock()
				}
				time.Sleep(500 * time.Millisecond)
			}
		}
		for i := range 60 {
			r.add(target("hostile", fmt.Sprintf("h%d", i)), slow)
		}
		r.add(target("fine", "f"), text(series(15_000)))
		time.Sleep(4 * metrics.Interval)
		n := 0
		for _, s := range r.take() {
			if s.org == "fine" && !s.stale {
				n++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if n < 3*15_000 || most > 2 || most == 0 {
			t.Errorf("%d samples of the other organization; %d large answers at once", n, most)
		}
	})
}

// TestMemoryIsShared: the remembered series of one organization leave room for another.
func TestMemoryIsShared(t *testing.T) {
	within(t, scrape.Limits{SeriesBytes: 100_000}, func(t *testing.T, r *rig) {
		for i := range 10 {
			r.add(target("hostile", fmt.Sprintf("h%d", i)), text(series(1000)))
		}
		time.Sleep(2 * metrics.Interval)
		if n := r.value(t, "hangar_scrape_series_bytes", ""); n == 0 || n > 50_000 {
			t.Errorf("%v bytes are remembered of one organization", n)
		}
		told := strings.Join(r.lines(), "\n")
		if !strings.Contains(told, "take more memory than there is") {
			t.Errorf("told %q", told)
		}
		r.take()
		r.add(target("fine", "f"), text(series(500)))
		time.Sleep(metrics.Interval + time.Second)
		n := 0
		for _, s := range r.take() {
			if s.org == "fine" && !s.stale {
				n++
			}
		}
		if n != 500 {
			t.Errorf("%d samples of the other organization", n)
		}
	})
}

// TestBytesOfAnOrganization: the answers of its Machines are limited together.
func TestBytesOfAnOrganization(t *testing.T) {
	within(t, scrape.Limits{OrgBytes: 1 << 20}, func(t *testing.T, r *rig) {
		comment := "# " + strings.Repeat("x", 100_000) + "\na 1\n"
		for i := range 100 {
			r.add(target("hostile", fmt.Sprintf("h%d", i)), text(comment))
		}
		r.add(target("fine", "f"), text(comment))
		time.Sleep(4 * metrics.Interval)
		r.take()
		time.Sleep(4 * metrics.Interval)
		n := map[hangar.OrgID]int{}
		for _, s := range r.take() {
			if !s.stale {
				n[s.org]++
			}
		}
		if n["hostile"] > 60 || n["hostile"] < 20 || n["fine"] != 4 {
			t.Errorf("samples: %v", n)
		}
		if told := strings.Join(r.lines(), "\n"); !strings.Contains(told, "have answered more than 1 MiB within 15s") {
			t.Errorf("told %q", told)
		}
	})
}

// TestFramingCosts: one-byte chunks count for more than their content.
func TestFramingCosts(t *testing.T) {
	within(t, scrape.Limits{OrgBytes: 1 << 20}, func(t *testing.T, r *rig) {
		short := strings.Repeat("1\r\n#\r\n", 100_000) + "4\r\n\na 1\r\n0\r\n\r\n"
		r.add(target("o", "m"), raw(0, slices.Values([]string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", short})))
		time.Sleep(20 * metrics.Interval)
		n := 0
		for _, s := range r.take() {
			if !s.stale {
				n++
			}
		}
		if n < 4 || n > 7 {
			t.Errorf("%d samples in twenty intervals", n)
		}
	})
}

// TestWhatIsListedTwice counts once, and a Machine that is listed endlessly affects no other.
func TestWhatIsListedTwice(t *testing.T) {
	within(t, scrape.Limits{}, func(t *testing.T, r *rig) {
		r.add(target("o", "m"), text("a 1\n"))
		r.mu.Lock()
		r.targets = append(r.targets, r.targets[0])
		r.mu.Unlock()
		time.Sleep(metrics.Interval)
		want(t, r.take(), "a"+own+" 1")
	})
}
