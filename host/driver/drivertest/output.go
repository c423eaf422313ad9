package drivertest

import (
	"bufio"
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// context returns a context that ends after timeout. It is not the test's own context, which has
// ended when clean-up functions run.
func (m *machine) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	m.t.Cleanup(cancel)
	return ctx
}

// output is the output of a Machine, line by line.
type output struct {
	t     *testing.T
	lines chan string
}

// openOutput reads the FIFO until the test ends.
func openOutput(t *testing.T, path string) *output {
	t.Helper()
	// Opened for writing, too, so that the FIFO does not end between two runs of the Machine.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("open output: %v", err)
	}
	o := &output{t: t, lines: make(chan string, 1<<16)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(o.lines)
		for s := bufio.NewScanner(f); s.Scan(); {
			o.lines <- strings.TrimRight(s.Text(), "\r")
		}
	}()
	t.Cleanup(func() {
		_ = f.Close()
		<-done
	})
	return o
}

// line returns the next line.
func (o *output) line() string {
	o.t.Helper()
	select {
	case l, ok := <-o.lines:
		if !ok {
			o.t.Fatal("the output ended")
		}
		return l
	case <-time.After(timeout):
		o.t.Fatal("no output")
		return ""
	}
}

// expect fails the test unless the next line is want.
func (o *output) expect(want string) {
	o.t.Helper()
	if got := o.line(); got != want {
		o.t.Fatalf("output %q, want %q", got, want)
	}
}

// expectBeside is expect where another command may print other first.
func (o *output) expectBeside(other, want string) {
	o.t.Helper()
	got := o.line()
	if got == other {
		got = o.line()
	}
	if got != want {
		o.t.Fatalf("output %q, want %q", got, want)
	}
}
