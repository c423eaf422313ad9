package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/pause"
)

// node is a process of hangar-db.
type node struct {
	capture string
	primary string // URL of the primary; empty for that itself
	root    string // kept between starts; made if empty

	url string
	cmd *exec.Cmd
}

// path is where programs find the database.
func (n *node) path() string { return filepath.Join(n.root, "dir", "app.db") }

// start starts a node and waits until it is the primary, or serves.
func (r *results) start(ctx context.Context, n node) (*node, error) {
	if n.root == "" {
		n.root = r.fresh()
	}
	for _, dir := range []string{"dir", "data"} {
		if err := os.MkdirAll(filepath.Join(n.root, dir), 0o700); err != nil {
			return nil, err
		}
	}
	address, err := freeport.Address(ctx)
	if err != nil {
		return nil, err
	}
	n.url = "http://" + address
	advertise := n.url
	if n.primary != "" {
		advertise = n.primary
	}
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\ncapture: %s\nlease: {type: static, hostname: node, advertise-url: %q, candidate: %v}\n",
		filepath.Join(n.root, "dir"), filepath.Join(n.root, "data"), address, n.capture, advertise, n.primary == "")
	file := filepath.Join(n.root, "litefs.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	n.cmd = exec.CommandContext(ctx, r.program, "mount", "--config", file)
	n.cmd.Cancel = func() error { return n.cmd.Process.Signal(unix.SIGTERM) }
	n.cmd.WaitDelay = 10 * time.Second
	var said strings.Builder
	n.cmd.Stderr = &said
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	r.undo.Add(n.stop)
	for {
		i, err := n.info(ctx)
		if err == nil && (i.IsPrimary || n.primary != "") {
			return &n, nil
		}
		if err := errors.Join(n.cmd.Process.Signal(unix.Signal(0)), pause.For(ctx, 5*time.Millisecond)); err != nil {
			return nil, fmt.Errorf("the node ends: %w: %s", err, said.String())
		}
	}
}

// stop ends the node. It may be repeated.
func (n *node) stop() error {
	if n.cmd == nil {
		return nil
	}
	cmd := n.cmd
	n.cmd = nil
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := cmd.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// info is the part of /info that is of interest.
type info struct {
	IsPrimary bool `json:"isPrimary"`
	Databases []struct {
		TXID  string `json:"txID"`
		Pages int64  `json:"commit"`
		Size  int64  `json:"pageSize"`
	} `json:"databases"`
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}

func get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s: %s", url, resp.Status), resp.Body.Close())
	}
	return resp, nil
}

func (n *node) info(ctx context.Context) (info, error) {
	var i info
	resp, err := get(ctx, n.url+"/info")
	if err != nil {
		return i, err
	}
	defer resp.Body.Close()
	return i, json.NewDecoder(resp.Body).Decode(&i)
}

// txid is the last transaction of the database, 0 while there is none.
func (n *node) txid(ctx context.Context) (uint64, error) {
	i, err := n.info(ctx)
	if err != nil || len(i.Databases) == 0 {
		return 0, err
	}
	return strconv.ParseUint(i.Databases[0].TXID, 16, 64)
}

// reaches waits until the node has a transaction.
func (n *node) reaches(ctx context.Context, id uint64) error {
	for {
		at, err := n.txid(ctx)
		if err != nil || at >= id {
			return err
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// subscription notes when events came.
type subscription struct {
	mu    sync.Mutex
	times map[uint64]int64 // by transaction, nanoseconds since 1970
	err   error
	end   context.CancelFunc
	ended chan struct{}
}

// subscribe returns once the first event is there.
func (n *node) subscribe(ctx context.Context) (*subscription, error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := get(ctx, n.url+"/events") //nolint:bodyclose // the goroutine below closes it
	if err != nil {
		cancel()
		return nil, err
	}
	s := &subscription{times: map[uint64]int64{}, end: cancel, ended: make(chan struct{})}
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() {
		cancel()
		return nil, errors.Join(lines.Err(), resp.Body.Close(), errors.New("no first event"))
	}
	go func() {
		defer close(s.ended)
		defer resp.Body.Close()
		for lines.Scan() {
			now := time.Now().UnixNano()
			var e struct {
				Data struct {
					TXID string `json:"txID"`
				} `json:"data"`
			}
			if json.Unmarshal(lines.Bytes(), &e) != nil || e.Data.TXID == "" {
				continue
			}
			id, err := strconv.ParseUint(e.Data.TXID, 16, 64)
			s.mu.Lock()
			s.times[id] = now
			s.err = errors.Join(s.err, err)
			s.mu.Unlock()
		}
		if ctx.Err() == nil {
			s.mu.Lock()
			s.err = errors.Join(s.err, errors.New("cut off"), lines.Err())
			s.mu.Unlock()
		}
	}()
	return s, nil
}

// at returns when the event of a transaction came.
func (s *subscription) at(id uint64) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.times[id]
	return t, ok
}

func (s *subscription) close() {
	s.end()
	<-s.ended
}

// removeLog removes the transactions of a node that does not run, so that the next replica has to copy.
func removeLog(root string) error {
	logs, err := filepath.Glob(filepath.Join(root, "data", "log", "*", "*.seg"))
	if err != nil {
		return err
	}
	for _, l := range logs {
		err = errors.Join(err, os.Remove(l))
	}
	return err
}
