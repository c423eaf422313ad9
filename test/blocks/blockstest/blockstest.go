// Package blockstest builds the program blocks, runs it, and records what it acknowledged, for
// tests of volumes.
//
// A Writer may be used from many goroutines. Its connection fails whenever the program ends, which
// it does not hide.
package blockstest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Port is where the program listens in a Machine.
const Port = 8080

// State is what the program answers.
type State struct {
	ID       string   `json:"id"`      // of the process
	Found    []uint64 `json:"found"`   // the last complete batch in each directory at its start
	Batches  []uint64 `json:"batches"` // and now
	Read     int64    `json:"read"`    // bytes, in this check
	Problems []string `json:"problems"`
}

// Build builds the program and returns its file.
func Build(tb testing.TB) string {
	tb.Helper()
	binary := filepath.Join(tb.TempDir(), "blocks")
	if err := gobuild.Build(tb.Context(), binary, "github.com/hangar-platform/hangar/test/blocks"); err != nil {
		tb.Fatal(err)
	}
	return binary
}

// Env are the settings of a program with ledgers in some directories.
func Env(dirs ...string) map[string]string {
	return map[string]string{"BLOCKS_DIRS": strings.Join(dirs, ",")}
}

// Writer is a program that runs somewhere, as a client sees it.
type Writer struct {
	base string
	http *http.Client

	mu    sync.Mutex
	acked []uint64 // the last batch of each ledger that was acknowledged to any Writer method
}

// New returns a Writer for the program at an address.
func New(tb testing.TB, addr string) *Writer {
	tb.Helper()
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}
	tb.Cleanup(transport.CloseIdleConnections)
	return &Writer{base: "http://" + addr, http: &http.Client{Transport: transport}}
}

// Start runs the program on this host, with ledgers in some directories, until the test
// ends or kill is called.
func Start(tb testing.TB, binary string, dirs ...string) (w *Writer, kill func()) {
	tb.Helper()
	free, err := freeport.Port(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	port := strconv.Itoa(free)
	cmd := exec.Command(binary)
	cmd.Env = []string{"BLOCKS_PORT=" + port}
	for name, value := range Env(dirs...) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	tb.Cleanup(kill)
	w = New(tb, net.JoinHostPort("127.0.0.1", port))
	if _, err := w.Ready(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return w, kill
}

// Ready waits until the program has checked what it found, at most a minute, and returns
// that.
func (w *Writer) Ready(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		s, err := w.State(ctx)
		if err == nil {
			return s, nil
		}
		if pause.For(ctx, 5*time.Millisecond) != nil {
			return s, fmt.Errorf("the program does not answer: %w", err)
		}
	}
}

// State asks how far the program is.
func (w *Writer) State(ctx context.Context) (State, error) {
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return w.ask(short, http.MethodGet, "/state", nil)
}

// Check lets the program read everything again.
func (w *Writer) Check(ctx context.Context) (State, error) {
	return w.ask(ctx, http.MethodPost, "/check", nil)
}

// Run lets the program do batches in each ledger.
func (w *Writer) Run(ctx context.Context, n int) (State, error) {
	s, err := w.ask(ctx, http.MethodPost, "/run", url.Values{"n": {strconv.Itoa(n)}})
	if err == nil {
		w.acknowledge(s.Batches)
	}
	return s, err
}

// Fill writes megabytes of random bytes into the first directory.
func (w *Writer) Fill(ctx context.Context, mb int) error {
	_, err := w.ask(ctx, http.MethodPost, "/fill", url.Values{"mb": {strconv.Itoa(mb)}})
	return err
}

func (w *Writer) ask(ctx context.Context, method, path string, values url.Values) (s State, err error) {
	body, err := w.open(ctx, method, path, values)
	if err != nil {
		return s, err
	}
	defer body.Close()
	return s, json.NewDecoder(body).Decode(&s)
}

func (w *Writer) open(ctx context.Context, method, path string, values url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := w.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		return nil, fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(said)))
	}
	return res.Body, nil
}

// Write lets the program do batches, and keeps account of them, until ctx ends or the
// program does. It returns the error that ended it, nil for the end of ctx.
func (w *Writer) Write(ctx context.Context) error {
	body, err := w.open(ctx, http.MethodPost, "/write", nil)
	if err == nil {
		defer body.Close()
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			batches, err := numbers(lines.Text())
			if err != nil {
				return fmt.Errorf("the program says: %s", lines.Text())
			}
			w.acknowledge(batches)
		}
		err = lines.Err()
	}
	if ctx.Err() != nil {
		return nil // the end that was asked for
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func numbers(line string) (all []uint64, err error) {
	for word := range strings.FieldsSeq(line) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func (w *Writer) acknowledge(batches []uint64) {
	w.mu.Lock()
	w.acked = batches
	w.mu.Unlock()
}

// Acked returns the last batch of each ledger that the program acknowledged, or nil.
func (w *Writer) Acked() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.acked)
}

// Lost says what is missing of what was acknowledged, or is not as it was; empty: nothing.
func (s *State) Lost(acked []uint64) string {
	var all []string
	for i, n := range acked {
		if i >= len(s.Batches) || s.Batches[i] < n {
			all = append(all, fmt.Sprintf("batch %d of ledger %d was acknowledged, and %v is there", n, i, s.Batches))
		}
	}
	return strings.Join(append(all, s.Problems...), "\n")
}
