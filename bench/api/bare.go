package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bareSize is how many bytes the bare program answers with, as many as a wait does.
const bareSize = 300

// bare is fan without a platform: what a program needs for it that does nothing else.
func bare(ctx context.Context, waiters int) (took []time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-bare", strconv.Itoa(waiters))
	cmd.Stderr = os.Stderr
	say, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &crowd{}
	defer func() {
		c.leave()
		_ = say.Close()
		if ended := cmd.Wait(); err == nil {
			err = ended
		}
	}()
	said := bufio.NewReader(out)
	addr, err := said.ReadString('\n')
	if err != nil {
		return nil, err
	}
	c.conns, err = dial(ctx, strings.TrimSpace(addr), waiters, func(int) []byte { return []byte("\n") })
	if err != nil {
		return nil, err
	}
	if _, err := said.ReadString('\n'); err != nil { // all are there
		return nil, err
	}
	began := time.Now()
	if _, err := say.Write([]byte("\n")); err != nil {
		return nil, err
	}
	return collect(ctx, c.conns, began)
}

// serveBare is the bare program: a goroutine for each connection waits for one channel to be
// closed, and then writes. It says where it listens, then that all are connected, and waits for
// the signal to answer.
func serveBare(ctx context.Context, waiters int, told io.Reader, say io.Writer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(say, l.Addr())
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", bareSize, strings.Repeat("x", bareSize))
	gate := make(chan struct{})
	var answered sync.WaitGroup
	for range waiters {
		conn, err := l.Accept()
		if err != nil {
			close(gate)
			return err
		}
		answered.Go(func() {
			defer conn.Close()
			<-gate
			_, _ = conn.Write(answer)
		})
	}
	fmt.Fprintln(say, "ready")
	_, err = told.Read(make([]byte, 1))
	close(gate)
	answered.Wait()
	return err
}
