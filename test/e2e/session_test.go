package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stepPatience bounds one exchange with a program, a resume of its Machine included.
const stepPatience = 60 * time.Second

// session is a client with one established connection. Each step is an exchange on
// that connection, and fails unless the program still knows all earlier steps.
type session interface {
	step() error
}

// httpSession counts requests on one connection that is never made again.
type httpSession struct {
	conn net.Conn
	r    *bufio.Reader
	path string
	// number finds in an answer what grows by one with each request.
	number func(body string) (int, error)
	last   int
}

// newHTTPSession connects to a program that has no other users from now on.
func newHTTPSession(t *testing.T, addr, path string, number func(string) (int, error)) *httpSession {
	t.Helper()
	conn := dial(t, addr)
	s := &httpSession{conn: conn, r: bufio.NewReader(conn), path: path, number: number, last: -1}
	if err := s.step(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *httpSession) step() error {
	if err := s.conn.SetDeadline(time.Now().Add(stepPatience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: e2e\r\n\r\n", s.path); err != nil {
		return err
	}
	res, err := http.ReadResponse(s.r, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	n, err := s.number(string(body))
	if err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %q: %w", res.Status, body, err)
	}
	if s.last >= 0 && n != s.last+1 {
		return fmt.Errorf("request %d follows request %d", n, s.last)
	}
	s.last = n
	return nil
}

// firstNumber reads the number in "7 text".
func firstNumber(body string) (int, error) {
	word, _, _ := strings.Cut(strings.TrimSpace(body), " ")
	return strconv.Atoi(word)
}

// lineSession speaks a protocol of lines, on a connection or with a client program.
type lineSession struct {
	w io.Writer
	r *bufio.Reader
	// exchange sends the n-th request and checks the answer.
	exchange func(s *lineSession, n int) error
	n        int
}

func (s *lineSession) step() error {
	s.n++
	return s.exchange(s, s.n)
}

func (s *lineSession) send(format string, args ...any) error {
	_, err := fmt.Fprintf(s.w, format, args...)
	return err
}

func (s *lineSession) line() (string, error) {
	line, err := s.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

// expect reads a line.
func (s *lineSession) expect(want string) error {
	got, err := s.line()
	if err == nil && got != want {
		err = fmt.Errorf("answered %q, not %q", got, want)
	}
	return err
}

// newLineSession connects to a program.
func newLineSession(t *testing.T, addr string, exchange func(s *lineSession, n int) error) *lineSession {
	t.Helper()
	conn := dial(t, addr)
	s := &lineSession{w: conn, r: bufio.NewReader(conn)}
	s.exchange = func(s *lineSession, n int) error {
		if err := conn.SetDeadline(time.Now().Add(stepPatience)); err != nil {
			return err
		}
		return exchange(s, n)
	}
	if err := s.step(); err != nil {
		t.Fatal(err)
	}
	return s
}

// newProgramSession starts a client program that reads requests from its standard
// input. It ends with the test.
func newProgramSession(t *testing.T, exchange func(s *lineSession, n int) error, command ...string) *lineSession {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; `make deps` installs it", err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s := &lineSession{w: stdin, r: bufio.NewReader(stdout)}
	s.exchange = func(s *lineSession, n int) error {
		// A pipe of a process has no deadline: the process gets one.
		overdue := time.AfterFunc(stepPatience, func() { _ = cmd.Process.Kill() })
		defer overdue.Stop()
		return exchange(s, n)
	}
	if err := s.step(); err != nil {
		t.Fatal(err)
	}
	return s
}
