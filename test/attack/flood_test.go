package attack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// floodFor is how long a flood lasts.
func floodFor() time.Duration {
	if os.Getenv("ATTACK") != "" {
		return 20 * time.Second
	}
	return 2 * time.Second
}

// customer asks for something over and over, one request after the other, at least once.
type customer struct {
	answered int
	took     []time.Duration
}

func (c *customer) ask(ctx context.Context, t *testing.T, req *http.Request) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for {
		began := time.Now()
		res, err := client.Do(req.Clone(t.Context()))
		if err != nil {
			t.Errorf("after %d answers: %v", c.answered, err)
			return
		}
		raw, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("after %d answers: %d %s, %v", c.answered, res.StatusCode, raw, err)
			return
		}
		c.answered++
		c.took = append(c.took, time.Since(began))
		if ctx.Err() != nil {
			return
		}
	}
}

// median of how long answers took.
func (c *customer) median() time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(c.took))[len(c.took)/2]
}

// TestFloods plays clients that send what they can, from one source, beside a customer at the
// same source with a valid token: every request of that customer is answered.
func TestFloods(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--acme", "off"}})
	c := d.Client()
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	good, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL()+"/v1/apps/web", nil)
	if err != nil {
		t.Fatal(err)
	}
	good.Header.Set("Authorization", "Bearer "+d.Token())

	calm, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	var before customer
	before.ask(calm, t, good)

	send := func(request string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.Addr())
			if err != nil {
				return err
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			if _, err := io.WriteString(conn, request); err != nil {
				return err
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			return err
		}
	}
	authorized := func(token string) string {
		return "GET /v1/apps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\nConnection: close\r\n\r\n"
	}
	for _, flood := range []struct {
		name    string
		clients int
		attack  func(ctx context.Context) error
	}{
		{"bad tokens", 32, send(authorized("made-up"))},
		{"long tokens", 16, send(authorized(strings.Repeat("x", 15<<10)))},
		{"many tokens in one", 16, send(authorized(strings.Repeat("x,", 5<<10)))},
		{"huge headers", 16, send("GET / HTTP/1.1\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("y", 1000)+"\r\n", 100) + "\r\n")},
		{"heads that never end", 500, func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.Addr())
			if err != nil {
				return err
			}
			defer conn.Close()
			ticker := time.NewTicker(100 * time.Millisecond)
			defer ticker.Stop()
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(conn, "%c", "GET / HTTP/1.1\r\n"[i%16]); err != nil {
					return err
				}
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return nil
				}
			}
		}},
		{"deep bodies", 8, send("POST /v1/apps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + d.Token() +
			"\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("[", 200_000))},
	} {
		t.Run(flood.name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), floodFor())
			defer stop()
			var attempts, failed atomic.Int64
			var clients sync.WaitGroup
			for range flood.clients {
				clients.Go(func() {
					for ctx.Err() == nil {
						if attempts.Add(1); flood.attack(ctx) != nil {
							failed.Add(1)
						}
					}
				})
			}
			var during customer
			during.ask(ctx, t, good)
			clients.Wait()
			if during.answered == 0 {
				t.Error("the customer got no answer")
			}
			t.Logf("%d attempts, %d of them cut off; the customer: %d answers, median %s, in peace %s",
				attempts.Load(), failed.Load(), during.answered, during.median(), before.median())
		})
	}
}
