package logs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/hangar-platform/hangar"
)

// maxPageBytes bounds the messages of one page, of which there is at least one.
const maxPageBytes = 4 << 20

// maxViews limits how often a page is read again because a Machine was destroyed meanwhile.
const maxViews = 8

// errMoved means that a log has moved, because its Machine was destroyed.
var errMoved = errors.New("the log has moved")

// Read returns lines of an App's Machines: the oldest after the token or, without a token, the
// newest. It returns CodeInvalid for an invalid token.
func (s *Store) Read(app hangar.AppID, q hangar.LogQuery) (hangar.LogPage, error) {
	after, err := parseToken(q.Token)
	if err != nil {
		return hangar.LogPage{}, err
	}
	page := hangar.LogPage{Next: q.Token}
	s.mu.Lock()
	a := s.apps[app]
	s.mu.Unlock()
	if a == nil || q.Region != "" && q.Region != s.region {
		return page, nil
	}
	limit := q.Limit
	if limit <= 0 {
		limit = hangar.DefaultLogLimit
	}
	for range maxViews {
		v, err := a.view(s, q, after, limit)
		if err == nil && q.Token == "" {
			page.Entries, err = v.newest(limit)
			if v.horizon > 0 {
				page.Next = formatToken(v.horizon)
			}
		} else if err == nil {
			page.Entries, err = v.after(after, limit)
		}
		if err != nil {
			return hangar.LogPage{}, hangar.Errorf(hangar.CodeInternal, "", "read logs of app %s: %w", app, err)
		}
		if !v.moved {
			break
		}
	}
	if n := len(page.Entries); n > 0 {
		page.Next = formatToken(page.Entries[n-1].Time.UnixNano())
	}
	return page, nil
}

// Follow yields the lines that Read returns, of all Machines of an App, and then every new line, even
// of Machines that appear later, until ctx ends or the caller stops. A caller that is slower than
// rotation misses lines. When the Store is closed, the last element is an error with CodeUnavailable.
func (s *Store) Follow(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		a, closed, unfollow, err := s.follow(app)
		if err != nil {
			yield(hangar.LogEntry{}, err)
			return
		}
		defer unfollow()
		for ctx.Err() == nil {
			changed := a.change() // before reading, so that no later line is missed
			page, err := s.Read(app, q)
			if err != nil {
				yield(hangar.LogEntry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
			q.Token = page.Next
			if q.Token == "" { // nothing has been written yet
				q.Token = formatToken(0)
			}
			if len(page.Entries) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
			case <-closed:
				yield(hangar.LogEntry{}, closing())
				return
			}
		}
	}
}

func closing() error {
	return hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")
}

// follow keeps the App known until unfollow, even if it has no Machine yet.
func (s *Store) follow(app hangar.AppID) (a *appLog, closed chan struct{}, unfollow func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed == nil || isClosed(s.closed) {
		return nil, nil, nil, closing()
	}
	a = s.app(app)
	a.mu.Lock()
	a.followers++
	a.mu.Unlock()
	return a, s.closed, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a.mu.Lock()
		a.followers--
		a.mu.Unlock()
		s.dropApp(a)
	}, nil
}

func (a *appLog) change() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// view is the log of some Machines of an App as it is at a moment: everything up to
// the horizon is in the files.
type view struct {
	horizon  int64
	machines []machineView
	moved    bool // a log moved before it was read, and its lines are missing
}

type machineView struct {
	*machineLog         // only what never changes may be used
	files       []int64 // oldest first
	last        int64
}

// first returns a time that is not after that of the first record.
func (m *machineView) first() int64 {
	if len(m.files) == 0 {
		return 0
	}
	return m.files[0]
}

// view returns the logs of the Machines that may have lines of a page. It reads the destroyed
// Machines last, so that a Machine that is destroyed meanwhile is in at least one of the two lists.
// If it is in both, the first entry is marked as moved.
func (a *appLog) view(s *Store, q hangar.LogQuery, after int64, limit int) (*view, error) {
	a.mu.Lock()
	v := &view{horizon: a.last}
	for id, m := range a.machines {
		if q.Instance == "" || q.Instance == id {
			v.machines = append(v.machines, machineView{machineLog: m, files: slices.Clone(m.files), last: m.last})
		}
	}
	a.mu.Unlock()
	retired, err := a.retiredViews(s, q, after, limit)
	v.machines = append(v.machines, retired...)
	return v, err
}

// after returns the oldest lines after a time.
func (v *view) after(t int64, limit int) ([]hangar.LogEntry, error) {
	page := gathered{limit: limit}
	end := v.horizon // later lines may be missing on the page
	shorten := func() {
		page.drop(func(e hangar.LogEntry) bool { return e.Time.UnixNano() > end })
		if last, cut := page.cut(byTime); cut {
			end = last.Time.UnixNano()
		}
	}
	// In the order of their beginnings: those that begin after the page is full are not read.
	slices.SortFunc(v.machines, func(a, b machineView) int { return cmp.Compare(a.first(), b.first()) })
	for _, m := range v.machines {
		if m.last <= t || m.first() > end {
			continue
		}
		size, count := 0, 0
		err := m.forward(m.files, t, func(r record) bool {
			if r.time > end {
				return false
			}
			if r.provider == partial {
				return true
			}
			page.add(r.entry(m.id, m.store.region))
			count++
			size += len(r.message)
			if count < limit && size < maxPageBytes {
				return true
			}
			end = min(end, r.time)
			return false
		})
		if err := v.unlessMoved(err); err != nil {
			return nil, err
		}
		if page.long() {
			shorten()
		}
	}
	shorten()
	return page.entries, nil
}

// unlessMoved records that a log has moved, which is not an error of the page.
func (v *view) unlessMoved(err error) error {
	if errors.Is(err, errMoved) {
		v.moved = true
		return nil
	}
	return err
}

// newest returns the newest lines.
func (v *view) newest(limit int) ([]hangar.LogEntry, error) {
	page := gathered{limit: limit}
	start := int64(0) // earlier lines may be missing on the page
	shorten := func() {
		page.drop(func(e hangar.LogEntry) bool { return e.Time.UnixNano() < start })
		if first, cut := page.cut(func(a, b hangar.LogEntry) int { return byTime(b, a) }); cut {
			start = first.Time.UnixNano()
		}
	}
	slices.SortFunc(v.machines, func(a, b machineView) int { return cmp.Compare(b.last, a.last) })
	for _, m := range v.machines {
		if m.last < start {
			continue
		}
		size, count := 0, 0
		err := m.reverse(m.files, func(r record) bool {
			if r.time < start {
				return false
			}
			if r.time > v.horizon || r.provider == partial {
				return true
			}
			page.add(r.entry(m.id, m.store.region))
			count++
			size += len(r.message)
			if count < limit && size < maxPageBytes {
				return true
			}
			start = max(start, r.time)
			return false
		})
		if err := v.unlessMoved(err); err != nil {
			return nil, err
		}
		if page.long() {
			shorten()
		}
	}
	shorten()
	slices.Reverse(page.entries)
	return page.entries, nil
}

func byTime(a, b hangar.LogEntry) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) }

// gathered are lines of several Machines for one page. An App may have so many Machines, destroyed ones included,
// that the lines which each could have on the page do not fit into memory together.
type gathered struct {
	limit   int
	entries []hangar.LogEntry
	size    int // bytes of the messages
}

func (g *gathered) add(e hangar.LogEntry) {
	g.entries = append(g.entries, e)
	g.size += len(e.Message)
}

// long reports whether there are more lines than a page has.
func (g *gathered) long() bool { return len(g.entries) > 2*g.limit || g.size > maxPageBytes }

// drop removes lines.
func (g *gathered) drop(which func(hangar.LogEntry) bool) {
	g.entries = slices.DeleteFunc(g.entries, which)
}

// cut sorts the lines and keeps the first that fit on the page. It reports whether it has removed others, and
// returns the last line that it has kept.
func (g *gathered) cut(order func(a, b hangar.LogEntry) int) (last hangar.LogEntry, cut bool) {
	slices.SortFunc(g.entries, order)
	g.size = 0
	for i, e := range g.entries {
		if i == g.limit || i > 0 && g.size+len(e.Message) > maxPageBytes {
			clear(g.entries[i:])
			g.entries = g.entries[:i]
			return g.entries[i-1], true
		}
		g.size += len(e.Message)
	}
	return last, false
}

//nolint:gochecknoglobals // followers read often and little
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxRecord) }}

// open opens a file of the log; nil: the file was rotated away. It returns errMoved if the log has
// moved.
func (m *machineLog) open(start int64) (*os.File, error) {
	file, err := os.Open(m.path(start))
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if _, err := os.Lstat(m.dir); errors.Is(err, fs.ErrNotExist) {
		return nil, errMoved
	}
	return nil, nil //nolint:nilnil // the doc comment explains nil, nil
}

// forward calls f with every record after a time, until f returns false. Some files may have been
// rotated away. It returns errMoved if the log has moved.
func (m *machineLog) forward(files []int64, after int64, f func(record) bool) error {
	first, found := slices.BinarySearch(files, after)
	if !found && first > 0 {
		first-- // the previous file may have later records
	}
	for _, start := range files[first:] {
		more, err := m.forwardFile(start, after, f)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (m *machineLog) forwardFile(start, after int64, f func(record) bool) (more bool, err error) {
	file, err := m.open(start)
	if file == nil {
		return err == nil, err
	}
	defer func() { _ = file.Close() }()
	r := readers.Get().(*bufio.Reader)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	from, err := seek(file, r, after)
	if err != nil {
		return false, err
	}
	r.Reset(io.NewSectionReader(file, from, 1<<62))
	for {
		rec, _, err := nextRecord(r)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if rec.time > after && !f(rec) {
			return false, nil
		}
	}
}

// seek returns an offset close to, and not after, the first record after a time. It bisects the file,
// because records are sorted by time.
func seek(file *os.File, r *bufio.Reader, after int64) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	low, high := int64(0), info.Size() // low is 0, or the start of a record that is not after the time
	for high-low > maxRecord {
		middle := low + (high-low)/2
		r.Reset(io.NewSectionReader(file, middle, 1<<62))
		skipped, err := skipLine(r) // middle is most likely inside a line
		if err == nil {
			var rec record
			var length int
			rec, length, err = nextRecord(r)
			if err == nil && rec.time <= after {
				low = middle + int64(skipped+length)
				continue
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		high = middle
	}
	return min(low, info.Size()), nil
}

// nextRecord returns the next record, and how many bytes it has read, up to the record's end. It
// skips other lines. The record is valid until the next call.
func nextRecord(r *bufio.Reader) (rec record, length int, err error) {
	for {
		line, err := r.ReadSlice('\n')
		length += len(line)
		if errors.Is(err, bufio.ErrBufferFull) { // longer than any record
			n, err := skipLine(r)
			if length += n; err != nil {
				return record{}, length, err
			}
			continue
		}
		if err != nil { // an incomplete line is still being written
			return record{}, length, err
		}
		if rec, ok := parseRecord(line[:len(line)-1]); ok {
			return rec, length, nil
		}
	}
}

func skipLine(r *bufio.Reader) (length int, err error) {
	for {
		line, err := r.ReadSlice('\n')
		length += len(line)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return length, err
		}
	}
}

// reverse calls f with every record, newest first, until f returns false. Some files may have been
// rotated away. It returns errMoved if the log has moved.
func (m *machineLog) reverse(files []int64, f func(record) bool) error {
	for _, start := range slices.Backward(files) {
		more, err := m.reverseFile(start, f)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (m *machineLog) reverseFile(start int64, f func(record) bool) (more bool, err error) {
	file, err := m.open(start)
	if file == nil {
		return err == nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	// rest is what was read and not consumed yet: [offset, offset+len(rest)).
	var rest []byte
	block := int64(4 << 10)
	for offset := info.Size(); ; {
		for end := len(rest); end > 0; end = len(rest) {
			begin := bytes.LastIndexByte(rest[:end-1], '\n') + 1
			if begin == 0 && offset > 0 {
				break // the line may begin before offset
			}
			line := rest[begin:]
			rest = rest[:begin]
			if line[len(line)-1] != '\n' { // still being written
				continue
			}
			if rec, ok := parseRecord(line[:len(line)-1]); ok && !f(rec) {
				return false, nil
			}
		}
		if offset == 0 {
			return true, nil
		}
		n := min(block, offset)
		block = min(2*block, maxRecord)
		offset -= n
		b := make([]byte, n, n+int64(len(rest)))
		if _, err := file.ReadAt(b, offset); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		rest = append(b, rest...)
	}
}

func formatToken(t int64) string { return strconv.FormatInt(t, 10) }

func parseToken(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	t, err := strconv.ParseInt(token, 10, 64)
	if err != nil || t < 0 {
		return 0, hangar.Errorf(hangar.CodeInvalid, "", "invalid next_token %q: must come from an earlier answer", token)
	}
	return t, nil
}
