package power

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// The format of the log that QEMU's driver blklogwrites keeps, which is that of the
// kernel's dm-log-writes: a superblock, and entries of one sector that the data follows.
const (
	logMagic  = 0x6a736677736872
	logSector = 512

	flagFlush   = 1
	flagFUA     = 2
	flagDiscard = 4
)

// entry is one write, or a flush, of the disk.
type entry struct {
	offset, length int64 // of the disk, in bytes
	data           int64 // where the content is in the log
	flags          uint64
}

// durable reports whether the entry makes everything before it durable.
func (e *entry) durable() bool { return e.flags&flagFlush != 0 }

// lengthOf returns how many entries are in a log. It counts each flush before who asked
// for that is answered.
func lengthOf(log io.ReaderAt) (int, error) {
	head := make([]byte, 32)
	if _, err := log.ReadAt(head, 0); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint64(head) != logMagic || binary.LittleEndian.Uint32(head[24:]) != logSector {
		return 0, errors.New("not a log of writes")
	}
	return int(binary.LittleEndian.Uint64(head[16:])), nil
}

// readLog returns the entries of a log that is complete.
func readLog(log io.ReaderAt) ([]entry, error) {
	count, err := lengthOf(log)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 32)
	entries := make([]entry, 0, count)
	for at := int64(logSector); len(entries) < count; {
		if _, err := log.ReadAt(head, at); err != nil {
			return nil, fmt.Errorf("entry %d of %d: %w", len(entries), count, err)
		}
		e := entry{
			offset: int64(binary.LittleEndian.Uint64(head)) * logSector,
			length: int64(binary.LittleEndian.Uint64(head[8:])) * logSector,
			flags:  binary.LittleEndian.Uint64(head[16:]), data: at + logSector,
		}
		at = e.data
		if e.flags&flagDiscard == 0 {
			at += e.length
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// replay does an entry to an image. A random part of it may be missing: whole sectors at
// its end.
func (e *entry) replay(log io.ReaderAt, image *os.File, torn *rand.Rand) error {
	length := e.length
	if torn != nil && length > 0 {
		length = torn.Int64N(length/logSector+1) * logSector
	}
	if length == 0 {
		return nil
	}
	content := make([]byte, length) // zeros, for a discard
	if e.flags&flagDiscard == 0 {
		if _, err := log.ReadAt(content, e.data); err != nil {
			return err
		}
	}
	_, err := image.WriteAt(content, e.offset)
	return err
}
