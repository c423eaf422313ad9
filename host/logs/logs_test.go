package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/keeper"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// The test binary plays the other processes, too: see the functions of these names.
const (
	roleEnv    = "HANGAR_LOGS_TEST_ROLE"
	roleWriter = "writer"
	roleDaemon = "daemon"
	roleKeeper = "keeper"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case roleWriter:
		writer(os.Args[1], os.Args[2])
	case roleDaemon:
		daemon(os.Args[1], os.Args[2], os.Args[3])
	case roleKeeper:
		l, err := net.FileListener(os.NewFile(3, "listener"))
		must(err)
		must(keeper.Serve(l.(*net.UnixListener)))
	default:
		goleak.VerifyTestMain(m)
	}
}

// writer writes numbered lines as fast as it can, as a Machine does: its standard
// output is the FIFO, opened for reading and writing. Lines are of many lengths and
// are written in pieces that do not end where lines do.
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

// daemon captures a FIFO until it is killed. An empty socket stands for no keeper.
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

// openKeeper plays a daemon's client of the keeper.
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

var ref = hangar.MachineRef{App: "shop", AppID: "shop", ID: "0123456789abcd"}

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t
}

func open(tb testing.TB, o Options) *Store {
	tb.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(tb.TempDir(), "logs")
	}
	o.Region = "loc"
	o.Log = slog.New(slog.NewTextHandler(tb.Output(), nil))
	s := New(o)
	must(s.Open(tb.Context()))
	tb.Cleanup(func() { must(s.Close()) })
	return s
}

func fifoOf(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "output")
}

// machineOutput opens a FIFO as a sandbox does.
func machineOutput(tb testing.TB, fifo string) *os.File {
	tb.Helper()
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	must(err)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func write(tb testing.TB, f *os.File, text string) {
	tb.Helper()
	_, err := f.WriteString(text)
	must(err)
}

func read(tb testing.TB, s *Store, q hangar.LogQuery) hangar.LogPage {
	tb.Helper()
	page, err := s.Read(ref.AppID, q)
	if err != nil {
		tb.Fatal(err)
	}
	return page
}

func messages(entries []hangar.LogEntry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Message)
	}
	return all
}

// readAll reads everything by pages, from the beginning.
func readAll(tb testing.TB, s *Store, limit int) (all []hangar.LogEntry) {
	tb.Helper()
	token := "0"
	for {
		page := read(tb, s, hangar.LogQuery{Token: token, Limit: limit})
		if len(page.Entries) == 0 {
			if page.Next != token {
				tb.Fatalf("empty page after %s has token %s", token, page.Next)
			}
			return all
		}
		if len(page.Entries) > limit {
			tb.Fatalf("%d entries, at most %d were asked for", len(page.Entries), limit)
		}
		all = append(all, page.Entries...)
		token = page.Next
	}
}

func wantMessages(tb testing.TB, got []hangar.LogEntry, want ...string) {
	tb.Helper()
	if g := messages(got); !slices.Equal(g, want) {
		tb.Errorf("lines are\n%q, want\n%q", g, want)
	}
	for i := range len(got) - 1 {
		if !got[i].Time.Before(got[i+1].Time) {
			tb.Errorf("line %d is of %s, the next one of %s", i, got[i].Time, got[i+1].Time)
		}
	}
}

func TestOutputBecomesLines(t *testing.T) {
	long := strings.Repeat("ä", MaxLine) // twice MaxLine in bytes
	for name, c := range map[string]struct {
		pieces []string
		want   []string
	}{
		"lines":              {[]string{"one\ntwo\n"}, []string{"one", "two"}},
		"in pieces":          {[]string{"o", "n", "e\ntw", "o\n"}, []string{"one", "two"}},
		"no last end":        {[]string{"one\ntw", "o"}, []string{"one", "two"}},
		"empty lines":        {[]string{"\n\none\n\n"}, []string{"", "", "one", ""}},
		"carriage returns":   {[]string{"one\r\ntw", "o\r", "\n\r\na\rb\n"}, []string{"one", "two", "", "a\rb"}},
		"not UTF-8":          {[]string{"a\xffb\xc3\n"}, []string{"a\uFFFDb\uFFFD"}},
		"torn character":     {[]string{"a\xc3", "\xa4b\n"}, []string{"aäb"}},
		"zero bytes":         {[]string{"a\x00b\n"}, []string{"a\x00b"}},
		"as long as may be":  {[]string{long[:MaxLine] + "\nend\n"}, []string{long[:MaxLine], "end"}},
		"too long":           {[]string{"x" + long + "\nend\n"}, []string{"x" + long[:MaxLine-2], long[MaxLine-2 : 2*MaxLine-2], "ä", "end"}},
		"too long in pieces": {[]string{"x" + long[:MaxLine-3], long[MaxLine-3:] + "\n"}, []string{"x" + long[:MaxLine-2], long[MaxLine-2 : 2*MaxLine-2], "ä"}},
		"like a record":      {[]string{"1763692800000000000 app info x\n"}, []string{"1763692800000000000 app info x"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{})
			fifo := fifoOf(t)
			must(s.Capture(ref, fifo))
			must(s.Capture(ref, fifo))
			f := machineOutput(t, fifo)
			for _, p := range c.pieces {
				write(t, f, p)
			}
			must(s.Release(ref.ID))
			must(s.Release(ref.ID))
			all := readAll(t, s, 100)
			wantMessages(t, all, c.want...)
			for _, e := range all {
				if e.Provider != hangar.LogApp || e.Level != "info" || e.Instance != ref.ID || e.Region != "loc" {
					t.Errorf("entry %+v", e)
				}
			}
		})
	}
}

// However output is cut into chunks, restarts and rotation, the lines are the same.
func TestOutputIsIndependentOfChunks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "") //nolint:usetesting // one for each round of rapid
		must(err)
		o := Options{Dir: dir, MaxBytes: int64(rapid.IntRange(50, 400).Draw(rt, "max bytes")), MaxFiles: 1000}
		s := open(t, o)
		s.mu.Lock()
		m, err := s.machine(ref)
		s.mu.Unlock()
		must(err)
		text := rapid.StringOfN(rapid.RuneFrom([]rune("ab\n")), 0, 300, -1).Draw(rt, "output")
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "chunk")
			m.output([]byte(rest[:n]))
			rest = rest[n:]
			if rapid.IntRange(0, 9).Draw(rt, "event") == 0 {
				must(m.closeFile()) // killed: what is in memory is lost
				s = open(t, o)
				m = s.machines[ref.ID]
			}
		}
		must(s.Release(ref.ID))
		want := strings.Split(text, "\n")
		if last := len(want) - 1; want[last] == "" {
			want = want[:last]
		}
		got := messages(readAll(t, s, rapid.IntRange(1, 5).Draw(rt, "limit")))
		if !slices.Equal(got, want) {
			rt.Fatalf("lines are %q, want %q", got, want)
		}
		limit := rapid.IntRange(1, 50).Draw(rt, "newest")
		newest := messages(read(t, s, hangar.LogQuery{Limit: limit}).Entries)
		if !slices.Equal(newest, want[max(0, len(want)-limit):]) {
			rt.Fatalf("the newest %d are %q, all %q", limit, newest, want)
		}
		must(s.Close())
	})
}

func TestPlatformLines(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "Machine started\n")
	s.Append(ref, "health", "error", "check failed\nconnection refused")
	s.Append(ref, "two words", "shout", "odd")
	s.Append(ref, hangar.LogRunner, "warn", "")
	all := readAll(t, s, 100)
	wantMessages(t, all, "Machine started", "check failed", "connection refused", "odd")
	for i, want := range []string{"runner info", "health error", "health error", "runner info"} {
		if got := string(all[i].Provider) + " " + all[i].Level; got != want {
			t.Errorf("line %d is of %s, want %s", i, got, want)
		}
	}
	if files, err := os.ReadDir("/proc/self/fd"); err != nil || slices.ContainsFunc(files, func(f os.DirEntry) bool {
		target, _ := os.Readlink("/proc/self/fd/" + f.Name())
		return strings.HasPrefix(target, s.dir)
	}) {
		t.Errorf("files of a machine that does not run are open: %v, %v", files, err)
	}
}

// Lines of the platform between two pieces of a line must not tear it.
func TestPlatformLineBetweenPieces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	s := open(t, Options{Dir: dir})
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	m.output([]byte("Password"))
	s.Append(ref, hangar.LogRunner, "info", "Machine is being stopped")
	must(s.Close())
	s = open(t, Options{Dir: dir})
	s.machines[ref.ID].output([]byte(": \n"))
	wantMessages(t, readAll(t, s, 10), "Machine is being stopped", "Password: ")
}

func TestTokens(t *testing.T) {
	now := &clock{now: time.Unix(1763692800, 0)}
	dir := filepath.Join(t.TempDir(), "logs")
	o := Options{Dir: dir, Now: now.Now}
	s := open(t, o)
	if page := read(t, s, hangar.LogQuery{}); len(page.Entries) != 0 || page.Next != "" {
		t.Errorf("of an unknown app: %+v", page)
	}
	for i := range 5 {
		s.Append(ref, hangar.LogRunner, "info", strconv.Itoa(i)) // all at the same time
	}
	page := read(t, s, hangar.LogQuery{Limit: 2})
	wantMessages(t, page.Entries, "3", "4")
	token := page.Next
	if page := read(t, s, hangar.LogQuery{Token: token}); len(page.Entries) != 0 || page.Next != token {
		t.Errorf("nothing new: %+v, want token %s", page, token)
	}
	must(s.Close())
	now.set(time.Unix(1763600000, 0)) // the clock was wrong
	s = open(t, o)
	s.Append(ref, hangar.LogRunner, "info", "5")
	page = read(t, s, hangar.LogQuery{Token: token})
	wantMessages(t, page.Entries, "5")
	for _, bad := range []string{"x", "-1", "1.5", "99999999999999999999", " 1"} {
		if _, err := s.Read(ref.AppID, hangar.LogQuery{Token: bad}); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("token %q: %v", bad, err)
		}
	}
	if page := read(t, s, hangar.LogQuery{Token: "9223372036854775807"}); len(page.Entries) != 0 {
		t.Errorf("after the end of time: %+v", page)
	}
}

func TestSelection(t *testing.T) {
	s := open(t, Options{})
	other := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "0123456789abce"}
	stranger := hangar.MachineRef{App: "other", AppID: "other", ID: "0123456789abcf"}
	for i := range 3 {
		for _, r := range []hangar.MachineRef{ref, other, stranger} {
			s.Append(r, hangar.LogRunner, "info", fmt.Sprintf("%s %d", r.ID[13:], i))
		}
	}
	for name, c := range map[string]struct {
		q    hangar.LogQuery
		want []string
	}{
		"all":             {hangar.LogQuery{}, []string{"d 0", "e 0", "d 1", "e 1", "d 2", "e 2"}},
		"newest":          {hangar.LogQuery{Limit: 3}, []string{"e 1", "d 2", "e 2"}},
		"oldest":          {hangar.LogQuery{Limit: 3, Token: "0"}, []string{"d 0", "e 0", "d 1"}},
		"one":             {hangar.LogQuery{Instance: other.ID}, []string{"e 0", "e 1", "e 2"}},
		"of another app":  {hangar.LogQuery{Instance: stranger.ID}, nil},
		"region":          {hangar.LogQuery{Region: "loc", Limit: 1}, []string{"e 2"}},
		"another region":  {hangar.LogQuery{Region: "fra"}, nil},
		"unknown machine": {hangar.LogQuery{Instance: "ffffffffffffff"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			page, err := s.Read(ref.AppID, c.q)
			must(err)
			wantMessages(t, page.Entries, c.want...)
		})
	}
	s.Append(hangar.MachineRef{App: "other", AppID: "other", ID: ref.ID}, hangar.LogRunner, "info", "misdirected")
	s.Append(hangar.MachineRef{App: "..", AppID: "..", ID: "x"}, hangar.LogRunner, "info", "outside")
	if page, err := s.Read("other", hangar.LogQuery{}); err != nil || len(page.Entries) != 3 {
		t.Errorf("other app: %v, %v", page, err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "..", "x")); err == nil {
		t.Error("a log outside of the directory was made")
	}
}

func TestPagesAreBounded(t *testing.T) {
	s := open(t, Options{MaxBytes: 100 << 20})
	other := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "0123456789abce"}
	var want []string
	for i := range 150 { // 9.6 MB in two machines
		line := fmt.Sprintf("%04d", i) + strings.Repeat("x", MaxLine-4)
		s.Append([]hangar.MachineRef{ref, other}[i/100], hangar.LogRunner, "info", line)
		want = append(want, line[:4])
	}
	page := read(t, s, hangar.LogQuery{Limit: 1000})
	if n := len(page.Entries); n < 50 || n > 70 || page.Entries[n-1].Message[:4] != "0149" {
		t.Errorf("the newest are %d lines", n)
	}
	var got []string
	for token := "0"; ; {
		page := read(t, s, hangar.LogQuery{Limit: 1000, Token: token})
		if len(page.Entries) == 0 {
			break
		}
		if n := len(page.Entries); n > 70 {
			t.Errorf("a page of %d lines", n)
		}
		for _, e := range page.Entries {
			got = append(got, e.Message[:4])
		}
		token = page.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("lines are %q, want %q", got, want)
	}
}

func TestRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	o := Options{Dir: dir, MaxBytes: 2000, MaxFiles: 3}
	s := open(t, o)
	var want []string
	for i := range 1000 {
		want = append(want, testLine(i))
		s.Append(ref, hangar.LogRunner, "info", want[i])
		if i == 500 {
			must(s.Close())
			s = open(t, o)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, string(ref.App), string(ref.ID)))
	must(err)
	if len(files) != 3 {
		t.Fatalf("%d files", len(files))
	}
	var total int64
	for _, f := range files {
		info, err := f.Info()
		must(err)
		total += info.Size()
	}
	if total > 3*(2000+400) || total < 2*2000 {
		t.Errorf("%d bytes in 3 files of 2000", total)
	}
	all := readAll(t, s, 7)
	wantMessages(t, all, want[len(want)-len(all):]...)
	if len(all) < 10 {
		t.Errorf("%d lines are left", len(all))
	}
	for n := 1; n < len(all); n++ { // every cursor continues exactly, also between files
		page := read(t, s, hangar.LogQuery{Limit: 1, Token: formatToken(all[n-1].Time.UnixNano())})
		wantMessages(t, page.Entries, all[n].Message)
	}
}

// A page in the middle of a large file must not need to read all of it; here it must
// at least be the right one.
func TestSeekInLargeFile(t *testing.T) {
	s := open(t, Options{MaxBytes: 100 << 20})
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	var text bytes.Buffer
	const count = 20000
	for i := range count {
		fmt.Fprintln(&text, testLine(i))
	}
	for chunk := range slices.Chunk(text.Bytes(), 60000) {
		m.output(chunk)
	}
	all := readAll(t, s, 5000)
	if len(all) != count {
		t.Fatalf("%d lines", len(all))
	}
	for i := 0; i < count-3; i += 97 {
		page := read(t, s, hangar.LogQuery{Limit: 3, Token: formatToken(all[i].Time.UnixNano())})
		wantMessages(t, page.Entries, testLine(i+1), testLine(i+2), testLine(i+3))
	}
}

func TestDamage(t *testing.T) {
	const good = "1763692800000000001 app info one\n1763692800000000002 app info two\n"
	for name, c := range map[string]struct {
		content string
		want    []string
	}{
		"whole":          {good, []string{"one", "two", "new"}},
		"torn":           {good + "1763692800000000003 app in", []string{"one", "two", "new"}},
		"only torn":      {"17636928", []string{"new"}},
		"empty":          {"", []string{"new"}},
		"torn and long":  {good + strings.Repeat("x", 10000), []string{"one", "two", "new"}},
		"garbage":        {good + "garbage\n\n\x00\xff\n99999999999999999999 app info x\n", []string{"one", "two", "new"}},
		"garbage before": {strings.Repeat("y", 3*maxRecord) + "\n" + good, []string{"one", "two", "new"}},
		"piece":          {good + "1763692800000000003 partial info tw\n1763692800000000004 partial info o\n", []string{"one", "two", "twonew"}},
		"piece finished": {"1763692800000000000 partial info on\n" + good, []string{"one", "two", "new"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "logs")
			must(os.MkdirAll(filepath.Join(dir, string(ref.App), string(ref.ID)), 0o700))
			must(os.WriteFile(filepath.Join(dir, string(ref.App), string(ref.ID), "1763692800000000000.log"), []byte(c.content), 0o600))
			must(os.WriteFile(filepath.Join(dir, string(ref.App), string(ref.ID), "notes.txt"), nil, 0o600))
			must(os.WriteFile(filepath.Join(dir, "stray"), nil, 0o600))
			s := open(t, Options{Dir: dir})
			fifo := fifoOf(t)
			must(s.Capture(ref, fifo))
			write(t, machineOutput(t, fifo), "new\n")
			must(s.Release(ref.ID))
			wantMessages(t, readAll(t, s, 10), c.want...)
			wantMessages(t, read(t, s, hangar.LogQuery{}).Entries, c.want...)
		})
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

// kill -9 while output comes in: every line is there, once and in order. Without a
// keeper the Machine must outlive the last of the daemons that are killed.
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
		// Ever later, so that it comes to an end where daemons do little in their time.
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

// A Machine that is about to be destroyed, or whose handle is gone, is not captured again by the
// agent, but released: its last output is there nevertheless.
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

// The same at each of the points between the steps of a chunk.
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
			// A daemon takes the steps up to a point.
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

func TestReleaseAndCloseDoNotWaitForASilentOrTooFastMachine(t *testing.T) {
	s := open(t, Options{MaxBytes: 1 << 20})
	silent := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "00000000000000"}
	must(s.Capture(silent, fifoOf(t)))
	fifo := fifoOf(t)
	must(s.Capture(ref, fifo))
	f := machineOutput(t, fifo)
	var all sync.WaitGroup
	all.Go(func() { // until it is blocked, and then closed
		for {
			if _, err := f.WriteString("y\n"); err != nil {
				return
			}
		}
	})
	must(s.Release(silent.ID))
	must(s.Release(ref.ID))
	must(s.Capture(ref, fifo))
	must(s.Close())
	_ = f.SetWriteDeadline(time.Unix(1, 0))
	drain, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(err)
	defer drain.Close()
	stop := make(chan struct{})
	all.Go(func() { // a blocked write ends when there is room
		b := make([]byte, 1<<20)
		for !isClosed(stop) {
			_ = drain.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, _ = drain.Read(b)
		}
	})
	_ = f.Close()
	close(stop)
	all.Wait()
}

func TestCaptureRefusesWhatIsNoFIFO(t *testing.T) {
	s := open(t, Options{})
	file := filepath.Join(t.TempDir(), "file")
	must(os.WriteFile(file, nil, 0o600))
	if err := s.Capture(ref, file); err == nil {
		t.Error("captured a file")
	}
	if err := s.Capture(ref, filepath.Join(file, "x")); err == nil {
		t.Error("captured what cannot be made")
	}
	must(s.Capture(ref, fifoOf(t)))
	if err := s.Capture(ref, fifoOf(t)); err == nil {
		t.Error("captured two at once")
	}
	must(s.Close())
	if err := s.Capture(ref, fifoOf(t)); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestFollow(t *testing.T) {
	s := open(t, Options{})
	lines := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	follow := func(q hangar.LogQuery) {
		all.Go(func() {
			for e, err := range s.Follow(ctx, ref.AppID, q) {
				if err != nil {
					t.Error(err)
				}
				lines <- e.Message
			}
			lines <- "end"
		})
	}
	next := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no line, want %q", want)
		}
	}
	follow(hangar.LogQuery{}) // of an app that has nothing yet
	for deadline := time.Now().Add(time.Minute); ; {
		s.mu.Lock()
		_, known := s.apps[ref.AppID]
		s.mu.Unlock()
		if known {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("does not follow")
		}
	}
	s.Append(ref, hangar.LogRunner, "info", "first")
	next("first")
	fifo := fifoOf(t)
	must(s.Capture(ref, fifo))
	f := machineOutput(t, fifo)
	write(t, f, "second\nthi")
	next("second")
	write(t, f, "rd\n")
	next("third")
	later := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: "00000000000000"}
	s.Append(hangar.MachineRef{App: "other", AppID: "other", ID: "00000000000001"}, hangar.LogRunner, "info", "of another app")
	s.Append(later, hangar.LogRunner, "info", "of a machine that appears later")
	next("of a machine that appears later")
	must(s.Remove(later.ID))
	s.Append(ref, hangar.LogRunner, "info", "last")
	next("last")
	cancel()
	next("end")
	all.Wait()

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	follow(hangar.LogQuery{Limit: 2, Instance: ref.ID})
	next("third")
	next("last")
	cancel()
	next("end")
	all.Wait()
}

func TestFollowEndsWithTheStore(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "one")
	var got []error
	for _, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{}) {
		if got = append(got, err); len(got) == 1 {
			must(s.Close())
		}
	}
	if len(got) != 2 || got[0] != nil || hangar.CodeOf(got[1]) != hangar.CodeUnavailable {
		t.Errorf("yielded %v", got)
	}
	for _, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{}) {
		if hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("of a closed store: %v", err)
		}
	}
	for range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{Token: "x"}) {
		break
	}
}

// Every line that is written is followed once and in order, by everyone.
func TestFollowMissesNothing(t *testing.T) {
	s := open(t, Options{MaxBytes: 1 << 20, MaxFiles: 1000})
	const machines, count = 4, 500
	refs := make([]hangar.MachineRef, machines)
	for i := range refs {
		refs[i] = hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			next := map[hangar.MachineID]int{}
			for total := 0; total < machines*count; {
				for e, err := range s.Follow(t.Context(), ref.AppID, hangar.LogQuery{Token: "0"}) {
					must(err)
					if want := strconv.Itoa(next[e.Instance]); e.Message != want {
						t.Errorf("machine %s: line %s, want %s", e.Instance, e.Message, want)
						return
					}
					next[e.Instance]++
					if total++; total == machines*count {
						break
					}
				}
			}
		})
	}
	for _, r := range refs {
		all.Go(func() {
			for i := range count {
				s.Append(r, hangar.LogRunner, "info", strconv.Itoa(i))
			}
		})
	}
	all.Wait()
}

func TestRemove(t *testing.T) {
	s := open(t, Options{})
	must(s.Capture(ref, fifoOf(t)))
	s.Append(ref, hangar.LogRunner, "info", "one")
	for range 2 {
		must(s.Remove(ref.ID))
	}
	if page := read(t, s, hangar.LogQuery{}); len(page.Entries) != 0 {
		t.Errorf("after Remove: %+v", page)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if len(s.apps)+len(s.machines) != 0 {
		t.Errorf("remembered: %v %v", s.apps, s.machines)
	}
	must(s.Capture(ref, fifoOf(t)))
	s.Append(ref, hangar.LogRunner, "info", "two")
	wantMessages(t, readAll(t, s, 10), "two")
}

// A full disk must not block the Machine, and the loss is logged.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a small file system")
	}
	dir := t.TempDir()
	must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { must(unix.Unmount(dir, unix.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	s := open(t, Options{Dir: filepath.Join(dir, "logs")})
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	m.output([]byte("before\n"))
	f, err := os.Create(filler)
	must(err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	must(f.Close())
	lost := 0
	for range 3 {
		chunk := []byte(strings.Repeat("lost\n", 2000))
		m.output(chunk)
		lost += len(chunk)
	}
	must(os.Remove(filler))
	m.output([]byte("after\n"))
	m.output([]byte("all is well\n"))
	wantMessages(t, readAll(t, s, 100), "before",
		fmt.Sprintf("%d bytes of output were lost: the host could not write them", lost), "after", "all is well")
	must(s.Close()) // before the file system goes
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("1763692800000000000 app info hello"))
	f.Add([]byte("1763692800000000000 partial info "))
	f.Add([]byte("9999999999999999999 a b c"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, ok := parseRecord(line)
		if !ok {
			return
		}
		again := append(appendHeader(nil, r.time, r.provider, r.level), r.message...)
		if !bytes.Equal(again, line) {
			t.Errorf("%q is read as %+v and written as %q", line, r, again)
		}
	})
}

func BenchmarkOutput(b *testing.B) {
	s := open(b, Options{})
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	chunk := []byte(strings.Repeat("GET /index.html 200 12.3 ms some words to fill the line\n", 1000))
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		m.output(chunk)
	}
}

func BenchmarkNewest(b *testing.B) {
	s := open(b, Options{})
	fill(b, s)
	b.ReportAllocs()
	for b.Loop() {
		if page := read(b, s, hangar.LogQuery{}); len(page.Entries) != hangar.DefaultLogLimit {
			b.Fatal(len(page.Entries))
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	s := open(b, Options{})
	fill(b, s)
	page := read(b, s, hangar.LogQuery{Limit: 10})
	token := formatToken(page.Entries[0].Time.UnixNano())
	b.ReportAllocs()
	for b.Loop() {
		if page := read(b, s, hangar.LogQuery{Token: token}); len(page.Entries) != 9 {
			b.Fatal(len(page.Entries))
		}
	}
}

func fill(b *testing.B, s *Store) {
	b.Helper()
	s.mu.Lock()
	m, err := s.machine(ref)
	s.mu.Unlock()
	must(err)
	chunk := []byte(strings.Repeat("GET /index.html 200 12.3 ms some words to fill the line\n", 1000))
	for range 80 {
		m.output(chunk)
	}
}

// TestRetire: the log of a Machine that is destroyed reads as before, alone and among others,
// also after a restart that does not look into it.
func TestRetire(t *testing.T) {
	s := open(t, Options{})
	id := func(i int) hangar.MachineRef {
		return hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	const n = 5
	for line := range 2 {
		for i := range n {
			s.Append(id(i), hangar.LogRunner, "info", fmt.Sprintf("%d of %d", line, i))
		}
	}
	page := func(q hangar.LogQuery) []hangar.LogEntry {
		t.Helper()
		page, err := s.Read(ref.AppID, q)
		must(err)
		return page.Entries
	}
	before, newest, one := page(hangar.LogQuery{}), page(hangar.LogQuery{Limit: 3}), page(hangar.LogQuery{Instance: id(1).ID})
	token := formatToken(before[3].Time.UnixNano())
	rest := page(hangar.LogQuery{Token: token})
	if len(before) != 2*n || len(newest) != 3 || len(one) != 2 || len(rest) != 2*n-4 {
		t.Fatalf("%d, %d, %d, %d lines", len(before), len(newest), len(one), len(rest))
	}
	same := func(when string) {
		t.Helper()
		for what, c := range map[string]struct {
			q    hangar.LogQuery
			want []hangar.LogEntry
		}{
			"all": {hangar.LogQuery{}, before}, "the newest": {hangar.LogQuery{Limit: 3}, newest}, "the rest": {hangar.LogQuery{Token: token}, rest},
			"those of one": {hangar.LogQuery{Instance: id(1).ID}, one},
		} {
			if got := page(c.q); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, %s: %v, want %v", when, what, got, c.want)
			}
		}
	}
	for i := range n - 1 {
		must(s.Retire(id(i).ID))
		must(s.Retire(id(i).ID))
	}
	must(s.Retire("ffffffffffffff"))
	if len(s.machines) != 1 {
		t.Errorf("%d logs are in memory", len(s.machines))
	}
	same("retired")
	must(s.Close())
	must(s.Open(t.Context()))
	if len(s.machines) != 1 {
		t.Errorf("%d logs are in memory after a restart", len(s.machines))
	}
	same("after a restart")
	s.Append(id(1), hangar.LogRunner, "info", "late")
	wantMessages(t, page(hangar.LogQuery{Instance: id(1).ID}), "0 of 1", "1 of 1", "late")
	for i := range n {
		must(s.Remove(id(i).ID))
		must(s.Remove(id(i).ID))
	}
	must(s.Forget(time.Now()))
	wantMessages(t, page(hangar.LogQuery{Instance: id(0).ID}), "0 of 0", "1 of 0")
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 || len(s.apps) != 0 {
		t.Errorf("left: %v, %v; in memory %d Apps", left, err, len(s.apps))
	}
}

// TestRetiredOverTime: a page has the newest lines, in whichever order Machines were destroyed,
// and what is forgotten is older than what stays.
func TestRetiredOverTime(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	s := open(t, Options{Now: func() time.Time { return now }})
	id := func(i int) hangar.MachineRef {
		return hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
	}
	const n, step = 12, 7 * time.Minute
	var want []string
	for i := range n {
		s.Append(id(i), hangar.LogRunner, "info", fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
		now = now.Add(step)
	}
	for _, i := range []int{5, 0, 11, 7, 2, 9, 1, 10, 3, 8, 6, 4} { // long after their last line
		now = now.Add(step)
		must(s.Retire(id(i).ID))
	}
	page := func(q hangar.LogQuery) []hangar.LogEntry {
		t.Helper()
		page, err := s.Read(ref.AppID, q)
		must(err)
		return page.Entries
	}
	all := page(hangar.LogQuery{})
	wantMessages(t, all, want...)
	for limit := 1; limit < n; limit++ {
		wantMessages(t, page(hangar.LogQuery{Limit: limit}), want[n-limit:]...)
		wantMessages(t, page(hangar.LogQuery{Token: formatToken(all[limit-1].Time.UnixNano())}), want[limit:]...)
	}
	must(s.Close())
	must(s.Open(t.Context()))
	s.Append(id(n), hangar.LogRunner, "info", "later")
	if got := page(hangar.LogQuery{Limit: 1}); len(got) != 1 || !got[0].Time.After(all[n-1].Time) {
		t.Errorf("the newest line is %v", got)
	}
	must(s.Forget(now.Add(-5 * step))) // 1 was destroyed after that
	wantMessages(t, page(hangar.LogQuery{}), "1", "3", "4", "6", "8", "10", "later")
	must(s.Forget(now.Add(time.Hour)))
	wantMessages(t, page(hangar.LogQuery{}), "later")
}

// TestRetiredWhileRead: a page that is being read while a Machine is destroyed has its lines once.
func TestRetiredWhileRead(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "last words")
	a := s.apps[ref.AppID]
	v, err := a.view(s, hangar.LogQuery{}, 0, 10)
	must(err)
	must(s.Retire(ref.ID))
	if entries, err := v.newest(10); err != nil || len(entries) != 0 || !v.moved {
		t.Errorf("%v, %v, moved %t", entries, err, v.moved)
	}
	page, err := s.Read(ref.AppID, hangar.LogQuery{})
	must(err)
	wantMessages(t, page.Entries, "last words")
}

// TestRegroup: logs that an earlier version retired are read, and forgotten after their time.
func TestRegroup(t *testing.T) {
	s := open(t, Options{})
	s.Append(ref, hangar.LogRunner, "info", "long ago")
	m := s.machines[ref.ID]
	must(s.Close())
	must(os.Rename(m.dir, m.dir+retiredMark+strconv.FormatInt(m.last, 10)))
	must(s.Open(t.Context()))
	page, err := s.Read(ref.AppID, hangar.LogQuery{})
	must(err)
	wantMessages(t, page.Entries, "long ago")
	must(s.Forget(time.Now().Add(time.Duration(retireSpan))))
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
