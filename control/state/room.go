package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/hangar-platform/hangar/internal/diskspace"
)

const (
	dbHeadroom = 32 << 20 // bytes; what bbolt makes its file larger by, and more
	roomEvery  = 1 << 20  // bytes of writes after which the room is looked at again
)

// room is what the embedded member takes of the disk before it needs it. etcd ends the
// process when it cannot write, and the programs of tenants may fill the disk between two
// looks at it; so no write may need room that is not taken already:
//
//   - the next file of the log. etcd allocates one ahead, while it begins the one before; if
//     that fails, the file after the current one is missing, and the process ends when it is
//     due. What etcd allocates is the file "0.tmp" or "1.tmp", in turn, whether or not it is
//     there: the one that it does not have is made here.
//   - pages of the database, which is extended in steps.
//   - the file by which etcd tries at each start whether it may write to its directory, and
//     without which a full disk would keep it from starting.
//
// What remains are files of a few KB that say how far the database is, one for every
// thousand writes: for these, Space.AdmitOwn keeps some of the disk.
type room struct {
	dir   string           // etcd's own, with the directories snap and wal
	space *diskspace.Space // may be nil
	due   atomic.Int64     // bytes that may be written before the room is taken again
}

// open has the files that will be made in the directory of the state overwritten in place,
// and removes what an earlier process was making.
func (r *room) open(dir string) error {
	half, err := filepath.Glob(filepath.Join(r.dir, halfMade))
	if err != nil {
		return err
	}
	for _, name := range half {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(diskspace.InPlace(d), d.Close())
}

// halfMade matches files for the log that are being made.
const halfMade = "log-*"

// admit refuses a transaction if there is no room for it, or for what etcd will do then.
func (r *room) admit(txn Txn) error {
	if r.space == nil {
		return nil
	}
	if err := r.space.AdmitOwn(diskspace.ChangeState); err != nil {
		return err
	}
	size := int64(0)
	for _, op := range txn.Then {
		size += int64(len(op.Key) + len(op.Value))
	}
	if r.due.Add(-size) > 0 {
		return nil
	}
	if err := r.take(); err != nil {
		return fmt.Errorf("take room for the state: %w", diskspace.Explain(err))
	}
	r.due.Store(roomEvery)
	return nil
}

// take takes the room. It may be repeated, and costs next to nothing if there is nothing to
// do.
func (r *room) take() error {
	if err := r.keepProbe(); err != nil {
		return err
	}
	for _, name := range []string{"0.tmp", "1.tmp"} {
		if err := makeSpare(filepath.Join(r.dir, "wal", name)); err != nil {
			return err
		}
	}
	db, err := os.OpenFile(filepath.Join(r.dir, "snap", "db"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer db.Close()
	fi, err := db.Stat()
	if err != nil {
		return err
	}
	if err := diskspace.Extend(db, fi.Size()+dbHeadroom); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// keepProbe makes the file that etcd makes at its next start, unless it is there. That it was
// removed by this start leaves room for it.
func (r *room) keepProbe() error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(r.dir), ".touch"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// makeSpare makes a file for the log, unless there is one of that name. It has its name only
// when it has its room.
func makeSpare(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(filepath.Dir(path)), halfMade)
	if err != nil {
		return err
	}
	err = diskspace.Extend(f, wal.SegmentSizeBytes)
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	if err == nil {
		err = f.Truncate(wal.SegmentSizeBytes)
	}
	if err == nil {
		if err = os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
			err = nil // etcd was first
		}
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
