package logs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
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
)

// The test binary also runs as the other processes: see the functions of these names.
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

// Lines are the same however output is divided into chunks and by restarts and rotation.
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

// The platform's lines between two pieces of a line must not divide it.
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

// TestPageOfManyMachines: a page takes memory for its own lines, not for those that each Machine could have on it.
func TestPageOfManyMachines(t *testing.T) {
	s := open(t, Options{MaxBytes: 100 << 20})
	const machines = 16
	line := strings.Repeat("x", MaxLine)
	for i := range machines {
		m := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i))}
		for range maxPageBytes/MaxLine + 1 {
			s.Append(m, hangar.LogRunner, "info", line)
		}
	}
	for token, first := range map[string]string{"": "the newest", "1": "the oldest"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		page := read(t, s, hangar.LogQuery{Limit: 1000, Token: token})
		runtime.ReadMemStats(&after)
		if made := after.TotalAlloc - before.TotalAlloc; made > machines/2*maxPageBytes {
			t.Errorf("%s %d lines took %d MB", first, len(page.Entries), made>>20)
		}
	}
}

// TestPagesOfManyMachines: pages have the lines of all Machines in their order, however those are mixed.
func TestPagesOfManyMachines(t *testing.T) {
	s := open(t, Options{})
	var want []string
	for i := range 300 {
		m := hangar.MachineRef{App: ref.App, AppID: ref.AppID, ID: hangar.MachineID(fmt.Sprintf("%014x", i*i%23))}
		want = append(want, strconv.Itoa(i))
		s.Append(m, hangar.LogRunner, "info", want[i])
	}
	for _, limit := range []int{1, 2, 7, 100} {
		wantMessages(t, readAll(t, s, limit), want...)
		wantMessages(t, read(t, s, hangar.LogQuery{Limit: limit}).Entries, want[len(want)-limit:]...)
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

// A page from the middle of a large file should not need all of the file. This test only checks
// that it is the right page.
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

// A failed capture is replaced.
func TestCaptureAfterAFailure(t *testing.T) {
	s, fifo := open(t, Options{}), fifoOf(t)
	must(s.Capture(ref, fifo))
	f := machineOutput(t, fifo)
	failed := s.machines[ref.ID].capture
	must(failed.fifo.Close())
	<-failed.done
	write(t, f, "still here\n")
	must(s.Capture(ref, fifo))
	must(s.Release(ref.ID))
	wantMessages(t, readAll(t, s, 10), "still here")
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
