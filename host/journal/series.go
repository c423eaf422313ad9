package journal

import (
	"bytes"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// series is a bounded list of one Machine, in a bucket that all Machines share. A key is the id, a
// zero byte, and a number that grows by one with each element. So the elements of a Machine are
// adjacent and in the order in which they were added, even if the clock jumps.
type series struct {
	bucket *bolt.Bucket
	id     hangar.MachineID
}

func (s series) prefix() []byte { return append([]byte(s.id), 0) }

func (s series) key(n uint64) []byte { return binary.BigEndian.AppendUint64(s.prefix(), n) }

// number is the inverse of key.
func (s series) number(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(s.id)+1:]) }

func (s series) owns(key []byte) bool {
	return len(key) == len(s.id)+9 && bytes.HasPrefix(key, s.prefix())
}

// last returns the newest element, or nil.
func (s series) last() (key, value []byte) {
	_, key, value = s.seekLast()
	return key, value
}

// add appends value and drops the oldest elements beyond limit.
func (s series) add(value []byte, limit uint64) error {
	n := uint64(1)
	if key, _ := s.last(); key != nil {
		n = s.number(key) + 1
	}
	if err := s.bucket.Put(s.key(n), value); err != nil {
		return err
	}
	if n <= limit {
		return nil
	}
	return s.deleteUpTo(n - limit)
}

func (s series) clear() error { return s.deleteUpTo(^uint64(0)) }

// deleteUpTo removes the elements up to number n. It collects the keys first, because a cursor loses
// its place when the bucket changes.
func (s series) deleteUpTo(n uint64) error {
	var keys [][]byte
	c := s.bucket.Cursor()
	for k, _ := c.Seek(s.prefix()); s.owns(k) && s.number(k) <= n; k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := s.bucket.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// newestFirst yields the elements, newest first, until yield returns false.
func (s series) newestFirst(yield func(value []byte) bool) {
	for c, k, v := s.seekLast(); s.owns(k); k, v = c.Prev() {
		if !yield(v) {
			return
		}
	}
}

// seekLast places a cursor on the newest element; key is nil without elements.
func (s series) seekLast() (c *bolt.Cursor, key, value []byte) {
	c = s.bucket.Cursor()
	if beyond, _ := c.Seek(append([]byte(s.id), 1)); beyond == nil {
		key, value = c.Last()
	} else {
		key, value = c.Prev()
	}
	if !s.owns(key) {
		return c, nil, nil
	}
	return c, key, value
}
