package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The files of a ledger.
const (
	seedFile    = "seed"
	currentFile = "current" // names the last complete batch; replaced by a rename
	nextFile    = "next"    // becomes current
	slotsFile   = "slots"   // records of slotBytes, written over at random
	logFile     = "log"     // records one after the other, from time to time cut
	shortFile   = "short"   // one record, now longer and now shorter
	filesDir    = "files"   // the newest keepFiles batches have a file each
)

const (
	slotBytes    = 4096
	slots        = 1024
	slotsAtOnce  = 8 // that a batch writes at most
	mostAppended = 24 << 10
	mostShort    = 64 << 10
	mostFile     = 96 << 10
	keepFiles    = 8
	cutEvery     = 32 // batches
	shortEvery   = 4  // batches
	leastRecord  = headBytes + sha256.Size
	headBytes    = 16
)

// The places that records say they are for, beside the numbers of slots.
const (
	placeCurrent = slots + iota
	placeLog
	placeShort
	placeFile
)

// plan is what a batch does. It follows from the seed and the number.
type plan struct {
	slots    []uint64
	cut      bool // empties the log first
	appended int  // bytes
	short    int  // bytes; 0: leaves it alone
	file     int  // bytes
}

// ledger writes batches below a directory, and knows what must be there. It is for one
// goroutine.
type ledger struct {
	dir   string
	seed  [32]byte
	batch uint64 // the last complete one; 0: none
	// clean: nothing of the batch after that was begun.
	clean bool
}

// openLedger reads how far the ledger of a directory is, and begins one in an empty
// directory.
func openLedger(dir string) (*ledger, error) {
	l := &ledger{dir: dir}
	if err := os.MkdirAll(l.path(filesDir), 0o755); err != nil {
		return nil, err
	}
	seed, err := os.ReadFile(l.path(seedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(l.path(currentFile)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the seed is lost: %w", err)
		}
		return l, l.begin()
	case err != nil:
		return nil, err
	case len(seed) != len(l.seed):
		return nil, fmt.Errorf("the seed has %d bytes", len(seed))
	}
	copy(l.seed[:], seed)
	current, err := os.ReadFile(l.path(currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	if len(current) != leastRecord {
		return nil, fmt.Errorf("%s has %d bytes", currentFile, len(current))
	}
	l.batch = binary.BigEndian.Uint64(current)
	if !bytes.Equal(current, l.record(l.batch, placeCurrent, leastRecord)) {
		return nil, fmt.Errorf("%s is not what was written: it says batch %d", currentFile, l.batch)
	}
	return l, nil
}

// begin makes a seed, which is there or not.
func (l *ledger) begin() error {
	_, _ = rand.Read(l.seed[:])
	if err := l.replace(seedFile, l.seed[:]); err != nil {
		return err
	}
	l.clean = true
	return nil
}

func (l *ledger) path(name string) string { return filepath.Join(l.dir, name) }

func (l *ledger) filePath(batch uint64) string {
	return filepath.Join(l.dir, filesDir, strconv.FormatUint(batch, 10))
}

// replace makes a file durable under a name, or leaves what was there.
func (l *ledger) replace(name string, content []byte) error {
	if err := write(l.path(nextFile), content, 0, true); err != nil {
		return err
	}
	if err := os.Rename(l.path(nextFile), l.path(name)); err != nil {
		return err
	}
	return syncDir(l.dir)
}

// write writes content at an offset of a file and makes it durable.
func write(path string, content []byte, at int64, truncate bool) (err error) {
	flags := os.O_CREATE | os.O_WRONLY
	if truncate {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(content, at); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// random is determined by the seed, a batch and a purpose.
func (l *ledger) random(batch, purpose uint64) *mathrand.ChaCha8 {
	h := sha256.New()
	h.Write(l.seed[:])
	_ = binary.Write(h, binary.BigEndian, [2]uint64{batch, purpose})
	return mathrand.NewChaCha8([32]byte(h.Sum(nil)))
}

// record is what a batch writes to a place: its number, the place, random bytes, and a
// checksum of all that.
func (l *ledger) record(batch, place uint64, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, batch)
	binary.BigEndian.PutUint64(b[8:], place)
	_, _ = l.random(batch, place).Read(b[headBytes : size-sha256.Size])
	sum := sha256.Sum256(b[:size-sha256.Size])
	copy(b[size-sha256.Size:], sum[:])
	return b
}

func (l *ledger) plan(batch uint64) plan {
	r := mathrand.New(l.random(batch, 1<<32))
	size := func(most int) int { return leastRecord + r.IntN(most-leastRecord) }
	var p plan
	for range 1 + r.IntN(slotsAtOnce) {
		if s := r.Uint64N(slots); !slices.Contains(p.slots, s) {
			p.slots = append(p.slots, s)
		}
	}
	p.cut, p.appended, p.file = batch%cutEvery == 0, size(mostAppended), size(mostFile)
	if batch%shortEvery == 0 {
		p.short = size(mostShort)
	}
	return p
}

// next does the batch after the last complete one. When it returns without an error,
// the batch is durable.
func (l *ledger) next() error {
	l.clean = false
	batch := l.batch + 1
	p := l.plan(batch)
	if err := l.writeSlots(batch, p); err != nil {
		return err
	}
	if err := l.appendLog(batch, p); err != nil {
		return err
	}
	if p.short > 0 {
		if err := l.writeShort(batch, p); err != nil {
			return err
		}
	}
	if err := write(l.filePath(batch), l.record(batch, placeFile, p.file), 0, true); err != nil {
		return err
	}
	if batch > keepFiles {
		if err := os.Remove(l.filePath(batch - keepFiles)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := syncDir(l.path(filesDir)); err != nil {
		return err
	}
	if err := l.replace(currentFile, l.record(batch, placeCurrent, leastRecord)); err != nil {
		return err
	}
	l.batch, l.clean = batch, true
	return nil
}

func (l *ledger) writeSlots(batch uint64, p plan) (err error) {
	f, err := os.OpenFile(l.path(slotsFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, s := range p.slots {
		if _, err := f.WriteAt(l.record(batch, s, slotBytes), int64(s)*slotBytes); err != nil {
			return err
		}
	}
	return f.Sync()
}

// appendLog removes what is left of a batch that was not finished, first.
func (l *ledger) appendLog(batch uint64, p plan) (err error) {
	f, err := os.OpenFile(l.path(logFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	length := l.logLength(batch - 1)
	if p.cut {
		length = 0
	}
	if err := f.Truncate(length); err != nil {
		return err
	}
	if _, err := f.WriteAt(l.record(batch, placeLog, p.appended), length); err != nil {
		return err
	}
	return f.Sync()
}

func (l *ledger) writeShort(batch uint64, p plan) (err error) {
	f, err := os.OpenFile(l.path(shortFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(l.record(batch, placeShort, p.short), 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(p.short)); err != nil {
		return err
	}
	return f.Sync()
}

// logged are the batches whose records are in the log after one.
func logged(batch uint64) (first, last uint64) {
	return max(batch/cutEvery*cutEvery, 1), batch
}

func (l *ledger) logLength(batch uint64) (n int64) {
	first, last := logged(batch)
	for b := first; b <= last; b++ {
		n += int64(l.plan(b).appended)
	}
	return n
}

// check reads everything and returns what differs from the state after the last complete batch.
// Unless the ledger is clean, the writes of the next batch may be torn.
func (l *ledger) check() (bytesRead int64, problems []string) {
	c := &check{ledger: l}
	if !l.clean {
		next := l.plan(l.batch + 1)
		c.torn = &next
	}
	c.current()
	c.slots()
	c.log()
	c.short()
	c.files()
	return c.read, c.problems
}

// check is one look at everything.
type check struct {
	*ledger
	torn     *plan // of a batch that may have been begun; nil: none
	read     int64
	problems []string
}

func (c *check) complain(format string, args ...any) {
	c.problems = append(c.problems, c.dir+": "+fmt.Sprintf(format, args...))
}

// content is that of a file; empty if there is none.
func (c *check) content(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		endIfBroken(err)
		c.complain("%v", err)
	}
	c.read += int64(len(b))
	return b
}

// expect compares what was found at a place with what a batch wrote there.
func (c *check) expect(found []byte, batch, place uint64, size int, where string) {
	want := c.record(batch, place, size)
	if bytes.Equal(found, want) {
		return
	}
	if len(found) != size {
		c.complain("%s of batch %d has %d bytes, and had %d", where, batch, len(found), size)
		return
	}
	at := 0
	for found[at] == want[at] {
		at++
	}
	sum := sha256.Sum256(found[:size-sha256.Size])
	whole := bytes.Equal(sum[:], found[size-sha256.Size:])
	c.complain("%s of batch %d differs from byte %d on; it says batch %d, place %d; whole: %t; %d of its bytes are zero", where, batch, at,
		binary.BigEndian.Uint64(found), binary.BigEndian.Uint64(found[8:]), whole, bytes.Count(found, []byte{0}))
}

func (c *check) current() {
	found := c.content(c.path(currentFile))
	if c.batch == 0 && len(found) == 0 {
		return
	}
	c.expect(found, c.batch, placeCurrent, leastRecord, currentFile)
}

func (c *check) slots() {
	written := map[uint64]uint64{} // slot to the batch that was the last to write it
	for b := uint64(1); b <= c.batch; b++ {
		for _, s := range c.plan(b).slots {
			written[s] = b
		}
	}
	f, err := os.Open(c.path(slotsFile))
	if err != nil {
		endIfBroken(err)
		if c.batch > 0 {
			c.complain("%v", err)
		}
		return
	}
	defer f.Close()
	for s := range uint64(slots) {
		batch, any := written[s]
		if !any || c.torn != nil && slices.Contains(c.torn.slots, s) {
			continue
		}
		found := make([]byte, slotBytes)
		n, err := f.ReadAt(found, int64(s)*slotBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			endIfBroken(err)
			c.complain("slot %d: %v", s, err)
			continue
		}
		c.read += int64(n)
		c.expect(found[:n], batch, s, slotBytes, fmt.Sprintf("slot %d", s))
	}
}

func (c *check) log() {
	if c.torn != nil && c.torn.cut {
		return
	}
	found := c.content(c.path(logFile))
	first, last := logged(c.batch)
	for b := first; b <= last; b++ {
		size := c.plan(b).appended
		c.expect(found[:min(size, len(found))], b, placeLog, size, logFile)
		found = found[min(size, len(found)):]
	}
	if len(found) > 0 && c.torn == nil {
		c.complain("%s has %d bytes too many", logFile, len(found))
	}
}

func (c *check) short() {
	batch := c.batch / shortEvery * shortEvery
	if batch == 0 || c.torn != nil && c.torn.short > 0 {
		return
	}
	c.expect(c.content(c.path(shortFile)), batch, placeShort, c.plan(batch).short, shortFile)
}

func (c *check) files() {
	entries, err := os.ReadDir(c.path(filesDir))
	if err != nil {
		endIfBroken(err)
		c.complain("%v", err)
		return
	}
	first := uint64(1)
	if c.batch > keepFiles {
		first = c.batch - keepFiles + 1
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	if c.torn != nil {
		delete(there, strconv.FormatUint(c.batch+1, 10))
	}
	for b := first; b <= c.batch; b++ {
		name := strconv.FormatUint(b, 10)
		if !there[name] && c.torn != nil && b+keepFiles == c.batch+1 {
			continue // removed already
		}
		delete(there, name)
		c.expect(c.content(c.filePath(b)), b, placeFile, c.plan(b).file, filesDir+"/"+name)
	}
	for name := range there {
		c.complain("%s/%s should not be there", filesDir, name)
	}
}
