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

// changes lists the changed extents since each mark, oldest mark first.
type changes []change

type change struct {
	Mark    string
	Changed extent.List
}

// sinceStart is the mark of the moment at which the device was opened.
const sinceStart = ""

// Limits of the changes that are kept while a volume is closed.
const (
	maxMarks   = 3       // the newest ones are kept
	maxExtents = 1 << 16 // of each mark; more are merged into fewer, wider ones
)

// since returns the changes since a mark, or false if they are unknown.
func (c changes) since(mark string) (extent.List, bool) {
	for _, one := range slices.Backward(c) {
		if one.Mark == mark {
			return one.Changed, true
		}
	}
	return nil, false
}

// followedBy adds the changes since the device was opened to the earlier ones, if they are known, and
// appends the new marks.
func (c changes) followedBy(known changes) changes {
	var all changes
	if since, ok := known.since(sinceStart); ok {
		for _, prior := range c {
			all = append(all, change{prior.Mark, prior.Changed.Union(since)})
		}
	}
	return append(all, slices.DeleteFunc(known, func(one change) bool { return one.Mark == sinceStart })...)
}

// bounded drops old marks and merges extents, within the limits.
func (c changes) bounded(size int64) changes {
	c = slices.Clone(c[max(0, len(c)-maxMarks):])
	for i := range c {
		for unit := int64(sizeUnit); len(c[i].Changed) > maxExtents; unit *= 2 {
			c[i].Changed = c[i].Changed.Align(unit, size)
		}
	}
	return c
}

// write writes the changes to a file, durably; without any it writes no file.
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

// readChanges reads the file that write wrote. A missing file is not an error.
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

// takeUp moves the recorded changes of a closed volume from its directory to run, which does not
// survive a reboot, like the open device: from now on the volume may change without a record.
func takeUp(dir, run string) (changes, error) {
	path := filepath.Join(dir, changesFile)
	c, err := readChanges(path)
	if err != nil {
		c = nil // the next snapshot then reads everything
	}
	if err := c.write(filepath.Join(run, changesFile)); err != nil {
		return nil, err
	}
	if err := durable.Remove(path); err != nil {
		return nil, err
	}
	return c, durable.SyncDir(dir)
}
