// Command guest is the web server behind every proxy that the benchmark of the edge
// compares: it spends next to nothing on a request itself.
//
// On port 8080 it answers GET with a short text, /bytes?n=N with N bytes and a WebSocket by
// echoing its messages. On port 9090 it sends N bytes to a client that sends a line with N.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run() error {
	raw, err := net.Listen("tcp", ":9090") //nolint:noctx,gosec // runs until killed; in a Machine
	if err != nil {
		return err
	}
	go sendRaw(raw)
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}

func answer(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		echo(w, r)
	case r.URL.Path == "/bytes":
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil {
			http.Error(w, "n must be a number", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, zeros{}, n)
	default:
		_, _ = io.WriteString(w, "Hello from a Machine.\n")
	}
}

// echo returns the messages of a WebSocket until it ends.
func echo(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

func sendRaw(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
				_, _ = io.CopyN(c, zeros{}, n)
			}
		}()
	}
}

// zeros is a body without end.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { return len(p), nil }
