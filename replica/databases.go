package replica

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/events"
	"github.com/hangar-platform/hangar/replica/locks"
)

// Named implements mount.Databases.
func (n *Node) Named(name string) bool { return ValidName(name) }

// Database returns the database with a name. If it does not exist, Database creates an empty one if
// create is set, and otherwise returns nil.
func (n *Node) Database(name string, create bool) (*database.DB, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if db := n.databases[name]; db != nil || !create {
		return db, nil
	}
	if !ValidName(name) {
		return nil, fmt.Errorf("%q: %w", name, ErrName)
	}
	db, err := database.Open(database.Config{
		Name:  name,
		Dir:   n.filesDir(),
		Log:   filepath.Join(n.c.Data, "log", name),
		Aside: filepath.Join(n.asideDir(), name),
		Node:  n.id.Node,
		Sync:  n.c.Sync,
		Live:  !n.strict,
		Kept:  func(files int, size int64) { n.kept(name, files, size) },
		Shared: func() bool {
			c := n.captures()
			return c != nil && c.Shared()
		},
		Fence:    func() error { return n.fence(name) },
		OnCommit: n.published,
		Locks: func(f database.File) (locks.Ranges, error) {
			c := n.captures()
			if c == nil {
				return nil, nil
			}
			return c.Locks(name, f)
		},
		Written: func(f database.File, off, size int64) {
			if c := n.captures(); c != nil {
				c.Written(name, f, off, size)
			}
		},
		Gone: func(f database.File) {
			if c := n.captures(); c != nil {
				c.Gone(name, f)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	db.SetEpoch(n.id.Epoch)
	n.databases[name] = db
	return db, nil
}

// fence returns an error if a commit to the database is not allowed.
func (n *Node) fence(db string) error {
	if n.Writable() {
		return nil
	}
	if _, ok := n.forwarding(db); ok {
		return nil
	}
	return database.ErrFenced
}

// Find returns the database with a name, or nil.
func (n *Node) Find(name string) *database.DB {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.databases[name]
}

// All returns the databases in the order of their names.
func (n *Node) All() []*database.DB {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.databases), func(a, b *database.DB) int { return strings.Compare(a.Name(), b.Name()) })
}

func (n *Node) closeDatabases() error {
	n.mu.Lock()
	all := n.databases
	n.databases = map[string]*database.DB{}
	n.mu.Unlock()
	var errs []error
	for name, db := range all {
		if err := db.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// trim removes old records from the logs that no replica needs, and old files that were put aside.
func (n *Node) trim() error {
	var errs []error
	for _, db := range n.All() {
		keep := min(n.sender.Needs(db.Name()), n.observers.keep(db.Name()))
		if err := db.Trim(time.Now().Add(-n.c.Retention), keep, n.c.LogLimit); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, n.aside.remove(n.asideDir(), time.Now().Add(-n.c.KeepAside)))...)
}

// exportFile returns an empty temporary file for an export, which the caller closes and removes.
func (n endpoints) exportFile() (*os.File, error) {
	return os.CreateTemp(n.c.Data, "export-*")
}

// Writable implements mount.Databases.
func (n *Node) Writable() bool {
	return n.PrimaryEpoch() != 0
}

// Admits implements mount.Databases.
func (n programs) Admits(db *database.DB) bool {
	if database.Torn(db) {
		return false
	}
	if !n.Writable() {
		_, ok := n.forwarding(db.Name())
		return ok
	}
	return n.holds.Load() == 0 && !n.halts.of(db.Name()) && !n.late(db)
}

// Primary implements mount.Databases.
func (n *Node) Primary() (string, bool) {
	r := n.hub.Role()
	return r.Hostname, !r.IsPrimary && r.Hostname != ""
}

// Lag implements mount.Databases. It is 0 on the primary, and the longest Duration on a replica that
// has not caught up since it started.
func (n *Node) Lag() time.Duration {
	if n.Writable() {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.followed {
		return 1<<63 - 1
	}
	return max(0, time.Since(n.heard))
}

func (n *Node) setRole() {
	defer n.observers.notify()
	n.mu.Lock()
	up := n.upstream
	n.mu.Unlock()
	if n.leading.Load() != 0 {
		n.hub.SetRole(events.Role{IsPrimary: true})
		return
	}
	n.hub.SetRole(events.Role{Hostname: up.Hostname})
}
