package daemon

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestNextCopy: copies are a day apart, also if the clock was wrong when the last one was made.
func TestNextCopy(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]time.Duration{
		time.Hour: 23 * time.Hour, 30 * time.Hour: 0, -time.Minute: backupEvery, -5 * 365 * 24 * time.Hour: backupEvery,
	} {
		b := &backups{dir: t.TempDir(), now: func() time.Time { return now }}
		if got := b.due(); got != backupEvery {
			t.Errorf("without a copy, the first one is due in %s", got)
		}
		path := filepath.Join(b.dir, backupPrefix+"x"+backupSuffix)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		if got := b.due(); got != want {
			t.Errorf("after a copy %s ago, the next one is due in %s, want %s", age, got, want)
		}
	}
}
