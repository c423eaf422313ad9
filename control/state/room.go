package state

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/hangar-platform/hangar/internal/diskspace"
)

const (
	dbHeadroom = 32 << 20 // bytes; more than bbolt's step of file growth
	roomEvery  = 1 << 20  // bytes of writes after which room is checked again
)

// room allocates the embedded member's disk space ahead of time (ADR 31). etcd ends the process
// when it cannot write, and tenants' programs may fill the disk between two checks, so no write may
// need unallocated space:
//
//   - the next file of the log. etcd allocates one ahead, while it begins the previous one. If that
//     fails, the process ends when the file is due. etcd allocates "0.tmp" and "1.tmp" in turn,
//     whether or not they exist: the one that it does not have is made here.
//   - pages of the database, which is extended in steps.
//   - the file by which etcd tries at each start whether it may write to its directory, and
//     without which a full disk would keep it from starting.
//
// The rest are files of a few KB that record the progress of the database, one for every thousand
// writes: for these, Space.AdmitOwn keeps some of the disk.
type room struct {
	dir   string           // etcd's own, with the directories snap and wal
	space *diskspace.Space // may be nil
	due   atomic.Int64     // bytes that may be written before room is allocated again
}

// open makes future files in the directory of the state be overwritten in place, and removes
// unfinished files of an earlier process.
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

// halfMade matches unfinished files for the log.
const halfMade = "log-*"

// admit refuses a transaction if there is no room for it, or for what etcd does afterwards.
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

// take allocates the room. Repeating it is cheap.
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

// admitCopy refuses the copy of the database that defragment makes if the disk has no room for it.
func (r *room) admitCopy(db backend.Backend) error {
	return r.space.Admit(diskspace.DefragmentState, db.SizeInUse())
}

// defragment returns free pages of the database to the file system.
func defragment(db backend.Backend, log *slog.Logger) {
	if err := db.Defrag(); err != nil {
		log.Warn("state file was not compacted", "error", err)
	}
}

// keepProbe creates the file that etcd creates at its next start, unless it exists. This start
// removed it, which leaves room for it.
func (r *room) keepProbe() error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(r.dir), ".touch"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// makeSpare makes a file for the log, unless it exists. The file gets its name once its room is
// allocated.
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
			err = nil // etcd was faster
		}
	}
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
