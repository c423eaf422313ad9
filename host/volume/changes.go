package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/extent"
)

// changes is what has changed since each of some marks, oldest first.
type changes []change

type change struct {
	Mark    string
	Changed extent.List
}

// sinceStart is the mark of the moment at which a device was opened.
const sinceStart = ""

// What is kept of changes of a volume that is closed.
const (
	maxMarks   = 3       // the newest
	maxExtents = 1 << 16 // of each; more are made fewer and wider
)

// since returns what has changed since a mark, false if that is not known.
func (c changes) since(mark string) (extent.List, bool) {
	for _, one := range slices.Backward(c) {
		if one.Mark == mark {
			return one.Changed, true
		}
	}
	return nil, false
}

// followedBy adds what is known since a device was opened, if that is known.
func (c changes) followedBy(known changes) changes {
	var all changes
	if since, ok := known.since(sinceStart); ok {
		for _, prior := range c {
			all = append(all, change{prior.Mark, prior.Changed.Union(since)})
		}
	}
	return append(all, slices.DeleteFunc(known, func(one change) bool { return one.Mark == sinceStart })...)
}

// bounded leaves out what is old, and details.
func (c changes) bounded(size int64) changes {
	c = slices.Clone(c[max(0, len(c)-maxMarks):])
	for i := range c {
		for unit := int64(sizeUnit); len(c[i].Changed) > maxExtents; unit *= 2 {
			c[i].Changed = c[i].Changed.Align(unit, size)
		}
	}
	return c
}

// write writes a file, durably, unless there is nothing to say.
func (c changes) write(path string) error {
	if len(c) == 0 {
		return nil
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, raw, 0o600)
}

// readChanges reads what write wrote, nothing if there is no file.
func readChanges(path string) (changes, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c changes
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// takeUp moves the known changes of a closed volume from its directory to one that is gone after
// a restart of the host, as open devices are: from now on the volume may change without a record.
func takeUp(dir, run string) (changes, error) {
	path := filepath.Join(dir, changesFile)
	c, err := readChanges(path)
	if err != nil {
		c = nil // then the next snapshot reads everything
	}
	if err := c.write(filepath.Join(run, changesFile)); err != nil {
		return nil, err
	}
	if err := remove(path); err != nil {
		return nil, err
	}
	return c, durable.SyncDir(dir)
}
