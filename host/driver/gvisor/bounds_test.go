package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// hostile is the control server of a sandbox that its guest has taken over.
type hostile struct {
	testing.TB
	procfs  string // the answer of methodProcfs
	endless string // the method whose answer has no end
	hangups int    // how many connections end without an answer
	killed  chan struct{}
	kill    func()
}

// endlessly writes text until the reader closes it.
func endlessly(w interface{ Write(b []byte) (int, error) }, text string) {
	text = strings.Repeat(text, 64<<10/len(text))
	for {
		if _, err := w.Write([]byte(text)); err != nil {
			return
		}
	}
}

func (h *hostile) serve(conn *net.UnixConn) {
	defer conn.Close()
	b, oob := make([]byte, 1<<20), make([]byte, 4<<10)
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return
	}
	var files []*os.File
	messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "payload"))
		}
	}
	var ask struct{ Method string }
	if err := json.Unmarshal(b[:n], &ask); err != nil {
		h.Error(err)
	}
	result := "null"
	switch endless := ask.Method == h.endless; ask.Method {
	case methodProcfs:
		result = h.procfs
		if endless {
			_, _ = conn.Write([]byte(`{"success":true,"result":`))
			endlessly(conn, h.procfs)
		}
	case methodCat:
		if endless {
			endlessly(files[0], "1 (a) R 0 ")
		}
	case methodExec:
		result = "7"
		if endless {
			go endlessly(files[1], "1234")
			files = slices.Delete(files, 1, 2)
		}
	case methodSignal:
		h.kill()
	case methodWaitPID:
		<-h.killed
		result = "9"
	}
	for _, f := range files {
		_ = f.Close()
	}
	_, _ = conn.Write([]byte(`{"success":true,"result":` + result + `}`))
}

// start serves the sandbox.
func (h *hostile) start() *sandbox {
	h.killed = make(chan struct{})
	h.kill = sync.OnceFunc(func() { close(h.killed) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(h.TempDir(), "s"), Net: "unix"})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if h.hangups > 0 {
				h.hangups--
				_ = conn.Close()
				continue
			}
			go h.serve(conn)
		}
	}()
	return &sandbox{handle: handle{ID: "m", Dir: "/", Socket: l.Addr().String()}, done: make(chan struct{})}
}

// list lists the processes of the sandbox.
func (h *hostile) list() ([]hangar.Process, error) {
	d, s := New(Options{}), h.start()
	d.sandboxes[s.ID] = s
	at, err := s.encode()
	if err != nil {
		h.Fatal(err)
	}
	return d.Processes(h.Context(), at)
}

// TestEndlessAnswers: however much a guest answers, its host keeps only what a Machine can have to say.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	const process = `{"args":["a"],"fdlist":[{"number":3,"path":"socket:[1]"}],"status":{"pid":1}}`
	for name, h := range map[string]*hostile{
		"processes": {procfs: "[" + strings.Repeat("{},", allTasks) + "{}]"},
		"file":      {procfs: "[" + process + "]", endless: methodCat},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.TB = t
			if list, err := h.list(); !errors.Is(err, errTooMuch) {
				t.Errorf("%d processes, %v", len(list), err)
			}
		})
	}
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		h := &hostile{TB: t, procfs: strings.Repeat(" ", 1<<10), endless: methodProcfs}
		if err := h.start().call(t.Context(), methodProcfs, &struct{}{}, new(procfsList)); !errors.Is(err, errTooMuch) {
			t.Error(err)
		}
	})
	t.Run("program", func(t *testing.T) {
		t.Parallel()
		h := &hostile{TB: t, procfs: "[" + process + "]", endless: methodExec}
		list, err := h.list()
		if err != nil || len(list) != 1 || len(list[0].ListenSockets) > 0 {
			t.Errorf("%+v, %v; want the process without sockets", list, err)
		}
	})
}

// TestSizesThatAreNotRead: a guest that does not read the sizes of its terminal does not keep its
// command from ending.
func TestSizesThatAreNotRead(t *testing.T) {
	sizes := make(chan hangar.TerminalSize)
	cmd, streams := driver.Command{TTY: true}, hangar.ExecStreams{Resize: sizes}
	p, err := newPipes(cmd, streams)
	if err != nil {
		t.Fatal(err)
	}
	defer p.closeOurs()
	defer p.closeGuest()
	room, err := unix.FcntlInt(p.guest[len(p.guest)-1].Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.start(cmd, streams, func(err error) { t.Error(err) })
	for range room/4 + 1 { // the last one does not fit
		sizes <- hangar.TerminalSize{Rows: 1, Cols: 1}
	}
	p.finish()
}

// TestStopRepeatsTheSignal: a sandbox whose control server hangs up still gets the stop signal.
func TestStopRepeatsTheSignal(t *testing.T) {
	t.Parallel()
	h := &hostile{TB: t, hangups: 1}
	d, s := New(Options{}), h.start()
	d.sandboxes[s.ID] = s
	at, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		<-h.killed
		close(s.done)
	}()
	if err := d.Stop(ctx, at, hangar.Signal(unix.SIGTERM), time.Hour); err != nil {
		t.Errorf("stopped: %v", err)
	}
	h.kill()
}

// TestExitWithoutDescriptors: how a sandbox ended is read once there are descriptors again.
func TestExitWithoutDescriptors(t *testing.T) {
	for name, file := range map[string]string{"exited": bundle.ExitFile, "suspended": bundle.SuspendFile} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			content := map[string]string{
				bundle.ExitFile: `{"ws":1792,"at":"2026-01-02T03:04:05Z"}`, bundle.SuspendFile: dir, bundle.MetaFile: "",
			}
			for _, name := range []string{file, bundle.MetaFile} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content[name]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				var limit unix.Rlimit
				if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
					t.Fatal(err)
				}
				d := New(Options{})
				s := &sandbox{handle: handle{ID: "m", Dir: dir}, done: make(chan struct{})}
				if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
					t.Fatal(err)
				}
				go d.finish(s, nil)
				synctest.Wait()
				if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
					t.Fatal(err)
				}
				<-s.done
				if e := s.exit; e.Unknown || e.Suspended != (file == bundle.SuspendFile) || !e.Suspended && e.Code != 7 {
					t.Errorf("ended: %+v", e)
				}
			})
		})
	}
}
