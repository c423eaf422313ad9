package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
)

// listWait limits how long a sandbox may take to list its processes.
const listWait = 10 * time.Second

// errTooMuch: the sandbox answers with more than it can have to say.
var errTooMuch = errors.New("the sandbox's answer is too large")

// Processes implements driver.Driver. The guest's init is not listed. A guest controls what it answers,
// so the size of each part and the time of the whole are limited.
func (d *Driver) Processes(ctx context.Context, h driver.Handle) ([]hangar.Process, error) {
	s, err := d.running(h)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	var list procfsList
	if err := s.call(limited, methodProcfs, &struct{}{}, &list); err != nil {
		return nil, fmt.Errorf("list processes of machine %s: %w", s.ID, err)
	}
	entries := slices.DeleteFunc(list, procfsEntry.isInit)
	times, err := s.processorTimes(limited, entries)
	if err != nil {
		return nil, fmt.Errorf("read processor times in machine %s: %w", s.ID, err)
	}
	listening, err := s.listening(limited, entries)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		// The list is useful without sockets, too: the program that finds them cannot start in a
		// Machine that has no memory left.
		d.log.LogAttrs(ctx, slog.LevelDebug, "listening sockets not found",
			slog.String("machine", string(s.ID)), slog.Any("error", err))
	}
	now := time.Now()
	out := make([]hangar.Process, 0, len(entries))
	for _, e := range entries {
		p := hangar.Process{
			PID: int(e.Status.PID), Command: e.command(), Directory: e.CWD, RSS: int64(e.Status.VMRSS) << 10,
			ListenSockets: append([]hangar.ListenSocket{}, listening[e.Status.PID]...),
		}
		if t, ok := times[e.Status.PID]; ok {
			p.StartedMS, p.RunMS = t.system.Milliseconds(), t.user.Milliseconds()
			if life := now.Sub(time.Unix(0, e.StartTime)); life > 0 {
				p.CPU = float64(t.system+t.user) / float64(life)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// isInit reports whether the process is the guest's init, as PID 1 or beside an executed command: it
// has no parent inside the sandbox. A process that the init has forked counts as a command, even
// before it has executed it.
func (e procfsEntry) isInit() bool {
	return len(e.Args) > 0 && e.Args[0] == initPath && e.Status.PPID == 0
}

// command is the command line that started the process.
func (e procfsEntry) command() string {
	args := e.Args
	if len(args) > 0 && args[0] == initPath {
		args = guestinit.Command(args)
	}
	if len(args) == 0 {
		return e.Status.Comm
	}
	return strings.Join(args, " ")
}

// processorTime is the processor time that a process has used.
type processorTime struct{ user, system time.Duration }

// tick is the unit of processor times in /proc.
const tick = time.Second / 100

// processorTimes reads /proc/PID/stat of the processes. It omits processes that have ended meanwhile.
func (s *sandbox) processorTimes(ctx context.Context, entries []procfsEntry) (map[int32]processorTime, error) {
	out := make(map[int32]processorTime, len(entries))
	for len(entries) > 0 {
		files := make([]string, len(entries))
		for i, e := range entries {
			files[i] = "/proc/" + strconv.Itoa(int(e.Status.PID)) + "/stat"
		}
		text, err := s.cat(ctx, files)
		for line := range strings.Lines(text) {
			if pid, t, ok := parseStat(line); ok {
				out[pid] = t
			}
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil || errors.Is(err, driver.ErrNotFound) || errors.Is(err, errTooMuch) {
			return nil, err
		}
		// The sandbox stopped at the first missing file: continue after it.
		gone := slices.IndexFunc(entries, func(e procfsEntry) bool {
			_, known := out[e.Status.PID]
			return !known
		})
		if gone < 0 {
			break
		}
		entries = entries[gone+1:]
	}
	return out, nil
}

// maxStat limits the length of a /proc/PID/stat, which has 52 numbers and a short name.
const maxStat = 4 << 10

// cat returns the concatenated contents of files in the sandbox, of maxStat bytes each on average at
// most. On an error it returns what it has read so far.
func (s *sandbox) cat(ctx context.Context, files []string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = r.Close() })() // the sandbox may still write
	limit := maxStat * len(files)
	read := make(chan []byte, 1)
	go func() {
		// Ends when both the sandbox and this side have closed the other end.
		b, _ := io.ReadAll(io.LimitReader(r, int64(limit)+1))
		if len(b) > limit {
			cancel()
		}
		read <- b
	}()
	args := catArgs{Files: files, filePayload: filePayload{Files: []*os.File{w}}}
	err = s.call(ctx, methodCat, &args, nil)
	_ = w.Close()
	b := <-read
	if len(b) > limit {
		return "", errTooMuch
	}
	return string(b), err
}

// parseStat reads a line of /proc/PID/stat.
func parseStat(line string) (pid int32, t processorTime, ok bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')') // the name may contain anything
	if open < 0 || end < open {
		return 0, processorTime{}, false
	}
	const userField, systemField = 11, 12 // index of the fields after the name
	fields := strings.Fields(line[end+1:])
	if len(fields) <= systemField {
		return 0, processorTime{}, false
	}
	id, err := strconv.ParseInt(strings.TrimSpace(line[:open]), 10, 32)
	if err != nil {
		return 0, processorTime{}, false
	}
	user, userErr := strconv.ParseInt(fields[userField], 10, 64)
	system, systemErr := strconv.ParseInt(fields[systemField], 10, 64)
	t = processorTime{user: time.Duration(user) * tick, system: time.Duration(system) * tick}
	return int32(id), t, userErr == nil && systemErr == nil
}

// maxSockets limits the open sockets that are examined. A program listens before it has many
// connections, and the kernel assigns descriptors in ascending order, so listening sockets come
// first.
const maxSockets = 1024

// listening returns the listening sockets of each process. The sandbox reports which files are
// sockets; a program inside finds their addresses.
func (s *sandbox) listening(ctx context.Context, entries []procfsEntry) (map[int32][]hangar.ListenSocket, error) {
	holders := make(map[string][]int32) // by name of the socket
	names := make(map[guestinit.File]string)
	var ask []guestinit.File
	for _, e := range entries {
		for _, f := range e.FDs {
			if !strings.HasPrefix(f.Path, "socket:[") {
				continue
			}
			file := guestinit.File{PID: e.Status.PID, FD: f.Number}
			if len(holders[f.Path]) == 0 {
				names[file] = f.Path
				ask = append(ask, file)
			}
			if !slices.Contains(holders[f.Path], file.PID) {
				holders[f.Path] = append(holders[f.Path], file.PID)
			}
		}
	}
	if len(ask) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(ask, func(a, b guestinit.File) int { return int(a.FD - b.FD) })
	ask = ask[:min(len(ask), maxSockets)]
	// Sorted by process, because the program opens each process once.
	slices.SortStableFunc(ask, func(a, b guestinit.File) int { return int(a.PID - b.PID) })
	var in []byte
	for _, f := range ask {
		in = guestinit.AppendFile(in, f)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	printed := capped{limit: guestinit.RecordSize * len(ask), excess: cancel}
	result, err := s.exec(ctx, driver.Command{Args: guestinit.SocketsArgs(initPath)}, hangar.ExecStreams{
		Stdin: bytes.NewReader(in), Stdout: &printed,
	})
	if err != nil {
		return nil, cmp.Or(printed.err, err)
	}
	if result.ExitCode != 0 {
		return nil, fmt.Errorf("guest's init ended with code %d", result.ExitCode)
	}
	out := make(map[int32][]hangar.ListenSocket)
	for _, l := range guestinit.ListeningSockets(printed.kept) {
		for _, pid := range holders[names[l.File]] {
			out[pid] = append(out[pid], hangar.ListenSocket{Proto: l.Proto, Address: l.Address.String()})
		}
	}
	return out, nil
}

// capped keeps up to limit bytes. It refuses a write beyond them, and calls excess.
type capped struct {
	kept   []byte
	limit  int
	excess func()
	err    error
}

func (c *capped) Write(p []byte) (int, error) {
	if len(p) > c.limit-len(c.kept) {
		c.err = errTooMuch
		c.excess()
		return 0, c.err
	}
	c.kept = append(c.kept, p...)
	return len(p), nil
}
