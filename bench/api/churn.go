package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

const (
	// livingBeside is how many Machines live while others come and go.
	livingBeside = 50
	// goalChurn is how much memory and the time of a get may grow, as a factor.
	goalChurn = 1.2
)

// churn is what became of a daemon in which many Machines were created and destroyed.
type churn struct {
	machines      int
	took          time.Duration
	before, after churned
	growth        float64 // what a get costs it, to what it costs one that has not been through it
}

// churned is a daemon after a kill -9.
type churned struct {
	ready, readyCost time.Duration
	rss, own         int64 // bytes; own is without pages of files
	disk             int64 // bytes that its files take
}

// measureChurn creates and destroys Machines while a few live, and compares the daemon with
// itself before.
func (b *bench) measureChurn(ctx context.Context) error {
	d, p, err := b.begin(ctx)
	if err != nil {
		return err
	}
	if _, err := p.grow(ctx, livingBeside, b.options.clients); err != nil {
		return err
	}
	c := &churn{machines: b.options.churn}
	if c.before, err = b.killed(ctx, d); err != nil {
		return err
	}
	began := time.Now()
	if err := p.churn(ctx, c.machines, b.options.clients); err != nil {
		return err
	}
	c.took = time.Since(began)
	fmt.Fprintf(os.Stderr, "  %d created and destroyed in %s\n", c.machines, c.took.Round(time.Second))
	if _, err := b.settled(ctx, d); err != nil {
		return err
	}
	if c.after, err = b.killed(ctx, d); err != nil {
		return err
	}
	c.growth, err = b.grown(ctx, d, p, livingBeside)
	b.churn = c
	return err
}

// killed kills a daemon, starts it again and looks at it once it is idle.
func (b *bench) killed(ctx context.Context, d *harness.Daemon) (churned, error) {
	var c churned
	var err error
	if c.ready, err = restart(ctx, d); err != nil {
		return c, err
	}
	if c.readyCost, err = harness.ProcessorTime([]int{d.PID()}); err != nil {
		return c, err
	}
	fmt.Fprintf(os.Stderr, "  ready after kill -9: %s, cpu %s\n", c.ready, c.readyCost)
	if c.rss, err = b.settled(ctx, d); err != nil {
		return c, err
	}
	if c.own, err = harness.OwnMemory([]int{d.PID()}); err != nil {
		return c, err
	}
	c.disk, err = taken(d.Dir())
	fmt.Fprintf(os.Stderr, "  disk %d MiB\n", c.disk>>20)
	return c, err
}

// taken is how many bytes there are in the files of a directory.
func taken(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && entry.Type().IsRegular() {
			info, err = entry.Info()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // the daemon has removed it
		case err == nil && info != nil:
			total += info.Size()
		}
		return err
	})
	return total, err
}

// churn creates and destroys so many Machines, with so many clients at once.
func (p *platform) churn(ctx context.Context, n, clients int) error {
	const app = "churn"
	if _, err := once(ctx, "tcp", p.addr, p.request(http.MethodPost, "/v1/apps", map[string]string{"app_name": app, "org_slug": "personal"})); err != nil {
		return err
	}
	create := p.request(http.MethodPost, "/v1/apps/"+app+"/machines", map[string]any{"config": p.config(0), "skip_launch": true})
	var begun atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, clients)
	for i := range clients {
		group.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.addr)
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close()
			c := &client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
			for errs[i] == nil && ctx.Err() == nil && begun.Add(1) <= int64(n) {
				errs[i] = p.createAndDestroy(c, app, create)
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

func (p *platform) createAndDestroy(c *client, app string, create []byte) error {
	status, err := c.exchange(create, true)
	if err != nil || status/100 != 2 {
		return errors.Join(err, fmt.Errorf("create: status %d: %s", status, c.keep))
	}
	var made struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(c.keep, &made); err != nil {
		return err
	}
	status, err = c.exchange(p.request(http.MethodDelete, ref{app, made.ID}.path()+"?force=true", nil), true)
	if err != nil || status/100 != 2 {
		return errors.Join(err, fmt.Errorf("destroy: status %d: %s", status, c.keep))
	}
	return nil
}

func (b *bench) writeChurn(w *strings.Builder) {
	c := b.churn
	fmt.Fprintf(w, "\n%s Machines were created and destroyed in %s by %d clients, while %d lived. Then the daemon was killed.\n\n"+
		"| | before | after | | goal | |\n|---|--:|--:|--:|--:|---|\n", count(c.machines), c.took.Round(time.Second), b.options.clients, livingBeside)
	ratio := func(name, before, after string, of float64) {
		fmt.Fprintf(w, "| %s | %s | %s | %.2f× | ≤ %.1f× | %s |\n", name, before, after, of, goalChurn, publish.Verdict(of <= goalChurn))
	}
	fmt.Fprintf(w, "| ready after kill -9 | %s | %s | | ≤ %s | %s |\n", ms(c.before.ready), ms(c.after.ready), ms(goalReady), publish.Verdict(c.after.ready <= goalReady))
	fmt.Fprintf(w, "| processor time for it | %s | %s | | | |\n", ms(c.before.readyCost), ms(c.after.readyCost))
	mib := func(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
	ratio("memory", mib(c.before.own), mib(c.after.own), float64(c.after.own)/float64(c.before.own))
	fmt.Fprintf(w, "| with the pages of its files that are in memory | %s | %s | %.2f× | | |\n",
		mib(c.before.rss), mib(c.after.rss), float64(c.after.rss)/float64(c.before.rss))
	ratio("what a get costs, in turns with a daemon as before", "", "", c.growth)
	fmt.Fprintf(w, "| files of the daemon | %s | %s | | | |\n", mib(c.before.disk), mib(c.after.disk))
}
