package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// targetsCommand makes this program all Machines that are scraped, so that what they take is not
// counted.
const targetsCommand = "targets"

// runTargets answers the requests of a scraper with the same series, of which values change. It
// says its address first, and ends with its standard input.
func runTargets(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var t targets
	var accepting sync.WaitGroup
	accepting.Go(func() { t.accept(l) })
	err = answerLines(l.Addr().String(), func(line string) (any, error) { return nil, errors.New("no such question: " + line) })
	err = errors.Join(err, l.Close())
	accepting.Wait()
	t.close()
	return err
}

// targets are the connections to all Machines. Which of them one is for does not matter: the
// scraper's labels tell them apart.
type targets struct {
	serving sync.WaitGroup
	mu      sync.Mutex
	open    []net.Conn // guarded by mu
}

func (t *targets) accept(l net.Listener) {
	for i := 0; ; i++ {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.mu.Lock()
		t.open = append(t.open, conn)
		t.mu.Unlock()
		t.serving.Go(func() {
			defer conn.Close()
			serveTarget(conn, i)
		})
	}
}

func (t *targets) close() {
	t.mu.Lock()
	for _, conn := range t.open {
		_ = conn.Close() // it may be closed already
	}
	t.mu.Unlock()
	t.serving.Wait()
}

// serveTarget answers each request on a connection.
func serveTarget(conn net.Conn, seed int) {
	request := make([]byte, 4<<10)
	var body, answer bytes.Buffer
	for round := 0; ; round++ {
		if n, err := conn.Read(request); err != nil || !bytes.HasSuffix(request[:n], []byte("\r\n\r\n")) {
			return
		}
		body.Reset()
		body.WriteString("# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\n")
		for s := range seriesPerTarget {
			body.WriteString(`http_requests_total{method="GET",code="200",path="/api/v1/things/`)
			body.WriteString(strconv.Itoa(s))
			body.WriteString("\"} ")
			body.WriteString(strconv.Itoa(round*s + seed))
			body.WriteByte('\n')
		}
		answer.Reset()
		fmt.Fprintf(&answer, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n", body.Len())
		answer.Write(body.Bytes())
		if _, err := conn.Write(answer.Bytes()); err != nil {
			return
		}
	}
}
