package config

import (
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/internal/storeurl"
)

// Backup configures the backup of the databases. LiteFS has only `type: file` with path, and delay;
// the other keys are this program's own.
type Backup struct {
	Type  string        `yaml:"type"` // file or s3; empty: the scheme of the URL decides
	Path  string        `yaml:"path"` // a directory, instead of a URL
	URL   string        `yaml:"url"`  // file:///directory or s3://bucket/prefix; empty means there is no backup
	Delay time.Duration `yaml:"delay"`
	// SnapshotInterval is the time between snapshots. Exact is how far back a restore can choose each single
	// transaction, and Retention how far back it can go at all.
	SnapshotInterval time.Duration `yaml:"snapshot-interval"`
	Exact            time.Duration `yaml:"exact"`
	Retention        time.Duration `yaml:"retention"`
}

const day = 24 * time.Hour

func defaultBackup() Backup {
	return Backup{Delay: time.Second, SnapshotInterval: day, Exact: day, Retention: 30 * day}
}

func (b *Backup) validate(refuse func(bool, string, ...any)) {
	refuse(b.Type != "" && b.Type != "file" && b.Type != "s3",
		"backup.type: %q is unknown: use file or s3, with backup.url", b.Type)
	if b.Path != "" {
		refuse(b.URL != "" || b.Type == "s3", "backup.path: it replaces backup.url: remove one of the two")
		refuse(!filepath.IsAbs(b.Path), "backup.path: %q must be absolute", b.Path)
		if b.URL == "" {
			b.URL = "file://" + filepath.Clean(b.Path)
		}
	}
	if b.URL == "" {
		refuse(b.Type != "", "backup.url is missing: use file:///directory or s3://bucket/prefix")
		return
	}
	p, err := storeurl.Parse(b.URL)
	refuse(err != nil, "backup.url: %v", err)
	refuse(err == nil && (b.Type == "file") != (p.Dir != "") && b.Type != "", "backup.type: it contradicts backup.url: remove it")
	refuse(b.Delay <= 0 || b.SnapshotInterval <= 0 || b.Exact <= 0 || b.Retention <= 0,
		"backup.delay, snapshot-interval, exact and retention must be positive")
	refuse(b.Exact > b.Retention, "backup.exact must not be longer than backup.retention")
}
