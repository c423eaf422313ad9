package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
)

// appLog is what the Machines of one App share: the order of their lines.
type appLog struct {
	id   hangar.AppID
	rate *rate.Limiter // of the bytes that its Machines write

	mu          sync.Mutex
	last        int64 // time of the newest record; all records up to it are in the files
	machines    map[hangar.MachineID]*machineLog
	retired     bool          // the App has logs of destroyed Machines
	lastRetired int64         // time of the newest record in them, or later
	changed     chan struct{} // closed and replaced when records were written
	followers   int           // guarded by the Store's mu
}

// next returns the time of the next record. The caller holds a.mu.
func (a *appLog) next(now int64) int64 {
	a.last = max(now, a.last+1)
	return a.last
}

// machineLog is the log of one Machine. Its fields are guarded by app.mu.
type machineLog struct {
	store *Store
	app   *appLog
	id    hangar.MachineID
	dir   string

	files   []int64  // times of the first records, oldest first
	size    int64    // of the newest file
	last    int64    // time of the newest record
	file    *os.File // the newest, open for appending; nil when it is not needed
	partial []byte   // output since the last line end
	lost    int64    // bytes of output that could not be written
	capture *capture // nil when there is none
	note    *os.File // open while there is a capture
	left    note     // a killed daemon's note, which the next capture settles
	gone    bool     // removed or retired: a file that is written now would belong to no log
}

//nolint:gochecknoglobals // buffers are worth sharing between all Machines, most of which are silent
var recordBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxPooled bounds the buffers that are kept for reuse.
const maxPooled = 256 << 10

// load finds the files, cuts off a torn record and restores unfinished output.
func (m *machineLog) load() error {
	entries, err := os.ReadDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries { // sorted by name, hence by time
		if first, ok := parseFileName(e.Name()); ok {
			m.files = append(m.files, first)
		}
	}
	if m.left, err = readNote(m.dir); err != nil {
		return err
	}
	if i, found := slices.BinarySearch(m.files, m.left.first); found && i == len(m.files)-1 {
		if m.left, err = m.left.undo(m.path(m.left.first)); err != nil {
			return err
		}
	}
	if len(m.files) == 0 {
		return nil
	}
	for { // skip new files without content
		newest := m.files[len(m.files)-1]
		if m.size, err = cutTorn(m.path(newest)); err != nil {
			return err
		}
		m.last = newest // in case no record can be read
		if m.size > 0 {
			break
		}
		if err := os.Remove(m.path(newest)); err != nil {
			return err
		}
		if m.files = m.files[:len(m.files)-1]; len(m.files) == 0 {
			return nil
		}
	}
	var pieces [][]byte
	err = m.reverse(m.files[len(m.files)-1:], func(r record) bool {
		m.last = max(m.last, r.time)
		if r.provider == partial {
			pieces = append(pieces, bytes.Clone(r.message))
		}
		return r.provider != hangar.LogApp
	})
	slices.Reverse(pieces)
	m.partial = bytes.Join(pieces, nil)
	return err
}

// cutTorn removes what follows the last line end, and returns the remaining size.
func cutTorn(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	b := make([]byte, 4<<10)
	for size := info.Size(); size > 0; {
		n, err := f.ReadAt(b[:min(int64(len(b)), size)], max(0, size-int64(len(b))))
		if err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(b[:n], '\n'); i >= 0 {
			size -= int64(n - i - 1)
			if size != info.Size() {
				err = f.Truncate(size)
			}
			return size, err
		}
		size -= int64(n)
	}
	return 0, f.Truncate(0)
}

// appendMessage writes lines of the platform, or answers errGone.
func (m *machineLog) appendMessage(provider hangar.LogProvider, level, message string) error {
	if level != levelWarn && level != levelError {
		level = levelInfo
	}
	if len(provider) > 16 || provider == "" || provider == hangar.LogApp || provider == partial || strings.ContainsAny(string(provider), " \n") {
		provider = hangar.LogRunner
	}
	if message == "" {
		return nil
	}
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if m.gone {
		return errGone
	}
	w := m.begin()
	for line := range strings.Lines(message) {
		line = strings.TrimRight(line, "\r\n")
		for len(line) > MaxLine {
			cut := cutRune([]byte(line), MaxLine)
			w.add(provider, level, []byte(line[:cut]))
			line = line[cut:]
		}
		w.add(provider, level, []byte(line))
	}
	err := w.write()
	if m.capture == nil {
		err = errors.Join(err, m.closeFileLocked())
	}
	return err
}

// output writes a chunk of the Machine's output.
func (m *machineLog) output(chunk []byte) {
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	w := m.begin()
	w.chunk = chunk
	for len(chunk) > 0 {
		piece, rest, ended := bytes.Cut(chunk, []byte{'\n'})
		if len(m.partial)+len(piece) > MaxLine {
			chunk = chunk[w.split(piece):]
			continue
		}
		if ended {
			w.addLine(m.partial, piece)
			m.partial = m.partial[:0]
		} else {
			w.add(partial, levelInfo, piece)
			m.partial = append(m.partial, piece...)
		}
		chunk = rest
	}
	if cap(m.partial) > 4<<10 && len(m.partial) == 0 {
		m.partial = nil
	}
	m.report(w.write(), len(w.chunk))
}

// settle records that the chunk was removed from the FIFO.
func (m *machineLog) settle() {
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if err := (note{}).write(m.note); err != nil {
		m.store.log.Warn("output of a machine may be duplicated", "app", string(m.app.id), "machine", string(m.id), "error", err)
	}
}

// finish turns output without a line end into a line, because no end will follow.
func (m *machineLog) finish() {
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	if len(m.partial) == 0 {
		return
	}
	w := m.begin()
	w.addLine(m.partial, nil)
	size := len(m.partial)
	m.partial = nil
	m.report(w.write(), size)
}

// report counts output that could not be written. A gap in the log is better than a Machine that
// blocks because the host's disk is full.
func (m *machineLog) report(err error, size int) {
	switch {
	case err == nil:
	case m.lost == 0:
		m.store.log.Warn("output of a machine is being lost", "app", string(m.app.id), "machine", string(m.id), "error", err)
		fallthrough
	default:
		m.lost += int64(size)
	}
}

// batch is a group of records that are written at once.
type batch struct {
	m   *machineLog
	now int64
	buf *[]byte
	err error
	// chunk is the output of which the records are made; nil for lines of the platform.
	chunk []byte
	// before is the App's newest time before the batch.
	before int64
}

// begin starts a batch. The caller holds app.mu until write has returned.
func (m *machineLog) begin() *batch {
	w := &batch{m: m, now: m.store.now().UnixNano(), buf: recordBuffers.Get().(*[]byte), before: m.app.last}
	w.err = m.ready(m.app.next(w.now))
	if w.err == nil && m.lost > 0 {
		w.add(hangar.LogRunner, levelWarn, fmt.Appendf(nil, "%d bytes of output were lost: the host could not write them", m.lost))
	}
	if w.err == nil && m.size == 0 && len(m.partial) > 0 {
		w.add(partial, levelInfo, m.partial) // load reads pieces from the newest file only
	}
	return w
}

// addLine adds a complete line of output, without the carriage return before its end.
func (w *batch) addLine(begin, end []byte) {
	if len(end) > 0 {
		end = bytes.TrimSuffix(end, []byte{'\r'})
	} else {
		begin = bytes.TrimSuffix(begin, []byte{'\r'})
	}
	w.add2(hangar.LogApp, levelInfo, begin, end)
}

func (w *batch) add(provider hangar.LogProvider, level string, message []byte) {
	w.add2(provider, level, message, nil)
}

// add2 adds a record whose message is in two parts.
func (w *batch) add2(provider hangar.LogProvider, level string, begin, end []byte) {
	b := appendHeader(*w.buf, w.m.app.next(w.now), provider, level)
	b = append(append(b, begin...), end...)
	*w.buf = append(b, '\n')
}

// write passes the batch to the kernel in one call, and wakes followers. On an error no part of it is
// in the file.
func (w *batch) write() error {
	m := w.m
	defer func() {
		if cap(*w.buf) <= maxPooled {
			*w.buf = (*w.buf)[:0]
			recordBuffers.Put(w.buf)
		}
	}()
	if w.err == nil && m.note != nil && len(w.chunk) > 0 {
		w.err = note{
			first: m.files[len(m.files)-1], offset: m.size, length: int64(len(*w.buf)),
			size: uint32(len(w.chunk)), sum: sum(w.chunk),
		}.write(m.note)
	}
	if w.err == nil && len(*w.buf) > 0 {
		var n int
		if n, w.err = m.file.Write(*w.buf); w.err != nil && n > 0 {
			w.err = errors.Join(w.err, m.file.Truncate(m.size))
		}
	}
	if w.err != nil {
		m.app.last = w.before // no record has these times
		return w.err
	}
	m.lost = 0
	m.size += int64(len(*w.buf))
	m.last = m.app.last
	close(m.app.changed)
	m.app.changed = make(chan struct{})
	return nil
}

// ready makes sure that there is a file to append to, and that it is not too large. first is the time
// of a record that is not later than those to be written.
func (m *machineLog) ready(first int64) error {
	if len(m.files) > 0 && m.size >= m.store.maxBytes {
		if err := m.closeFileLocked(); err != nil {
			return err
		}
		for len(m.files) >= m.store.maxFiles {
			if err := os.Remove(m.path(m.files[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			m.files = slices.Delete(m.files, 0, 1)
		}
		return m.create(first)
	}
	if m.file != nil {
		return nil
	}
	if len(m.files) == 0 {
		return m.create(first)
	}
	f, err := os.OpenFile(m.path(m.files[len(m.files)-1]), os.O_WRONLY|os.O_APPEND, 0)
	m.file = f
	return err
}

func (m *machineLog) create(first int64) error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(m.path(first), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	m.file, m.size = f, 0
	m.files = append(m.files, first)
	return nil
}

func (m *machineLog) closeFile() error {
	m.app.mu.Lock()
	defer m.app.mu.Unlock()
	return m.closeFileLocked()
}

func (m *machineLog) closeFileLocked() error {
	if m.file == nil {
		return nil
	}
	f := m.file
	m.file = nil
	return f.Close()
}

// closeNote closes the note. The caller holds app.mu.
func (m *machineLog) closeNote() error {
	if m.note == nil {
		return nil
	}
	f := m.note
	m.note = nil
	return f.Close()
}

func (m *machineLog) path(first int64) string { return filepath.Join(m.dir, fileName(first)) }

// split writes the beginning of a line that is too long. It returns how much of piece, the newest
// part of the line, it has written. The rest begins the next line.
func (w *batch) split(piece []byte) int {
	m := w.m
	before := len(m.partial)
	line := append(m.partial, piece[:MaxLine-before+1]...)
	cut := cutRune(line, MaxLine)
	w.add(hangar.LogApp, levelInfo, line[:cut])
	if cut >= before {
		m.partial = m.partial[:0]
		return cut - before
	}
	// The character began in the previous chunk.
	m.partial = append(m.partial[:0], line[cut:before]...)
	w.add(partial, levelInfo, m.partial)
	return 0
}

// cutRune returns where to cut b, which is longer than n, so that the first part has at most n bytes
// and no character is torn.
func cutRune(b []byte, n int) int {
	for cut := n; cut > n-utf8.UTFMax; cut-- {
		if utf8.RuneStart(b[cut]) {
			return cut
		}
	}
	return n
}
