package events_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/events"
)

func change(name string, id int) database.Change {
	return database.Change{
		Name: name, Pos: ltx.Pos{TXID: ltx.TXID(id), PostApplyChecksum: ltx.ChecksumFlag | ltx.Checksum(id)},
		PageSize: 4096, Pages: 2, Timestamp: 1_700_000_000_080,
	}
}

func serve(t *testing.T, h *events.Hub) string {
	t.Helper()
	server := httptest.NewServer(h.Handler(func(string) *database.DB { return nil }))
	t.Cleanup(func() { h.Close(); server.Close() })
	return server.URL
}

func get(t *testing.T, url string) *bufio.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatal(resp.Status, resp.Header)
	}
	return bufio.NewReader(resp.Body)
}

// TestLines compares what a subscriber reads with the text that LiteFS would write.
func TestLines(t *testing.T) {
	h := events.New()
	h.Know("a.db", ltx.Pos{TXID: 7, PostApplyChecksum: ltx.ChecksumFlag})
	r := get(t, serve(t, h))
	h.SetRole(events.Role{Hostname: "p"})
	h.SetRole(events.Role{Hostname: "p"})
	h.Publish(change("a.db", 8))
	h.SetRole(events.Role{IsPrimary: true})
	for _, want := range []string{
		`{"type":"init","data":{"isPrimary":false,"positions":{"a.db":{"txID":"0000000000000007","postApplyChecksum":"8000000000000000"}}}}`,
		`{"type":"primaryChange","data":{"isPrimary":false,"hostname":"p"}}`,
		`{"type":"tx","db":"a.db","data":{"txID":"0000000000000008","postApplyChecksum":"8000000000000008","pageSize":4096,"commit":2,"timestamp":"2023-11-14T22:13:20.08Z"}}`,
		`{"type":"primaryChange","data":{"isPrimary":true}}`,
	} {
		line, err := r.ReadString('\n')
		if err != nil || line != want+"\n" {
			t.Fatalf("%s%v\nwant %s", line, err, want)
		}
	}
	// The end of the node is orderly.
	h.Close()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
}

// TestSubscribersMissNothing starts as many subscribers as allowed while events are published. Each
// receives every event after its initial positions.
func TestSubscribersMissNothing(t *testing.T) {
	h := events.New()
	url := serve(t, h)
	const last = 600
	var publishing, reading sync.WaitGroup
	begin := make(chan struct{})
	for range events.MaxSubscribers {
		reading.Go(func() {
			<-begin
			req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			at := ltx.TXID(0)
			for n := 0; at < last; n++ {
				if !lines.Scan() {
					t.Errorf("ends at %d: %v", at, lines.Err())
					return
				}
				var e struct {
					Type string
					Data struct {
						TXID      ltx.TXID `json:"txID"`
						Positions map[string]events.Position
					}
				}
				if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
					t.Error(err)
					return
				}
				switch {
				case n == 0 && e.Type == "init":
					at = e.Data.Positions["a.db"].TXID
				case n > 0 && e.Type == "tx" && e.Data.TXID == at+1:
					at++
				default:
					t.Errorf("event %d after %d: %s", n, at, lines.Text())
					return
				}
			}
		})
	}
	publishing.Go(func() {
		close(begin)
		for i := 1; i <= last; i++ {
			h.Publish(change("a.db", i))
			if i%10 == 0 {
				time.Sleep(time.Millisecond) // so that subscribers start in between
			}
		}
	})
	publishing.Wait()
	reading.Wait()
}

// TestSlowSubscriber: a slow subscriber is disconnected without an orderly end, others are not, and
// a subscriber above the limit is refused.
func TestSlowSubscriber(t *testing.T) {
	h := events.New()
	url := serve(t, h)
	slow := get(t, url)
	name := strings.Repeat("x", 20_000) // fills the kernel's buffers of a connection
	for i := 1; ; i++ {
		h.Publish(change(name, i))
		if _, cut := h.Count(); cut == 1 {
			break
		}
		if i > 100_000 {
			t.Fatal("not cut off")
		}
	}
	fast := get(t, url)
	if line, err := fast.ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"type":"init"`) {
		t.Errorf("%.50s %v", line, err)
	}
	if _, err := io.Copy(io.Discard, slow); err == nil {
		t.Error("the stream of the slow subscriber ended in order")
	}
	var all []*events.Subscription
	for {
		s, err := h.Subscribe()
		if err != nil {
			break
		}
		all = append(all, s)
	}
	if len(all) != events.MaxSubscribers-1 {
		t.Errorf("%d subscribers more", len(all))
	}
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Error(resp.Status)
	}
	for _, s := range all {
		s.Cancel()
	}
}
