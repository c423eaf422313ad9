package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/remote"
	"github.com/hangar-platform/hangar/metrics/store"
)

// concurrency is how many writes are under way at a time: as many as a Writer has senders.
const concurrency = 4

// bench is what all parts share.
type bench struct {
	o       options
	undo    harness.Undo
	dir     string // for files of this run
	program string // hangar-metrics
	stores  int    // that were made
}

func newBench(ctx context.Context, o options) (*bench, error) {
	dir, err := os.MkdirTemp("", "hgbm") // short, because sockets live below it
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, dir: dir, program: filepath.Join(dir, "hangar-metrics")}
	b.undo.Add(func() error { return os.RemoveAll(dir) })
	if err := harness.Build(ctx, b.program, "-trimpath", "./cmd/hangar-metrics"); err != nil {
		return nil, errors.Join(err, b.undo.Run())
	}
	return b, nil
}

// say reports progress on standard error.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// newStore returns a place for a store that has no data yet.
func (b *bench) newStore() *place {
	b.stores++
	return &place{
		program: b.program, dir: filepath.Join(b.dir, fmt.Sprint(b.stores)),
		group: fmt.Sprintf("hangar-bench-metrics-%d-%d", os.Getpid(), b.stores),
	}
}

// place is where a store keeps its data between one opening and the next.
type place struct{ program, dir, group string }

// open opens the store as the daemon does, and waits until it answers. Close ends it.
func (p *place) open(ctx context.Context) (*kept, error) {
	k, err := p.openIdle(ctx)
	if err != nil {
		return nil, err
	}
	if err := k.answers(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// openIdle is open for a store that starts with the first request of its Client.
func (p *place) openIdle(ctx context.Context) (*kept, error) {
	s, err := store.Open(ctx, store.Options{
		Dir: filepath.Join(p.dir, "data"), Run: p.dir, Group: p.group,
		Program: func(context.Context) (string, error) { return p.program, nil },
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return &kept{Store: s, bare: dial(filepath.Join(p.dir, "metrics.sock"))}, nil
}

// remove removes the data of a store that is closed.
func (p *place) remove() error { return os.RemoveAll(p.dir) }

// with opens a store for a function.
func (p *place) with(ctx context.Context, do func(k *kept) error) error {
	k, err := p.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(k), k.Close())
}

// kept is an open store, and a way past all that hangar has in front of it.
type kept struct {
	*store.Store
	bare *bare
}

func (k *kept) Close() error {
	k.bare.client.CloseIdleConnections()
	return k.Store.Close()
}

// bare is a metrics.Store that asks and writes the process of a store over its listener. Of
// another process's it needs the socket alone.
type bare struct{ client *http.Client }

var (
	_ metrics.Store  = (*bare)(nil)
	_ metrics.Writer = (*bare)(nil)
)

func dial(socket string) *bare {
	return &bare{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 64,
		DisableCompression:  true,
	}}}
}

// Client implements metrics.Store.
func (d *bare) Client() *http.Client { return d.client }

// QueryURL implements metrics.Store.
func (d *bare) QueryURL(metrics.Tenant) string { return "http://store/prometheus" }

// WriteURL implements metrics.Store.
func (d *bare) WriteURL(t metrics.Tenant) string {
	return "http://store/prometheus/api/v1/write?" + confine(t)
}

// SharedWriteURL implements metrics.Store.
func (d *bare) SharedWriteURL() string { return "http://store/tenants/write" }

func confine(t metrics.Tenant) string {
	return url.Values{"extra_label": {metrics.OrgLabel + "=" + string(t.Org)}}.Encode()
}

// Write makes one remote write, without a queue. It implements metrics.Writer.
func (d *bare) Write(ctx context.Context, t metrics.Tenant, samples []metrics.Sample) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.WriteURL(t), bytes.NewReader(remote.Encode(samples))) //nolint:gosec // to a socket of this run
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "snappy")
	resp, err := d.client.Do(r) //nolint:gosec // see above
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the store answers %s to a write", resp.Status)
	}
	return nil
}

// tenant returns an organization of the benchmark.
func tenant(n int) metrics.Tenant {
	return metrics.Tenant{Org: hangar.OrgID(fmt.Sprintf("org%04d", n)), Number: uint32(n + 1)}
}

// eachOf calls do for 0 to n-1, some at a time.
func eachOf(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	working, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range concurrency {
		working.Go(func() error {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return working.Wait()
}

// answers asks until the store answers.
func (k *kept) answers(ctx context.Context) error {
	for {
		_, err := ask(ctx, k.Client(), k.QueryURL(metrics.Tenant{}), "?"+confine(tenant(0)), question{text: "up"}, time.Now())
		if err == nil {
			return nil
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// settled waits until the store does next to nothing any more, which it does a while after many
// writes, or until it has taken long enough.
func (k *kept) settled(ctx context.Context) error {
	const (
		probe    = 500 * time.Millisecond
		little   = probe / 20
		patience = 20 * time.Second
	)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		before, err := harness.ProcessorTime([]int{k.PID()})
		if err != nil {
			return err
		}
		if err := pause.For(ctx, probe); err != nil {
			return err
		}
		after, err := harness.ProcessorTime([]int{k.PID()})
		if err != nil {
			return err
		}
		if after-before <= little {
			return nil
		}
	}
	return nil
}
