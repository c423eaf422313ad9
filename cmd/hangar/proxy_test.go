package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// background is a `hangar proxy` that a script runs. Scripts cannot run it by themselves, because they
// would not know where it listens, and since when.
type background struct {
	addr   string
	cancel context.CancelFunc
	ended  chan int // its exit code
	stderr strings.Builder
}

// proxyCommands are the script commands for a proxy: "proxy ARGS..." starts one, "talk WORDS..." sends a
// line through it and expects it back, "end" interrupts it and sets the script's stderr to its errors.
func proxyCommands() map[string]func(ts *testscript.TestScript, neg bool, args []string) {
	var mu sync.Mutex // guards running: scripts run concurrently
	running := map[*testscript.TestScript]*background{}
	of := func(ts *testscript.TestScript) *background {
		mu.Lock()
		defer mu.Unlock()
		if running[ts] == nil {
			ts.Fatalf("no proxy runs")
		}
		return running[ts]
	}
	return map[string]func(ts *testscript.TestScript, neg bool, args []string){
		"proxy": func(ts *testscript.TestScript, _ bool, args []string) {
			b := newBackground(ts, args)
			mu.Lock()
			defer mu.Unlock()
			running[ts] = b
		},
		"talk": func(ts *testscript.TestScript, neg bool, args []string) {
			line := strings.Join(args, " ") + "\n"
			got, err := talk(of(ts).addr, line)
			if (err == nil && got == line) == neg {
				ts.Fatalf("sent %q, received %q, %v", line, got, err)
			}
		},
		"end": func(ts *testscript.TestScript, _ bool, _ []string) {
			b := of(ts)
			b.cancel()
			if code := <-b.ended; code != cli.ExitOK {
				ts.Fatalf("the proxy ended with %d", code)
			}
			ts.Check(ts.Exec("sh", "-c", `printf %s "$1" >&2`, "sh", b.stderr.String()))
			mu.Lock()
			defer mu.Unlock()
			delete(running, ts)
		},
	}
}

func newBackground(ts *testscript.TestScript, args []string) *background {
	out, in := io.Pipe()
	b := &background{ended: make(chan int, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	env := map[string]string{}
	for _, name := range []string{"HANGAR_URL", "HANGAR_TOKEN", "HANGAR_DIR"} {
		env[name] = ts.Getenv(name)
	}
	c := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: in, Stderr: &b.stderr}, func(name string) string { return env[name] })
	go func() {
		b.ended <- run(ctx, c, append([]string{"proxy", "--quiet"}, args...))
		in.Close()
	}()
	ts.Defer(cancel)
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		ts.Fatalf("the proxy says nothing: %v, %s", err, b.stderr.String())
	}
	b.addr = strings.TrimSpace(addr)
	return b
}

// talk sends a text, closes its side of the connection, and returns the answer.
func talk(addr, text string) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(conn)
	return string(got), err
}
