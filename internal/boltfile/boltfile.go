// Package boltfile uses files of bbolt of which a page may be damaged, or not be readable.
//
// bbolt reads a mapping of the file into memory. A damaged page causes a panic, and one that the disk
// does not read a fault, which would end the process. The functions of this package return both as
// ErrDamaged. Only the two header pages are an exception once a file is open: a fault there remains
// one, because it leaves the locks of bbolt held.
package boltfile

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged reports a file that is no database, or one with a page that is damaged or cannot be read.
var ErrDamaged = errors.New("the database is damaged")

// Guard calls fn, and returns a panic or a fault of it as ErrDamaged.
func Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return fn()
}

// Open is bolt.Open.
func Open(path string, o bolt.Options) (db *bolt.DB, err error) {
	open := o.OpenFile
	if open == nil {
		open = os.OpenFile
	}
	var file *os.File
	o.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		file, err = open(name, flag, mode)
		return file, err
	}
	err = Guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &o)
		return err
	})
	switch {
	case errors.Is(err, ErrDamaged):
		_ = file.Close() // only to release the lock
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	return db, nil
}

// setAside is the suffix of a damaged file.
const setAside = ".damaged"

// OpenReplaceable opens a file whose loss can be borne, and calls setUp in a transaction. If either
// finds it damaged, lost is told the error, the file is renamed, which replaces an earlier damaged
// one, and an empty file takes its place.
func OpenReplaceable(path string, o bolt.Options, setUp func(tx *bolt.Tx) error, lost func(err error)) (*bolt.DB, error) {
	db, err := openAndSetUp(path, o, setUp)
	if !errors.Is(err, ErrDamaged) {
		return db, err
	}
	lost(err)
	if err := os.Rename(path, path+setAside); err != nil {
		return nil, err
	}
	return openAndSetUp(path, o, setUp)
}

func openAndSetUp(path string, o bolt.Options, setUp func(tx *bolt.Tx) error) (*bolt.DB, error) {
	db, err := Open(path, o)
	if err == nil {
		if err = Update(db, setUp); err != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// View calls fn in a transaction that reads.
func View(db *bolt.DB, fn func(tx *bolt.Tx) error) error {
	tx, err := db.Begin(false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return Guard(func() error { return fn(tx) })
}

// Update calls fn in a transaction, and commits it unless fn fails. An error leaves the database as it
// was; after ErrDamaged, free pages may stay unused.
func Update(db *bolt.DB, fn func(tx *bolt.Tx) error) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it does nothing after a commit, and touches no page
	return Guard(func() error {
		if err := fn(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}
