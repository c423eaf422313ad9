package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/pause"
)

// A copy of the cluster state is made every day on each server. The last keptBackups are kept, which
// cover as many days unless an administrator makes more copies.
const (
	backupsDir   = "backups"
	backupPrefix = "state-"
	backupSuffix = ".snapshot"
	backupEvery  = 24 * time.Hour
	backupRetry  = time.Hour
	backupLimit  = 10 * time.Minute
	keptBackups  = 7
)

// backups makes copies of a state.
type backups struct {
	dir   string
	store *state.Etcd // nil: an external etcd keeps the state, and its operator makes the copies
	now   func() time.Time
	log   *slog.Logger
}

func (d *opening) newBackups(store state.Store) *backups {
	b := &backups{dir: filepath.Join(d.cfg.Dir, backupsDir), now: time.Now, log: d.log}
	if len(d.cfg.Etcd) == 0 {
		b.store, _ = store.(*state.Etcd)
	}
	return b
}

// make makes a copy, and removes the oldest beyond the limit.
func (b *backups) make(ctx context.Context) (path string, size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, backupLimit)
	defer cancel()
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return "", 0, err
	}
	path = filepath.Join(b.dir, backupPrefix+b.now().UTC().Format("20060102T150405.000Z")+backupSuffix)
	if err := durable.WriteTo(path, func(w io.Writer) error { return b.store.Backup(ctx, w) }, 0o600); err != nil {
		return "", 0, fmt.Errorf("copy the cluster state: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, err
	}
	return path, info.Size(), b.prune()
}

// list returns the complete copies, the oldest first, and those that a crash left unfinished.
func (b *backups) list() (whole, half []string, err error) {
	entries, err := os.ReadDir(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case !strings.HasPrefix(name, backupPrefix):
		case strings.HasSuffix(name, backupSuffix):
			whole = append(whole, name)
		case strings.Contains(name, durable.Unfinished):
			half = append(half, name)
		}
	}
	slices.Sort(whole)
	return whole, half, err
}

func (b *backups) prune() error {
	whole, _, err := b.list()
	for _, name := range whole[:max(0, len(whole)-keptBackups)] {
		err = errors.Join(err, os.Remove(filepath.Join(b.dir, name)))
	}
	return err
}

// run makes a copy each day until ctx ends. First it removes what a killed daemon left unfinished.
func (b *backups) run(ctx context.Context) error {
	if b.store == nil {
		return nil
	}
	_, half, err := b.list()
	for _, name := range half {
		err = errors.Join(err, os.Remove(filepath.Join(b.dir, name)))
	}
	if err != nil {
		b.log.Warn("cannot remove unfinished copies of the cluster state", "error", err)
	}
	for pause.For(ctx, b.due()) == nil {
		if _, _, err := b.make(ctx); err != nil && ctx.Err() == nil {
			b.log.Error("the cluster state was not copied", "error", err)
			_ = pause.For(ctx, backupRetry)
		}
	}
	return nil
}

// due returns the time until the next copy: a day after the last one or, without one, a day after the
// start of the server.
func (b *backups) due() time.Duration {
	whole, _, err := b.list()
	if err != nil || len(whole) == 0 {
		return backupEvery
	}
	info, err := os.Stat(filepath.Join(b.dir, whole[len(whole)-1]))
	if err != nil {
		return backupEvery
	}
	return min(max(0, backupEvery-b.now().Sub(info.ModTime())), backupEvery) // the clock may have been ahead
}

// aloneWithState records that only this server has the cluster state, so that the others take it over
// from here.
func aloneWithState(dir string) error {
	rec, there, err := readPeers(dir)
	if err != nil || !there {
		return err
	}
	rec.Endpoints = []string{"https://" + rec.Address}
	return rec.save(dir)
}

// stateDir is where the cluster state of a data directory is.
func stateDir(dir string) string { return filepath.Join(dir, "state") }

// WhileStopped calls work while no daemon runs in a data directory.
func WhileStopped(ctx context.Context, dir string, work func() error) error {
	lock, err := lockDir(ctx, dir)
	if errors.Is(err, errLocked) {
		return hint.With(fmt.Errorf("a daemon runs in %s", dir), "stop it first with SIGTERM, or systemctl stop hangar: Machines keep running")
	}
	if err != nil {
		return badDir(err)
	}
	defer lock.release()
	return work()
}

// RestoreState replaces the cluster state of a data directory by a copy, and returns where the previous
// state is kept. The other servers of a cluster then take the state over from this one. The caller is
// in WhileStopped.
func RestoreState(dir, file string, now time.Time, log *slog.Logger) (kept string, err error) {
	if kept, err = state.Restore(stateDir(dir), file, now, log); err != nil {
		return "", err
	}
	return kept, aloneWithState(dir)
}

// RecoverState turns this server's member of the cluster state into a cluster of one, after the
// loss of most members. The caller is in WhileStopped.
func RecoverState(ctx context.Context, dir string, log *slog.Logger) error {
	if err := state.Recover(ctx, stateDir(dir), log); err != nil {
		return err
	}
	return aloneWithState(dir)
}
