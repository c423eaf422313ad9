// Command guest is what the benchmark of traffic runs in Machines and in the sandboxes
// they are compared with: a server that takes or returns bytes, and its client.
//
//	guest                      serve on port 9000
//	guest send ADDRESS SECONDS send for so long; prints bytes per second, as received
//	guest ping ADDRESS TIMES   send a byte and wait for it; prints nanoseconds, one per line
//
// A connection's first byte says what the server does with the rest: s to count it until
// the end, e to send it back.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

const port = "9000"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return serve()
	}
	if len(args) != 3 {
		return errors.New("say what to do, with whom, and how much")
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort(args[1], port))
	if err != nil {
		return err
	}
	defer conn.Close()
	switch args[0] {
	case "send":
		return send(conn.(*net.TCPConn), time.Duration(n)*time.Second)
	case "ping":
		return ping(conn, n)
	default:
		return fmt.Errorf("unknown command %q", args[0])
	}
}

func serve() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			what := make([]byte, 1)
			if _, err := io.ReadFull(conn, what); err != nil {
				return
			}
			if what[0] == 'e' {
				_, _ = io.Copy(conn, conn) // until the client has enough
				return
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
			if err == nil {
				_ = binary.Write(conn, binary.BigEndian, n) // the client misses it by itself
			}
		}()
	}
}

// send measures until the receiver has everything.
func send(conn *net.TCPConn, lasts time.Duration) error {
	piece := make([]byte, 256<<10)
	piece[0] = 's'
	var sent int64
	began := time.Now()
	for time.Since(began) < lasts {
		n, err := conn.Write(piece)
		if err != nil {
			return err
		}
		sent += int64(n)
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	var received int64
	if err := binary.Read(conn, binary.BigEndian, &received); err != nil {
		return err
	}
	took := time.Since(began)
	if received != sent-1 {
		return fmt.Errorf("%d of %d bytes were received", received, sent-1)
	}
	_, err := fmt.Println(float64(received) / took.Seconds())
	return err
}

func ping(conn net.Conn, times int) error {
	one := []byte{'e'}
	if _, err := conn.Write(one); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for range times {
		began := time.Now()
		if _, err := conn.Write(one); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
		fmt.Fprintln(out, time.Since(began).Nanoseconds())
	}
	return out.Flush()
}
