package logs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Four steps copy a chunk of output, so that a kill of the daemon neither loses nor duplicates
// output. Each step is one system call:
//
//  1. copy the chunk out of the FIFO, and leave it there;
//  2. write the note: what will be written, where, and from which chunk;
//  3. write the records;
//  4. remove the chunk from the FIFO, and clear the note.
//
// The next daemon reads the note. If the records are incomplete, the chunk is still in the FIFO: the
// daemon cuts the records off and reads the chunk again. If they are complete and the FIFO begins
// with the same chunk, it removes the chunk now. This is wrong only after a kill between the two
// halves of step 4, if the Machine has then repeated the chunk exactly.
type note struct {
	first  int64  // time in the name of the file
	offset int64  // of the records in it
	length int64  // of the records
	size   uint32 // of the chunk; 0: the note is clear
	sum    uint32 // of the chunk
}

const (
	noteName = "capture"
	noteSize = 32
)

func sum(chunk []byte) uint32 { return crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)) }

// describes reports whether the note was written for chunk.
func (n note) describes(chunk []byte) bool {
	return int(n.size) == len(chunk) && n.sum == sum(chunk)
}

func (n note) write(f *os.File) error {
	var b [noteSize]byte
	binary.LittleEndian.PutUint64(b[0:], uint64(n.first))
	binary.LittleEndian.PutUint64(b[8:], uint64(n.offset))
	binary.LittleEndian.PutUint64(b[16:], uint64(n.length))
	binary.LittleEndian.PutUint32(b[24:], n.size)
	binary.LittleEndian.PutUint32(b[28:], n.sum)
	_, err := f.WriteAt(b[:], 0)
	return err
}

// readNote returns the note of a killed daemon, if any.
func readNote(dir string) (note, error) {
	b, err := os.ReadFile(filepath.Join(dir, noteName))
	if errors.Is(err, fs.ErrNotExist) {
		return note{}, nil
	}
	if err != nil || len(b) != noteSize {
		return note{}, err
	}
	return note{
		first:  int64(binary.LittleEndian.Uint64(b[0:])),
		offset: int64(binary.LittleEndian.Uint64(b[8:])),
		length: int64(binary.LittleEndian.Uint64(b[16:])),
		size:   binary.LittleEndian.Uint32(b[24:]),
		sum:    binary.LittleEndian.Uint32(b[28:]),
	}, nil
}

// undo cuts off incomplete records. It returns the note if its records are complete, because its
// chunk may still be in the FIFO.
func (n note) undo(path string) (note, error) {
	info, err := os.Stat(path)
	if err != nil {
		return note{}, err
	}
	if n.size == 0 || info.Size() >= n.offset+n.length {
		return n, nil
	}
	return note{}, os.Truncate(path, min(n.offset, info.Size()))
}

// openNote opens or creates the file of the note, and keeps its content.
func openNote(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, noteName), os.O_WRONLY|os.O_CREATE, 0o600)
}

// tap copies the content of a FIFO and leaves it there.
type tap struct {
	mu   sync.Mutex
	r, w int // ends of a pipe that is empty while mu is unlocked
}

func openTap() (*tap, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	return &tap{r: fds[0], w: fds[1]}, nil
}

func (t *tap) close() error { return errors.Join(unix.Close(t.r), unix.Close(t.w)) }

// peek copies the beginning of the FIFO's content. It returns EAGAIN when the FIFO is empty.
func (t *tap) peek(fifo int, b []byte) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size, err := retry(func() (int, error) {
		size, err := unix.Tee(fifo, t.w, len(b), unix.SPLICE_F_NONBLOCK)
		return int(size), err
	})
	if err != nil {
		return 0, err
	}
	return size, readFull(t.r, b[:size])
}

// take removes len(b) bytes, which must be there, from the FIFO in one system call.
func take(fifo int, b []byte) error { return readFull(fifo, b) }

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := retry(func() (int, error) { return unix.Read(fd, b) })
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// retry repeats a system call that a signal of the Go runtime has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
