package logs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/keeper"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// writer writes numbered lines as fast as it can, as a Machine does: its standard output is the
// FIFO, opened for reading and writing. Lines have many lengths, and are written in pieces that do
// not end where lines do.
func writer(fifo, lines string) {
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	must(err)
	count, err := strconv.Atoi(lines)
	must(err)
	w := bufio.NewWriterSize(f, 7001)
	for i := range count {
		_, err := w.WriteString(testLine(i) + "\n")
		must(err)
	}
	must(w.Flush())
	fmt.Println("written") // and keep the FIFO until told to go
	_, _ = io.Copy(io.Discard, os.Stdin)
	must(f.Close())
}

func testLine(i int) string { return fmt.Sprintf("line %08d %s", i, strings.Repeat("x", i*i%331)) }

// daemon captures a FIFO until it is killed. With an empty socket it uses no keeper.
func daemon(dir, fifo, socket string) {
	o := Options{Dir: dir, MaxFiles: 1000, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if socket != "" {
		o.Keeper = keeper.New(keeper.Options{Socket: socket, Start: startKeeper, Log: o.Log})
		must(o.Keeper.Open(context.Background()))
	}
	s := New(o)
	must(s.Open(context.Background()))
	must(s.Capture(ref, fifo))
	fmt.Println("ready")
	select {}
}

// startKeeper starts a keeper that outlives this process.
func startKeeper(listener *os.File) (*os.Process, error) {
	return os.StartProcess("/proc/self/exe", []string{"keeper"}, &os.ProcAttr{
		Env: []string{roleEnv + "=" + roleKeeper}, Files: []*os.File{nil, nil, os.Stderr, listener},
		Sys: &unix.SysProcAttr{Setsid: true},
	})
}

// keeperSocket names a keeper that ends with the test.
func keeperSocket(tb testing.TB) string {
	tb.Helper()
	socket := filepath.Join(tb.TempDir(), "keeper", "socket")
	tb.Cleanup(func() { must(keeper.Quit(context.Background(), socket)) })
	return socket
}

// openKeeper opens a client of the keeper, as a daemon does.
func openKeeper(tb testing.TB, socket string) *keeper.Client {
	tb.Helper()
	c := keeper.New(keeper.Options{Socket: socket, Start: startKeeper, Log: slog.New(slog.NewTextHandler(tb.Output(), nil))})
	must(c.Open(tb.Context()))
	tb.Cleanup(func() { must(c.Close()) })
	return c
}

func role(t *testing.T, name string, args ...string) (cmd *exec.Cmd, out *bufio.Reader, in io.Closer) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	stdin, err := cmd.StdinPipe()
	must(err)
	stdout, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(stdout), stdin
}

func expect(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	if got, err := out.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestNothingIsLostWhileTheDaemonRestarts(t *testing.T) {
	dir, fifo := filepath.Join(t.TempDir(), "logs"), fifoOf(t)
	o := Options{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1000}
	const count = 60000 // 11 MB
	s := open(t, o)
	must(s.Capture(ref, fifo))
	_, out, in := role(t, roleWriter, fifo, strconv.Itoa(count))
	restarts := 0
	written := make(chan struct{})
	go func() {
		defer close(written)
		expect(t, out, "written")
	}()
	for !isClosed(written) {
		must(s.Close())
		s = open(t, o)
		must(s.Capture(ref, fifo))
		restarts++
	}
	must(in.Close())
	must(s.Release(ref.ID))
	all := readAll(t, s, 5000)
	if len(all) != count {
		t.Errorf("%d lines after %d restarts, want %d", len(all), restarts, count)
	}
	for i, e := range all {
		if e.Message != testLine(i) {
			t.Fatalf("line %d is %q", i, e.Message)
		}
	}
	if restarts < 2 {
		t.Errorf("only %d restarts", restarts)
	}
}

// Daemons are killed with SIGKILL while output arrives: every line is recorded once and in order.
// Without a keeper, the Machine must outlive the last daemon.
func TestKill(t *testing.T) {
	racetest.Skip(t)
	testKill(t, "")
}

// With one it may end at any moment, too.
func TestKillAndEnd(t *testing.T) {
	racetest.Skip(t)
	socket := keeperSocket(t)
	for range 5 {
		testKill(t, socket)
	}
}

func testKill(t *testing.T, socket string) {
	t.Helper()
	dir, fifo := filepath.Join(t.TempDir(), "logs"), fifoOf(t)
	must(unix.Mkfifo(fifo, 0o600))
	cmd, ready, _ := role(t, roleDaemon, dir, fifo, socket)
	expect(t, ready, "ready")
	count := 60000
	if socket != "" {
		count = 10000 // this is about the end
	}
	writer, out, in := role(t, roleWriter, fifo, strconv.Itoa(count))
	if socket != "" {
		must(in.Close()) // ends at once when all is written
	}
	kills := 0
	written := make(chan struct{})
	go func() {
		defer close(written)
		expect(t, out, "written")
	}()
	for ; ; kills++ {
		select {
		case <-written:
		// Later daemons run longer, so that the test ends even if daemons progress slowly.
		case <-time.After(time.Duration(kills%7)*500*time.Microsecond + time.Duration(kills)*200*time.Microsecond):
		}
		must(cmd.Process.Kill())
		_ = cmd.Wait()
		if isClosed(written) {
			break
		}
		cmd, ready, _ = role(t, roleDaemon, dir, fifo, socket)
		expect(t, ready, "ready")
	}
	o := Options{Dir: dir, MaxFiles: 1000}
	if socket != "" {
		must(writer.Wait()) // its end of the FIFO is gone
		o.Keeper = openKeeper(t, socket)
		if got := o.Keeper.Inherited(); len(got) != 1 || got[0].Path != fifo {
			t.Errorf("the keeper holds %v", got)
		}
	}
	s := open(t, o)
	must(s.Capture(ref, fifo))
	if socket == "" {
		must(in.Close()) // not before: the content of a FIFO goes with its last opener
	}
	must(s.Release(ref.ID))
	all := readAll(t, s, 5000)
	t.Logf("%d kills", kills)
	if len(all) != count || kills < 1 {
		t.Errorf("%d lines after %d kills, want %d", len(all), kills, count)
	}
	for i, e := range all {
		if e.Message != testLine(i) {
			t.Fatalf("line %d is %q, want %q", i, e.Message, testLine(i))
		}
	}
	must(s.Close())
	if o.Keeper != nil {
		must(o.Keeper.Close())
	}
}

// The agent does not capture a Machine again that is about to be destroyed or has lost its handle,
// but releases it. Its last output is recorded nevertheless.
func TestReleaseFindsWhatIsKept(t *testing.T) {
	socket, dir, fifo := keeperSocket(t), filepath.Join(t.TempDir(), "logs"), fifoOf(t)
	restart := func() (*Store, *keeper.Client) {
		c := openKeeper(t, socket)
		return open(t, Options{Dir: dir, Keeper: c}), c
	}
	s, c := restart()
	must(s.Capture(ref, fifo))
	must(s.Close())
	must(c.Close())
	f := machineOutput(t, fifo)
	write(t, f, "panic: oh\nno")
	must(f.Close())

	s, c = restart()
	must(s.Release(ref.ID))
	wantMessages(t, readAll(t, s, 10), "panic: oh", "no")
	must(s.Close())
	must(c.Close())

	s, c = restart()
	if left := c.Inherited(); len(left) != 0 {
		t.Errorf("after Release the keeper holds %v", left)
	}
	must(s.Capture(ref, fifo))
	must(s.Close())
	must(c.Close())
	must(os.Remove(fifo))

	s, c = restart() // the FIFO was removed meanwhile
	must(s.Release(ref.ID))
	if _, err := os.Stat(fifo); err == nil {
		t.Error("a FIFO was made without a reader")
	}
	must(s.Close())
	must(c.Close())
	if left := openKeeper(t, socket).Inherited(); len(left) != 0 {
		t.Errorf("a FIFO that was removed is kept: %v", left)
	}
}

// The same at each point between the steps of a chunk.
func TestKillBetweenSteps(t *testing.T) {
	const before, chunk = "zero\n", "one\ntwo\nthr"
	for name, c := range map[string]struct {
		cut   int64 // how much of the records is missing
		taken bool
		then  string // what the Machine writes while there is no daemon
		want  []string
	}{
		"nothing written":       {cut: -1, want: []string{"zero", "one", "two", "three"}},
		"torn":                  {cut: 10, want: []string{"zero", "one", "two", "three"}},
		"some records":          {cut: 35, want: []string{"zero", "one", "two", "three"}},
		"written":               {want: []string{"zero", "one", "two", "three"}},
		"taken":                 {taken: true, want: []string{"zero", "one", "two", "three"}},
		"taken, then the like":  {taken: true, then: "xxx\nxxx\nxxx", want: []string{"zero", "one", "two", "thrxxx", "xxx", "xxxee"}},
		"written, then another": {then: "EE\nx", want: []string{"zero", "one", "two", "thrEE", "xee"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: filepath.Join(t.TempDir(), "logs")}
			fifo := fifoOf(t)
			must(unix.Mkfifo(fifo, 0o600))
			f := machineOutput(t, fifo)
			s := open(t, o)
			must(s.Capture(ref, fifo))
			write(t, f, before)
			must(s.machines[ref.ID].endCapture(false))
			// A daemon executes the steps up to a certain one.
			m := s.machines[ref.ID]
			offset := m.size
			var err error
			m.note, err = openNote(m.dir)
			must(err)
			write(t, f, chunk)
			m.output([]byte(chunk))
			must(m.note.Close())
			m.note = nil
			size := m.size
			if c.cut < 0 {
				size = offset
			}
			must(os.Truncate(m.path(m.files[0]), size-max(0, c.cut)))
			if c.taken {
				must(readFull(int(f.Fd()), make([]byte, len(chunk))))
			}
			write(t, f, c.then)
			must(s.Close())
			s = open(t, o)
			s.Append(ref, hangar.LogRunner, "info", "the daemon is back")
			must(s.Capture(ref, fifo))
			write(t, f, "ee\n")
			must(s.Release(ref.ID))
			var app []hangar.LogEntry
			for _, e := range readAll(t, s, 100) {
				if e.Provider == hangar.LogApp {
					app = append(app, e)
				}
			}
			wantMessages(t, app, c.want...)
		})
	}
}
